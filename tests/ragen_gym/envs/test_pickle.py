"""Every environment can be pickled, in the midst of an episode too, and plays on the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_gym import Curriculum, make_turn
from ragen_gym.games.registry import TABLE
from ragen_gym.wrappers import BatchOneHotPlanes, FlatSymbols

LAKE = "ragen/FrozenLake-v0"

MADE: dict[str, Callable[[], Any]] = {
    **{f"{name}, single": partial(gymnasium.make, f"ragen/{name}-v0") for name in TABLE},
    **{f"{name}, turn": partial(make_turn, name) for name in TABLE},
    **{f"{name}, batch": partial(gymnasium.make_vec, f"ragen/{name}-v0", 3) for name in TABLE},
    "grid": lambda: gymnasium.make(LAKE, observation="grid"),
    "coordinates": lambda: gymnasium.make(LAKE, text_format="grid_coord"),
    "pictures": lambda: gymnasium.make(LAKE, observation="rgb", render_mode="rgb_array", tile_size=8),
    "levels": lambda: gymnasium.make(LAKE, levels=["P_\n_G", "PO\n_G"], size=2),
    "regret": lambda: gymnasium.make("ragen/Sokoban-v0", regret=True),
    "regret of turns": lambda: make_turn("Sokoban", regret=True),
    "several pulls": lambda: gymnasium.make("ragen/Bandit-v0", pulls=4),
    "batch of grids": lambda: gymnasium.make_vec(LAKE, 3, observation="grid", autoreset_mode="SameStep"),
    "batch of pictures": lambda: gymnasium.make_vec(LAKE, 2, observation="rgb", tile_size=8),
    "FlatSymbols": lambda: FlatSymbols(gymnasium.make(LAKE, observation="grid")),
    "batch of planes": lambda: BatchOneHotPlanes(gymnasium.make_vec(LAKE, 3, observation="grid")),
    "curriculum": lambda: Curriculum([gymnasium.make(LAKE, preset=p) for p in ("easy", "hard")], window=1),
}


def plain(value: Any) -> Any:
    """A value as what can be compared by ``==``."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in value}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def play(env: Any, count: int) -> list[Any]:
    """What ``count`` steps give, a reset after each end; batches reset by themselves."""
    found = []
    for i in range(count):
        action: Any = np.arange(i, i + getattr(env, "num_envs", 1)) % 2
        if isinstance(env.action_space, gymnasium.spaces.Text):
            names = env.action_names
            action = f"<think>\n</think><answer>{names[i % 2]} || {names[-1]}</answer>"
        elif not hasattr(env, "num_envs"):
            action = int(action[0])
        result = env.step(action)
        found.append(plain(result))
        if not hasattr(env, "num_envs") and (result[2] or result[3]):
            found.append(plain(env.reset()))
    return [*found, plain(env.render()) if env.render_mode else None, plain(env.reset(seed=9)), env.np_random.random()]


@pytest.mark.parametrize("made", MADE)
def test_a_pickled_environment_plays_on_the_same(made: str) -> None:
    env = MADE[made]()
    env.reset(seed=5)
    play(env, 2)
    env.reset()
    if not hasattr(env, "num_envs"):
        result = env.step("no reply" if isinstance(env.action_space, gymnasium.spaces.Text) else 0)
        if result[2] or result[3]:
            env.reset()
    clone = pickle.loads(pickle.dumps(env))
    assert clone.observation_space == env.observation_space
    assert play(clone, 15) == play(env, 15)


@pytest.mark.parametrize("made", MADE)
def test_before_the_first_reset(made: str) -> None:
    env = MADE[made]()
    clone = pickle.loads(pickle.dumps(env))
    assert plain(clone.reset(seed=3)) == plain(env.reset(seed=3))
    assert play(clone, 3) == play(env, 3)
