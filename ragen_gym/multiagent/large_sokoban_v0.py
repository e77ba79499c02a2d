"""LargeSokoban with several workers; see ``ragen_gym.multiagent.sokoban.SokobanTeam``."""

from functools import partial

from ragen_gym import multiagent

__all__ = ["env", "parallel_env", "raw_env"]

parallel_env = partial(multiagent.parallel_env, "LargeSokoban")
env = partial(multiagent.env, "LargeSokoban")
raw_env = partial(multiagent.raw_env, "LargeSokoban")
