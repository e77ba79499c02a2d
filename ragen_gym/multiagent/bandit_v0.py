"""Bandit as a contest for the arms; see ``ragen_gym.multiagent.bandit.BanditContest``."""

from functools import partial

from ragen_gym import multiagent

__all__ = ["env", "parallel_env", "raw_env"]

parallel_env = partial(multiagent.parallel_env, "Bandit")
env = partial(multiagent.env, "Bandit")
raw_env = partial(multiagent.raw_env, "Bandit")
