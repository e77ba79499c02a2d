"""gym-sokoban: the environment that most others copied their levels' maker from."""

from __future__ import annotations

import numpy as np
from timer import rate, report


def levels() -> tuple[float, float, float]:
    """Rooms 8x8 with two boxes from its own generator, which works under numpy 1 and 2."""
    from gym_sokoban.envs.room_utils import generate_room

    def play(count: int) -> None:
        made = 0
        while made < count:
            try:
                generate_room(dim=(8, 8), num_steps=20, num_boxes=2)
            except (RuntimeError, RuntimeWarning):
                continue
            made += 1

    np.random.seed(0)  # noqa: NPY002  (its generator knows no other)
    return rate(play, 1, runs=3)


report("gym-sokoban levels", "gym-sokoban's rooms 8x8, 2 boxes", "levels", levels)
