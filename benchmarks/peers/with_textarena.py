"""TextArena: text games for language models."""

from __future__ import annotations

import numpy as np
import textarena
from timer import rate, report


def steps(name: str, moves: list[str]) -> tuple[float, float, float]:
    """Random moves; a new level for each episode."""
    env = textarena.make(name)
    chosen = np.random.default_rng(0).choice(moves, 1000).tolist()
    env.reset(num_players=1, seed=0)

    def play(count: int) -> None:
        for k in range(count):
            env.get_observation()
            done, _ = env.step(chosen[k % 1000])
            if done:
                env.reset(num_players=1, seed=k)

    return rate(play, 1)


MOVES = ["[up]", "[down]", "[left]", "[right]"]
report("textarena lake", "TextArena's FrozenLake, single, text", "steps", lambda: steps("FrozenLake-v0-raw", MOVES))
report("textarena sokoban", "TextArena's Sokoban, single, text", "steps", lambda: steps("Sokoban-v0-raw", MOVES))
