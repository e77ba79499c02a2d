"""Whatever value an option is given: a ValueError that names it, or an environment that plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragen_gym import TurnEnv, make_turn
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.games.registry import TABLE

BOARDS = ("observation", "text_format", "vocabulary", "preset", "split", "levels", "tile_size")
TURNS = tuple(each.name for each in fields(TurnConfig))
BATCHES = ("num_envs", "max_episode_steps", "autoreset_mode")

#: Nothing here makes a level that takes long to find.
VALUES = st.one_of(
    st.sampled_from([None, True, 0, 1, 2, -1, 0.5, -0.0, 1e308, float("nan"), float("inf"), 1j, b"", b"P_G", object()]),
    st.sampled_from([10**6, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, -(10**400)]),
    st.sampled_from(["", "x", "test", "grid", "a" * 5000, "\x00", "\ud800", "/", "éß", "1", "../.."]),
    st.sampled_from([np.int64(3), np.float32(0.5), np.array([1, 2]), np.array("x"), np.datetime64(0, "s")]),
    st.sampled_from(
        [[], {}, (), set(), [[]], [None], ["x"], {"a": 1}, {"x"}, [["a", "b"]], iter("ab"), range(3), print]
    ),
    st.text(max_size=6),
)


def check(option: str, make: Callable[[], Any], action: Callable[[Any], Any]) -> None:
    problem = option
    try:
        env = make()
        env.reset(seed=0)
    except ValueError as error:
        problem = str(error)
    else:
        env.step(action(env))
        env.close()
    assert option in problem or (option == "size" and "height" in problem)  # a size is a height and a width


#: Each of these once broke something.
KNOWN: list[tuple[str, str, Any]] = [
    ("Sokoban", "wall_prob", "x"),
    ("Sokoban", "wall_prob", [0.5]),
    ("Sokoban", "min_pushes", 2**63),
    ("Sokoban", "vocabulary", ["x"]),
    ("Sokoban", "levels", "a" * 5000),
    ("FrozenLake", "levels", {"P_G": 1}),
    ("FrozenLake", "levels", b"P_G"),
    ("FrozenLake", "frozen_prob", 10**400),
    ("Bandit", "pulls", 2**63),
]


@pytest.mark.parametrize(("name", "option", "value"), KNOWN)
def test_what_was_found(name: str, option: str, value: Any) -> None:
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(ValueError, match=option):
            make(f"ragen/{name}-v0", **{option: value})
    with pytest.raises(ValueError, match=option):
        make_turn(name, **{option: value})


def test_more_steps_than_a_batch_can_count() -> None:
    with pytest.raises(ValueError, match="max_episode_steps=9223372036854775808 must be an integer from 1 to"):
        gymnasium.make_vec("ragen/Sokoban-v0", 2, max_episode_steps=2**63)


NAMES = st.sampled_from(sorted(TABLE))


def options_of(name: str) -> list[str]:
    return sorted(TABLE[name].game_class.options())


@settings(max_examples=500, deadline=None, derandomize=True)
@given(name=NAMES, value=VALUES, data=st.data())
def test_single_environments(name: str, value: Any, data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([*options_of(name), *BOARDS]))
    check(option, lambda: gymnasium.make(f"ragen/{name}-v0", **{option: value}), lambda env: 0)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(name=NAMES, value=VALUES, data=st.data())
def test_turns(name: str, value: Any, data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([*options_of(name), *BOARDS, *TURNS]))

    def reply(env: TurnEnv) -> str:
        return f"<think></think><answer>{env.action_names[0]}</answer>"

    check(option, lambda: make_turn(name, **{option: value}), reply)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(name=NAMES, value=VALUES, data=st.data())
def test_batches(name: str, value: Any, data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([*options_of(name), *BOARDS, *BATCHES]))
    assume(option != "num_envs" or not isinstance(value, int) or value < 10**6 or value >= 2**31)  # it needs as much
    chosen = {"num_envs": 2, option: value}
    check(option, lambda: gymnasium.make_vec(f"ragen/{name}-v0", **chosen), lambda env: [0] * env.num_envs)
