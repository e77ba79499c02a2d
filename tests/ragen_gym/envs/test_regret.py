"""``info["regret"]`` of moves and turns, on request."""

from __future__ import annotations

from itertools import pairwise
from math import isnan
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_gym.envs.policies import reply_for
from ragen_gym.envs.regret import REGRET_KEYS
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.games.values import NOTHING
from tests.ragen_gym.games.test_values import Opaque

HOLE = "PG__\nO___\n____\n____"


@pytest.mark.parametrize("name", list(TABLE))
@pytest.mark.parametrize("seed", range(2))
def test_without_mistakes_there_is_no_regret(name: str, seed: int) -> None:
    env = StepEnv(name, regret=True)
    moves = env.game_spec.horizon or env.game.longest
    assert moves
    _, info = env.reset(seed=seed)
    assert [info[key] for key in REGRET_KEYS] == [0, 0, 0, 0]
    for left in range(moves, 0, -1):
        _, _, terminated, _, info = env.step(env.oracle_action(left))
        assert info["success_regret"] == pytest.approx(0, abs=1e-9)
        if terminated:
            break


def test_regret_by_hand() -> None:
    env = StepEnv("FrozenLake", success_rate=1.0, regret=True)
    env.reset(options={"level": HOLE})
    _, _, _, _, info = env.step(1)  # into the hole
    assert [info[key] for key in REGRET_KEYS] == [1, 0, 1, 0]
    env.reset(options={"level": HOLE})
    assert env.step(3)[4]["regret"] == 0  # against the edge: nine moves are left, and one is enough
    env = StepEnv("FrozenLake", success_rate=1.0, regret=1)
    env.reset(options={"level": HOLE})
    assert env.step(3)[4]["success_regret"] == 1
    assert isnan(env.step(2)[4]["regret"])  # after the last of the moves that are valued


def test_an_environment_without_it_says_nothing() -> None:
    _, info = StepEnv("FrozenLake").reset(seed=0)
    assert not set(info) & set(REGRET_KEYS)
    _, info = make_turn("FrozenLake").reset(seed=0)
    assert not set(info) & {"regret", "turn_value"}


def test_a_batch_refuses_it() -> None:
    with pytest.raises(ValueError, match="vectorization_mode='sync'"):
        gymnasium.make_vec("ragen/FrozenLake-v0", 1, regret=True)


@given(seed=st.integers(0, 2**20), name=st.sampled_from(["Sokoban", "FrozenLake", "Bandit"]), data=st.data())
@settings(max_examples=25)
def test_turns_add_up_to_the_optimum_less_the_return(seed: int, name: str, data: st.DataObject) -> None:
    options: dict[str, Any] = {"success_rate": 1.0} if name == "FrozenLake" else {}
    env = make_turn(name, regret=True, max_turns=3, max_actions_per_turn=3, max_actions=8, **options)
    _, info = env.reset(seed=seed)
    first, total, regret, chance, values = info["turn_value"].before, 0.0, 0.0, 0.0, []
    while not env.over:
        moves = data.draw(st.lists(st.integers(0, len(env.action_names) - 1), max_size=4))
        _, _, _, _, info = env.step(reply_for(env, moves) if moves else "?")
        value = info["turn_value"]
        assert value.regret.total >= 0
        assert value.regret.success >= 0
        assert value.advantage.total <= 1e-9
        values.append(value)
        total += sum(info["rewards"])
        regret, chance = regret + info["regret"], chance + value.chance.total
    if not env.game.stochastic:
        assert chance == pytest.approx(0, abs=1e-9)
        assert [-value.advantage.total for value in values] == pytest.approx([value.regret.total for value in values])
    assert total == pytest.approx(first.total - regret + chance, abs=1e-9)
    assert values[0].before == first
    for one, other in pairwise(values):
        assert one.after == pytest.approx(other.before)
    won = first.success + sum(value.chance.success - value.regret.success for value in values)
    assert won == pytest.approx(float(info["success"]), abs=1e-9)


def test_a_malformed_turn_costs_the_moves_that_it_forfeits() -> None:
    env = make_turn("FrozenLake", success_rate=1.0, regret=True, max_turns=2, max_actions_per_turn=1)
    env.reset(options={"level": "P_G_\n____\n____\n____"})
    _, _, _, _, info = env.step("no answer")
    value = info["turn_value"]
    assert value.forfeited.success == value.regret.success == info["regret"] == 1
    assert value.moves == ()
    assert (value.before.success, value.after) == (1, NOTHING)


def test_bad_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in (-1, 0.5, "yes", None):
        with pytest.raises(ValueError, match="must be True, False, or the number of moves"):
            StepEnv("FrozenLake", regret=bad)  # type: ignore[arg-type]
    monkeypatch.setitem(TABLE, "Opaque", GameSpec("Opaque", f"{Opaque.__module__}:Opaque", 10, "a rope"))
    for make in (StepEnv, make_turn):
        with pytest.raises(ValueError, match="has no exact values: its rule compares"):
            make("Opaque", regret=True, grip=0.5)
    monkeypatch.setitem(TABLE, "Endless", GameSpec("Endless", "ragen_gym.games.sokoban:Sokoban", None, "no horizon"))
    with pytest.raises(ValueError, match=r"Endless has no horizon: give regret=100"):
        StepEnv("Endless", regret=True)
    assert isinstance(TurnEnv(StepEnv("Endless", regret=9)), TurnEnv)
