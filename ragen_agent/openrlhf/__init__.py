"""The distributed trainer: the same games, episodes and algorithms on OpenRLHF's stack of Ray, vLLM and DeepSpeed.

Nothing of OpenRLHF is copied. ``launch.train_distributed`` starts ``driver``, which runs OpenRLHF's command line
(``cli_flags``) with a list of level seeds as prompts (``prompt_dataset``), an agent executor that plays our
``TokenMDP`` (``executor``, ``episode``), and subclasses of its trainer (``trainer``), its samples generator and
experience maker (``experience``) and its actors (``ray_actors``, ``merged_lora``). ``processes`` holds what these
processes share, ``patches`` what lets them run without CUDA and flash-attn (weights are sent by ``weight_broadcast``
then), and ``supported`` what is refused.

This module imports nothing: worker processes load ``patches`` before they know whether they need torch.
"""
