"""The distributed trainer: the same games, episodes and algorithms on OpenRLHF's stack of Ray, vLLM and DeepSpeed.

Nothing of OpenRLHF is copied. ``launch.train_distributed`` starts ``driver``, which runs OpenRLHF's command line
(``cli_flags``) with a list of level seeds as prompts (``prompt_dataset``), an agent executor that plays our
``TokenMDP`` (``executor``, ``episode``), and subclasses of its trainer (``trainer``), its samples generator
(``generation``), its experience maker (``experience``) and its actors (``workers``). ``cpu`` has the patches for
machines without CUDA; ``batch_plan`` and ``memory_estimate`` say what a run will do and need, ``doctor`` whether a
machine is ready for it.

This module imports nothing: worker processes load ``cpu`` before they know whether they need torch.
"""
