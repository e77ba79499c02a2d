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


NAMES = st.sampled_from(sorted(TABLE))


def options_of(name: str) -> list[str]:
    return sorted(TABLE[name].game_class.options())


def reply(env: TurnEnv) -> str:
    return f"<think></think><answer>{env.action_names[0]}</answer>"


#: How each form is made, its own options, and an action of it.
FORMS: dict[str, tuple[Callable[..., Any], tuple[str, ...], Callable[[Any], Any]]] = {
    "single": (lambda name, **given: gymnasium.make(f"ragen/{name}-v0", **given), (), lambda env: 0),
    "turns": (make_turn, TURNS, reply),
    "batch": (
        lambda name, **given: gymnasium.make_vec(f"ragen/{name}-v0", **{"num_envs": 2, **given}),
        BATCHES,
        lambda env: [0] * env.num_envs,
    ),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=400, deadline=None, derandomize=True)
@given(name=NAMES, value=VALUES, data=st.data())
def test_any_value_of_any_option(form: str, name: str, value: Any, data: st.DataObject) -> None:
    make, own, action = FORMS[form]
    option = data.draw(st.sampled_from([*options_of(name), *BOARDS, *own]))
    assume(option != "num_envs" or not isinstance(value, int) or value < 10**6 or value >= 2**31)  # it needs as much
    check(option, lambda: make(name, **{option: value}), action)
