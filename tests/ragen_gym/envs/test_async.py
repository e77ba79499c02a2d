"""Gymnasium's ``AsyncVectorEnv``: its shared memory loses texts, so it is refused for them, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from ragen_gym import TaskEnv, make_turn

LAKE = "ragen/FrozenLake-v0"


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make_vec(LAKE, 2, vectorization_mode="async"),
        lambda: AsyncVectorEnv([partial(gymnasium.make, LAKE)] * 2),
        lambda: AsyncVectorEnv([partial(make_turn, "FrozenLake")] * 2),
        lambda: AsyncVectorEnv([partial(TaskEnv, "ragen_gym.tasks:Countdown")] * 2),
    ],
    ids=["make_vec", "single", "turn", "task"],
)
def test_blank_boards_are_refused_with_the_way_out(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="shared_memory=False") as error:
        make()
    assert 'vector_kwargs={"shared_memory": False}' in str(error.value)


def test_without_shared_memory_the_boards_are_those_of_the_batch() -> None:
    ours = gymnasium.make_vec(LAKE, 2)
    workers = gymnasium.make_vec(LAKE, 2, vectorization_mode="async", vector_kwargs={"shared_memory": False})
    try:
        assert workers.reset(seed=3)[0] == ours.reset(seed=3)[0]
        for i in range(12):
            assert workers.step(np.array([i % 4, 1]))[0] == ours.step(np.array([i % 4, 1]))[0]
    finally:
        workers.close()
