"""Other views of the observations: what they show, in single environments and in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as stock

from ragen_gym.wrappers import BatchFlatSymbols, BatchOneHotPlanes, FlatSymbols, OneHotPlanes
from tests.ragen_gym.envs.test_vector import assert_same


def test_planes_and_symbols_of_a_board() -> None:
    level = "P_O\nO_G\n___"
    arguments: dict[str, Any] = {"observation": "grid", "size": 3}
    grid, _ = gymnasium.make("ragen/FrozenLake-v0", **arguments).reset(seed=0, options={"level": level})
    planes, _ = OneHotPlanes(gymnasium.make("ragen/FrozenLake-v0", **arguments)).reset(options={"level": level})
    flat, _ = FlatSymbols(gymnasium.make("ragen/FrozenLake-v0", **arguments)).reset(options={"level": level})
    assert planes.shape == (6, 3, 3)
    assert planes[1].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]], "holes"
    assert planes[3].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]], "the player"
    np.testing.assert_array_equal(planes.argmax(0), grid)
    np.testing.assert_array_equal(flat.reshape(3, 3, 6).argmax(-1), grid)
    assert flat.sum() == 9


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize(("single", "batch"), [(OneHotPlanes, BatchOneHotPlanes), (FlatSymbols, BatchFlatSymbols)])
def test_batches_view_what_single_environments_view(single: Any, batch: Any, mode: AutoresetMode) -> None:
    name = "ragen/FrozenLake-v0"
    one = batch(gymnasium.make_vec(name, 3, autoreset_mode=mode, observation="grid"))
    other = SyncVectorEnv([lambda: single(gymnasium.make(name, observation="grid"))] * 3, autoreset_mode=mode)
    assert one.observation_space == other.observation_space
    assert_same(one.reset(seed=4), other.reset(seed=4))
    assert one.observation_space.contains(one.reset(seed=4)[0])
    other.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 4, 3)
        assert_same(one.step(actions), other.step(actions))


@pytest.mark.parametrize("wrapper", [OneHotPlanes, FlatSymbols])
def test_text_is_refused(wrapper: Any) -> None:
    with pytest.raises(ValueError, match="observation='grid'"):
        wrapper(gymnasium.make("ragen/FrozenLake-v0"))


STOCK: dict[str, Callable[[Any], Any]] = {
    "ClipReward": lambda envs: stock.ClipReward(envs, 0.0, 0.5),
    "NormalizeReward": stock.NormalizeReward,
    "RecordEpisodeStatistics": stock.RecordEpisodeStatistics,
    "NormalizeObservation": stock.NormalizeObservation,
    "TransformAction": lambda envs: stock.TransformAction(envs, lambda actions: 3 - actions),
}


@pytest.mark.parametrize("name", STOCK)
def test_gymnasiums_wrappers_give_what_they_give_around_its_own_loop(name: str) -> None:
    """In mode NextStep, which they ask for; 30 steps hold several episodes."""
    kinds: tuple[dict[str, Any], ...] = ({}, {"vectorization_mode": "sync"})
    ours, loop = (
        STOCK[name](gymnasium.make_vec("ragen/FrozenLake-v0", 3, observation="grid", **kind)) for kind in kinds
    )
    assert ours.single_observation_space == loop.single_observation_space
    np.testing.assert_array_equal(ours.reset(seed=4)[0], loop.reset(seed=4)[0])
    ended = 0
    for step in range(30):
        actions = np.array([step % 4, 1, 2])
        mine, theirs = ours.step(actions), loop.step(actions)
        for one, other in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_allclose(one, other)
        ended += int((mine[2] | mine[3]).sum())
    assert ended > 3
