"""EnvPool: C++ environments; one thread, 1,024 environments, as ours."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
from timer import rate, report


def steps(name: str, actions: int, n: int, **arguments: Any) -> tuple[float, float, float]:
    """Random steps of a batch; a Sokoban level comes from EnvPool's own files."""
    envs = envpool.make_gymnasium(name, num_envs=n, num_threads=1, seed=0, **arguments)
    moves = np.random.default_rng(0).integers(0, actions, (64, n)).astype(np.int32)
    envs.reset()

    def play(count: int) -> None:
        for k in range(count):
            envs.step(moves[k % 64])

    return rate(play, n)


report(
    "envpool lake",
    "EnvPool's FrozenLake 4x4, batch, integers, one lake",
    "steps",
    lambda: steps("FrozenLake-v1", 4, 1024),
)
report(
    "envpool sokoban",
    "EnvPool's Sokoban 10x10, 4 boxes, batch of 64, pixels of its tiles",
    "steps",
    lambda: steps("Sokoban-v0", 9, 64),
)
