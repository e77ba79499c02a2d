"""Exact values of states: against the oracles, and what must hold of regret and chance by their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games import values as module
from ragen_gym.games.bandit import Bandit
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import PLAYING, SUCCESS, Game
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.games.values import NOTHING, LevelValues, MoveValue, Value, exact_play, level_values, pivot
from ragen_gym.testing import action_sequences, games, states
from tests.ragen_gym.testing.tightrope import Tightrope

Drawn = tuple[Game, tuple[bytes, Any]]


def drawn_states(*kinds: type[Game]) -> st.SearchStrategy[Drawn]:
    return st.sampled_from(kinds).flatmap(games).flatmap(lambda game: st.tuples(st.just(game), states(game)))


def walk(game: Game, values: LevelValues, start: Any, actions: list[int], draws: list[float]) -> Iterator[Any]:
    """(value before, reward, what the move was worth, value after) of each move of an episode of so many moves."""
    board, state = bytearray(start[0]), list(start[1])
    for done, (action, u) in enumerate(zip(actions, draws, strict=True)):
        left, before = len(actions) - done, (bytes(board), tuple(state))
        reward, outcome = game.rule(board, state, action, u, game.params)
        after = (bytes(board), tuple(state)) if outcome == PLAYING else None
        later = values.value(*after, left - 1) if after else Value(0.0, float(outcome == SUCCESS))
        yield (
            values.value(*before, left),
            reward,
            values.move(before, left, action, reward, after, outcome == SUCCESS),
            later,
        )
        if outcome != PLAYING:
            return


@given(drawn_states(FrozenLake, Bandit, Sokoban), st.integers(1, 6), st.booleans())
@settings(max_examples=60)
def test_no_regret_is_negative_and_chance_has_mean_zero(drawn: Drawn, left: int, may_stop: bool) -> None:
    """By enumeration of all that an action can do: no sample, no tolerance for noise."""
    game, start = drawn
    values, least = LevelValues(game, start, left, may_stop=may_stop), []
    for action in range(len(game.Action)):
        mean, regret = NOTHING, NOTHING
        for chance, u in game.noise_intervals():
            _, _, move, _ = next(walk(game, values, start, [action] * left, [u] * left))
            regret = move.regret
            assert regret.total >= 0
            assert regret.success >= 0
            mean = mean.plus(Value(chance * move.chance.total, chance * move.chance.success))
        assert mean == pytest.approx((0, 0), abs=1e-9)
        least.append(regret)
    assert min(regret.success for regret in least) == 0
    assert may_stop or min(regret.total for regret in least) == 0


@given(st.data())
@settings(max_examples=60)
def test_an_episodes_return_is_the_optimum_less_regret_plus_chance(data: st.DataObject) -> None:
    game, start = data.draw(drawn_states(FrozenLake, Bandit, Sokoban))
    actions = data.draw(action_sequences(game, 8).filter(bool))
    draws = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=len(actions), max_size=len(actions)))
    values = LevelValues(game, start, len(actions))
    moves = list(walk(game, values, start, actions, draws))
    total = sum(reward for _, reward, _, _ in moves)
    regret = sum(move.regret.total for _, _, move, _ in moves)
    chance = sum(move.chance.total for _, _, move, _ in moves)
    assert total == pytest.approx(moves[0][0].total - regret + chance, abs=1e-9)
    if not game.stochastic:
        assert chance == pytest.approx(0, abs=1e-9)
        assert total == pytest.approx(moves[0][0].total - regret, abs=1e-9)
    success = moves[-1][3].success
    regret = sum(move.regret.success for _, _, move, _ in moves)
    chance = sum(move.chance.success for _, _, move, _ in moves)
    assert success == pytest.approx(moves[0][0].success - regret + chance, abs=1e-9)


@pytest.mark.parametrize("size", [6, 7, 8])
def test_two_boxes_are_exact_up_to_8x8(size: int) -> None:
    game = Sokoban(size=size, boxes=2, search_depth=10)
    boards = game.generate(episode_keys(5, 0, 2), None)
    for board, state in zip(map(bytes, boards), game.starts(boards).tolist(), strict=True):
        solution, values = game.solve(board), LevelValues(game, (board, state), 10)
        for left in (10, 6, 1):
            said = solution.expected_return(board, state, left), solution.success(board, state, left)
            assert values.value(board, state, left) == pytest.approx(said)


def test_what_is_too_large_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Sokoban(size=6)
    board = bytes(game.generate(episode_keys(1, 0, 1), None)[0])
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    whole = LevelValues(game, (board, state), 10)
    assert not isnan(whole.value(board, state, 10).total)
    for limit, value in (("MAX_STATES", 10), ("_MAX_ENTRIES", 400)):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, value)
            values = LevelValues(game, (board, state), 10)
            for left in (10, 1):
                assert all(map(isnan, values.value(board, state, left)))
                assert all(isnan(number) for value in values.actions(board, state, left) for number in value)
            assert all(map(isnan, values.expected(board, state, [0], 10, 9)))
            near = LevelValues(game, (board, state), 1).value(board, state, 1)
            assert near == whole.value(board, state, 1)


def test_what_cannot_be_reached_in_the_moves_of_the_episode_is_unknown() -> None:
    game = FrozenLake(size=3)
    board, away = game.parse("P__\n___\n__G"), game.parse("___\n___\n_PG")
    values = LevelValues(game, (board, [0]), 2)
    assert values.value(board, [0], 2) == (0, 0)
    assert all(map(isnan, values.value(away, [9], 1)))
    assert all(map(isnan, values.value(board, [0], 3)))


def test_by_hand_on_ice() -> None:
    """One step from the goal with a hole on the other side: straight with 1/2, to either side with 1/4."""
    game = FrozenLake(size=2, success_rate=0.5)
    board = game.parse("PG\nO_")
    values, right, down = LevelValues(game, (board, [0]), 2), FrozenLake.Action.RIGHT, FrozenLake.Action.DOWN
    assert values.value(board, [0], 1) == pytest.approx((0.5, 0.5))
    assert values.actions(board, [0], 1)[down].total == pytest.approx(0.25)
    won = values.move((board, [0]), 1, right, 1.0, None, success=True)
    assert won == MoveValue(NOTHING, Value(0.5, 0.5))
    drowned = values.move((board, [0]), 1, down, 0.0, None)
    assert drowned.regret == pytest.approx((0.25, 0.25))
    assert drowned.chance == pytest.approx((-0.25, -0.25))
    # Right twice: 1/2, and 1/4 (bumped into the upper edge) times 1/2 again.
    assert values.expected(board, [0], [right, right], 2, 0).success == pytest.approx(0.5 + 0.25 * 0.5)


def test_exact_play_by_hand() -> None:
    game = Tightrope(width=4, grip=0.5)
    start = game.board("A--F"), [0]
    assert exact_play(game, start, 3, lambda *_: [(1.0, 1)]) == ([0, 0, 0.125], 0.125 - 0.5 * 0.875)
    assert LevelValues(game, start, 3).value(*start, 3) == (0, 0.125)
    with pytest.raises(OverflowError, match="more than 2 states"):
        exact_play(game, start, 3, lambda *_: [(0.5, 0), (0.5, 1)], most=2)


def test_who_may_stop_loses_nothing_by_it() -> None:
    """In a corner a box is lost: each further move costs 0.1, unless one may stop."""
    game = Sokoban(size=5)
    board = game.parse("#####\n#X__#\n#_P_#\n#_O_#\n#####")
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    assert LevelValues(game, (board, state), 4).value(board, state, 4) == pytest.approx((-0.4, 0))
    assert LevelValues(game, (board, state), 4, may_stop=True).value(board, state, 4) == (0, 0)


def test_tables_are_kept_up_to_a_size_those_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kept", module._Kept())
    lake = FrozenLake(size=5)
    boards = list(map(bytes, lake.generate(episode_keys(3, 0, 3), None)))
    first, second = (level_values(lake, board, 6) for board in boards[:2])
    assert level_values(FrozenLake(size=5), bytearray(boards[0]), 6) is first
    third = LevelValues(lake, (boards[2], lake.starts(np.frombuffer(boards[2], np.uint8)[None])[0].tolist()), 6)
    monkeypatch.setattr(module, "_KEPT_BYTES", first.nbytes + third.nbytes)
    third = level_values(lake, boards[2], 6)
    assert level_values(lake, boards[0], 6) is first
    assert level_values(lake, boards[2], 6) is third
    assert level_values(lake, boards[1], 6) is not second


def test_a_bandit_of_very_many_pulls_is_valued_as_far_as_moves_are_left() -> None:
    game = Bandit(pulls=2**31 - 1)
    board = bytes(game.generate(episode_keys(3, 0, 1), None)[0])
    assert LevelValues(game, (board, [0]), 40).value(board, [0], 40) == pytest.approx((10.0, 0.0))


class Opaque(Tightrope):
    """A game whose rule keeps its chances to itself."""

    noise_in_params: ClassVar[bool] = False


def test_a_game_without_exact_values_says_so() -> None:
    with pytest.raises(ValueError, match=r"no exact values: its rule compares .* Ask for no regret"):
        LevelValues(Opaque(width=4, grip=0.5), (b"", []), 1)


@pytest.mark.parametrize(
    ("moves", "found"),
    [
        ([], None),
        ([(0.0, 1.0), (0.0, 1.0)], None),
        ([(0.0, 0.5), (0.2, 0.3), (0.3, 0.0)], 1),
        ([(0.0, 0.5), (0.0, 0.0)], 1),
        ([(1e-12, 0.5), (0.0, 0.5)], None),
    ],
)
def test_the_pivot(moves: list[tuple[float, float]], found: int | None) -> None:
    assert pivot(moves) == found
