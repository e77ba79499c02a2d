"""The distributed trainer: the same games, episodes and algorithms on OpenRLHF's stack of Ray, vLLM and DeepSpeed.

Nothing of OpenRLHF is copied. Its command line runs as it is published; this package gives it a prompt dataset that is
a list of level seeds (`seed_list`), an agent executor that plays our `TokenMDP` token by token (`episode`, `executor`),
and subclasses of its trainer (`trainer`, `generation`, `experience`, `workers`) in the places that it leaves open.
`cpu` is what a machine without CUDA needs and steps aside where there is one. `launch.train_distributed` runs it all.

This module imports nothing: worker processes load `cpu` before they know whether they will need torch at all.
"""
