"""FrozenLake as a race; see ``ragen_gym.multiagent.frozen_lake.FrozenLakeRace``."""

from functools import partial

from ragen_gym import multiagent

__all__ = ["env", "parallel_env", "raw_env"]

parallel_env = partial(multiagent.parallel_env, "FrozenLake")
env = partial(multiagent.env, "FrozenLake")
raw_env = partial(multiagent.raw_env, "FrozenLake")
