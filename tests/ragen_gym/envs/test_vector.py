"""The native batch against Gymnasium's own loop over single environments, and what only a batch has."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import ragen_gym  # noqa: F401  (registers the ids)
from ragen_gym.envs import batch_episodes
from ragen_gym.games.registry import TABLE, build_game, find

MODES = list(AutoresetMode)
IDS = [spec.id for spec in TABLE.values()]


def pair(name: str, n: int, mode: AutoresetMode, **arguments: Any) -> tuple[Any, Any]:
    """The batch, and Gymnasium's loop over single environments."""
    batch = gymnasium.make_vec(name, n, autoreset_mode=mode, **arguments)
    loop = SyncVectorEnv([lambda: gymnasium.make(name, **arguments)] * n, autoreset_mode=mode)
    return batch, loop


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal in values, types, shapes and keys."""
    if isinstance(other, dict):
        assert isinstance(one, dict), where
        assert sorted(one) == sorted(other), where
        for key in other:
            assert_same(one[key], other[key], f"{where}[{key}]")
    elif isinstance(other, tuple | list):
        assert type(one) is type(other), where
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(other, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        if other.dtype == object:
            assert_same(list(one), list(other), where)
        else:
            np.testing.assert_array_equal(one, other, where)
    else:
        assert type(one) is type(other), where
        assert one == other, where


def play_both(batch: Any, loop: Any, seed: Any, steps: int, actions_seed: int) -> None:
    """Hold two batches to each other for some steps; whatever is over is reset by hand where no one else does."""
    rng = np.random.default_rng(actions_seed)
    assert_same(batch.reset(seed=seed), loop.reset(seed=seed), "reset")
    for step in range(steps):
        actions = rng.integers(0, batch.single_action_space.n, batch.num_envs)
        mine, theirs = batch.step(actions), loop.step(actions)
        assert_same(mine, theirs, f"step {step}")
        done = mine[2] | mine[3]
        if batch.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            mine = batch.reset(options={"reset_mask": done})
            assert_same(mine, loop.reset(options={"reset_mask": done}), f"reset after step {step}")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", IDS)
@settings(max_examples=15)
@given(data=st.data())
def test_the_batch_plays_what_single_environments_play(name: str, mode: AutoresetMode, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4))
    observation = data.draw(st.sampled_from(["text", "grid"]))
    batch, loop = pair(name, n, mode, observation=observation, max_episode_steps=data.draw(st.integers(1, 12)))
    one_seed = st.integers(0, 2**32)
    seed = data.draw(st.one_of(one_seed, st.lists(one_seed, min_size=n, max_size=n)))
    play_both(batch, loop, seed, steps=30, actions_seed=data.draw(st.integers(0, 2**32)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ragen/FrozenLake-v0", {"split": "test", "height": 3, "width": 5, "text_format": "coord"}),
        ("ragen/FrozenLake-v0", {"vocabulary": "letters", "text_format": "grid_coord", "success_rate": 0.8}),
        ("ragen/FrozenLake-v0", {"levels": ["P_\n_G", "G_\nOP", "_P\nG_"], "size": 2}),
        ("ragen/FrozenLake-v0", {"size": 9, "preset": "easy", "render_mode": "ansi"}),
        ("ragen/Sokoban-v0", {"split": "validation", "vocabulary": "digits", "height": 5, "width": 7}),
        ("ragen/Bandit-v0", {"pulls": 3, "split": "train"}),
        ("ragen/FrozenLake-v0", {"observation": "rgb", "tile_size": 8}),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_the_arguments_of_single_environments_hold(name: str, arguments: dict[str, Any], mode: AutoresetMode) -> None:
    batch, loop = pair(name, 3, mode, **arguments)
    play_both(batch, loop, seed=11, steps=40, actions_seed=1)
    if arguments.get("render_mode"):
        assert_same(batch.render(), loop.render())


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_levels_are_those_of_the_episodes_in_play(mode: AutoresetMode) -> None:
    batch, loop = pair("ragen/FrozenLake-v0", 3, mode, split="train")
    batch.reset(seed=0)
    loop.reset(seed=0)
    batch.action_space.seed(0)
    met = set(batch.levels)
    for _ in range(60):
        actions = batch.action_space.sample()
        batch.step(actions)
        loop.step(actions)
        assert batch.levels == tuple(env.unwrapped.level for env in loop.envs)
        met.update(batch.levels)
    assert len(met) > 6, "each environment went on to other levels"


def test_seeds_go_on_where_none_is_given() -> None:
    batch, loop = pair("ragen/FrozenLake-v0", 3, AutoresetMode.NEXT_STEP)
    for seed in (3, None, [9, None, 2**40], None, np.arange(3).tolist()):
        assert_same(batch.reset(seed=seed), loop.reset(seed=seed))
    mask = np.array([True, False, True])
    for seed in (None, 4, [None, 8, 9]):
        options = {"reset_mask": mask}
        assert_same(batch.reset(seed=seed, options=options), loop.reset(seed=seed, options=dict(options)))
        assert options == {"reset_mask": mask}, "the caller's options stay as they were"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", ["ragen/FrozenLake-v0", "ragen/Sokoban-v0", "ragen/Bandit-v0"])
def test_infos_read_late_say_what_they_would_have_said_at_once(name: str, mode: AutoresetMode) -> None:
    batch, loop = pair(name, 5, mode)
    kept = [(batch.reset(seed=0)[1], loop.reset(seed=0)[1])]
    rng = np.random.default_rng(3)
    for _ in range(100):
        actions = rng.integers(0, batch.single_action_space.n, 5)
        kept.append((batch.step(actions)[4], loop.step(actions)[4]))
    for mine, theirs in kept:
        assert_same(mine, theirs)


def emptied(infos: dict[str, Any]) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    while infos:
        taken.update([infos.popitem()])
    return taken


#: Ways of reading a dictionary whole.
READINGS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "dict": dict,
    "unpack": lambda infos: {**infos},
    "items": lambda infos: dict(list(infos.items())),
    "reversed": lambda infos: dict(list(reversed(infos.items()))),
    "values": lambda infos: dict(zip(list(infos), infos.values(), strict=True)),
    "index": lambda infos: {key: infos[key] for key in list(infos)},
    "get": lambda infos: {key: infos.get(key) for key in list(infos)},
    "pop": lambda infos: {key: infos.pop(key) for key in list(infos)},
    "popitem": emptied,
    "setdefault": lambda infos: {key: infos.setdefault(key) for key in list(infos)},
    "copy": lambda infos: infos.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda infos: pickle.loads(pickle.dumps(infos)),
    "or": lambda infos: infos | {},
    "ror": lambda infos: {} | infos,
}


@pytest.mark.parametrize("way", READINGS)
def test_infos_read_like_a_dictionary(way: str) -> None:
    batch, loop = pair("ragen/FrozenLake-v0", 3, AutoresetMode.SAME_STEP, max_episode_steps=1)
    loop.reset(seed=1)
    batch.reset(seed=1)
    unread, wanted = batch.step(np.zeros(3, int))[4], loop.step(np.zeros(3, int))[4]
    assert isinstance(unread, dict)
    assert_same(READINGS[way](unread), wanted)


def test_empty_infos_have_no_last_item() -> None:
    infos = gymnasium.make_vec("ragen/FrozenLake-v0", 1).reset(seed=0)[1]
    infos.clear()
    with pytest.raises(KeyError, match="dictionary is empty"):
        infos.popitem()


def test_without_a_limit_nothing_truncates() -> None:
    for endless in (None, -1):
        batch = gymnasium.make_vec("ragen/Sokoban-v0", 1, max_episode_steps=endless)
        batch.reset(seed=0)
        assert not any(batch.step([0])[3].any() for _ in range(200))


def test_what_a_step_returned_is_the_callers() -> None:
    batch = gymnasium.make_vec("ragen/FrozenLake-v0", 4, observation="grid")
    (observations, _), second = batch.reset(seed=0), gymnasium.make_vec("ragen/FrozenLake-v0", 4, observation="grid")
    second.reset(seed=0)
    observations[:] = 77
    for _ in range(30):
        results, wanted = batch.step([0, 1, 2, 3]), second.step([0, 1, 2, 3])
        assert_same(results, wanted)
        for array in results[:4]:
            array[:] = 1


def test_large_batches_keep_fewer_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    game = build_game(find("FrozenLake"), {})
    assert batch_episodes.LevelPrefetch(game, 10, None, None).boards.shape == (10, batch_episodes.RING, 19)
    monkeypatch.setattr(batch_episodes, "RING_BYTES", 2 * 10 * 19)
    assert batch_episodes.LevelPrefetch(game, 10, None, None).boards.shape == (10, 2, 19)
    batch, loop = pair("ragen/FrozenLake-v0", 10, AutoresetMode.SAME_STEP)
    play_both(batch, loop, seed=0, steps=60, actions_seed=0)


@pytest.mark.parametrize(
    ("actions", "complaint"),
    [
        ([0, 4], "environment 1 got 4"),
        ([-1, 0], "environment 0 got -1"),
        ([0], r"shape \(1,\)"),
        ([[0, 1]], r"shape \(1, 2\)"),
        (1, r"shape \(\)"),
        ([0.0, 1.0], "float64"),
        ([True, False], "bool"),
        (["a", "b"], "<U1"),
        (np.array([0, 2**63], np.uint64), "environment 1"),
    ],
    ids=str,
)
def test_bad_actions_change_nothing(actions: Any, complaint: str) -> None:
    batch, loop = pair("ragen/FrozenLake-v0", 2, AutoresetMode.NEXT_STEP)
    batch.reset(seed=0), loop.reset(seed=0)
    for _ in range(15):
        with pytest.raises(ValueError, match=complaint):
            batch.step(actions)
        assert_same(batch.step([1, 2]), loop.step([1, 2]))


@pytest.mark.parametrize(
    ("seed", "options", "complaint"),
    [
        ([1], None, "1 seeds for 2"),
        (-1, None, "seed=-1"),
        (0, {"nonsense": 1}, "nonsense"),
        (0, {"reset_mask": [True, False]}, "bool"),
        (0, {"reset_mask": np.zeros(2, bool)}, "marks no"),
        (0, {"reset_mask": np.array([True, False])}, "never reset"),
        (0, {"level": "P"}, "rows|board"),
        (0, {"level": ["P__G"]}, "1 values for 2"),
        (0, {"noise_seed": -3}, "-3"),
        (0, {"noise_seed": np.array(3)}, r"noise_seed=array\(3\) is not a seed"),
        (0, {"noise_seed": [[1], 2]}, r"noise_seed=\[1\] is not a seed"),
        (0, {"noise_seed": [1, True]}, "noise_seed=True is not a seed"),
        (0, {"level": np.array(3)}, r"level=array\(3\) is not a level"),
    ],
    ids=str,
)
def test_bad_resets(seed: Any, options: dict[str, Any] | None, complaint: str) -> None:
    batch = gymnasium.make_vec("ragen/FrozenLake-v0", 2)
    with pytest.raises((ValueError, gymnasium.error.Error), match=complaint):
        batch.reset(seed=seed, options=options)


def test_nobody_resets_where_autoreset_is_off() -> None:
    batch = gymnasium.make_vec("ragen/Bandit-v0", 2, autoreset_mode=AutoresetMode.DISABLED)
    batch.reset(seed=0)
    batch.step([0, 1])
    with pytest.raises(ResetNeeded, match=r"\[0, 1\]"):
        batch.step([0, 1])
    batch.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        batch.step([0, 1])


@pytest.mark.parametrize("name", IDS)
def test_the_masks_are_those_of_the_infos(name: str) -> None:
    batch: Any = gymnasium.make_vec(name, 3, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ResetNeeded, match="call reset"):
        batch.action_masks()
    _, infos = batch.reset(seed=0)
    for _ in range(12):
        masks = batch.action_masks()
        assert masks.dtype == np.bool_
        np.testing.assert_array_equal(masks, infos["action_mask"])
        *_, infos = batch.step(masks.argmax(axis=1))
