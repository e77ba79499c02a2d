"""Minigrid: grid worlds."""

from __future__ import annotations

import gymnasium
import minigrid  # noqa: F401  (registers the ids)
import numpy as np
from timer import rate, report


def steps() -> tuple[float, float, float]:
    """Random steps of the empty room."""
    env = gymnasium.make("MiniGrid-Empty-5x5-v0")
    actions = np.random.default_rng(0).integers(0, 3, 1000).tolist()
    env.reset(seed=0)

    def play(count: int) -> None:
        for k in range(count):
            _, _, terminated, truncated, _ = env.step(actions[k % 1000])
            if terminated or truncated:
                env.reset()

    return rate(play, 1)


report("minigrid empty", "Minigrid's Empty-5x5, single, its symbolic picture", "steps", steps)
