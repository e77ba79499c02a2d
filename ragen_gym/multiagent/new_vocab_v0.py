"""NewVocab with several workers; see ``ragen_gym.multiagent.sokoban.SokobanTeam``."""

from functools import partial

from ragen_gym import multiagent

__all__ = ["env", "parallel_env", "raw_env"]

parallel_env = partial(multiagent.parallel_env, "NewVocab")
env = partial(multiagent.env, "NewVocab")
raw_env = partial(multiagent.raw_env, "NewVocab")
