"""GEM: text games for language models."""

from __future__ import annotations

import gem
import numpy as np
from timer import rate, report


def steps() -> tuple[float, float, float]:
    """Random moves of Sokoban 6x6 with one box; a new level for each episode."""
    env = gem.make("game:Sokoban-v0-easy")
    directions = np.random.default_rng(0).choice(["up", "down", "left", "right"], 1000)
    moves = [f"\\boxed{{{direction}}}" for direction in directions]
    env.reset(seed=0)

    def play(count: int) -> None:
        for k in range(count):
            _, _, terminated, truncated, _ = env.step(moves[k % 1000])
            if terminated or truncated:
                env.reset(seed=k)

    return rate(play, 1)


def levels() -> tuple[float, float, float]:
    """Resets, each with a new level."""
    env = gem.make("game:Sokoban-v0-easy")

    def play(count: int) -> None:
        for seed in range(count):
            env.reset(seed=seed)

    return rate(play, 1, runs=3)


report("gem sokoban", "GEM's Sokoban 6x6, 1 box, single, text, fresh levels", "steps", steps)
report("gem levels", "GEM's Sokoban 6x6, 1 box, resets with a new level", "levels", levels)
