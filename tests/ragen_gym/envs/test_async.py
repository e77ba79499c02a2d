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


class Word(gymnasium.Env[str, Any]):
    """An environment of Gymnasium alone, whose observation is a text."""

    observation_space = gymnasium.spaces.Text(3, charset="abc")
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start."""
        return "abc", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Go on."""
        return "cab", 0.0, False, False, {}


def test_gymnasiums_shared_memory_still_loses_texts() -> None:
    """Fails once Gymnasium returns the texts: then ``ragen_gym.envs.board_view.TextSpace`` need not refuse it."""
    envs = AsyncVectorEnv([Word])
    try:
        assert envs.reset()[0] != ("abc",)
        assert envs.step(np.array([0]))[0] != ("cab",)
    finally:
        envs.close()


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


def test_grids_may_use_shared_memory() -> None:
    ours = gymnasium.make_vec(LAKE, 2, observation="grid")
    workers = gymnasium.make_vec(LAKE, 2, vectorization_mode="async", observation="grid")
    try:
        assert np.array_equal(workers.reset(seed=3)[0], ours.reset(seed=3)[0])
    finally:
        workers.close()
