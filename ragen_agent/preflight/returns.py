"""Returns that groups can get before anything is learned, by random play."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragen_agent.tokens.rollout import group
from ragen_gym.envs.policies import random_reply
from ragen_gym.envs.reply_env import ReplyEnv

__all__ = ["random_returns", "returns_in_words"]

LEVELS = 8
LISTED = 6  # returns at most, the commonest ones


def random_returns(env: ReplyEnv, group_size: int, levels: int = LEVELS) -> NDArray[np.float64]:
    """The returns of well-formed replies drawn at random: float64 (levels, group_size), a row for each seed from 0 on.

    Raises:
        ValueError: a text task that draws no replies.
    """
    returns = []
    for instance in group(range(levels), group_size):
        random = np.random.default_rng([instance.seed, instance.noise_seed])
        env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        earned, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(random_reply(env, random))
            earned, done = earned + float(reward), terminated or truncated
        returns.append(round(earned, 6))  # rewards summed in another order
    return np.array(returns).reshape(levels, group_size)


def returns_in_words(returns: NDArray[np.float64]) -> str:
    """One sentence on the groups whose returns differ, and one on the returns."""
    differ = int((returns.max(axis=1) > returns.min(axis=1)).sum())
    values, counts = np.unique(returns, return_counts=True)
    commonest = sorted(zip(-counts, values, strict=True))[:LISTED]
    listed = ", ".join(f"{value:g} ({-count})" for count, value in sorted(commonest, key=lambda each: each[1]))
    levels, size = returns.shape
    return (
        f"Random play: the returns differ on {differ} of {levels} levels, with {size} episodes on each. A level whose "
        f"returns are equal teaches nothing. Returns and their episodes: {listed}"
        + (f", and {len(values) - LISTED} others." if len(values) > LISTED else ".")
    )
