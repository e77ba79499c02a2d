"""BanditRev as a contest for the arms; see ``ragen_gym.multiagent.bandit.BanditContest``."""

from functools import partial

from ragen_gym import multiagent

__all__ = ["env", "parallel_env", "raw_env"]

parallel_env = partial(multiagent.parallel_env, "BanditRev")
env = partial(multiagent.env, "BanditRev")
raw_env = partial(multiagent.raw_env, "BanditRev")
