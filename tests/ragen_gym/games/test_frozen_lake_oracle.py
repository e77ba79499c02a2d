"""The oracle of FrozenLake against a search through everything, value iteration and shortest paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games.frozen_lake import FrozenLake, FrozenLakeSolution
from ragen_gym.games.values import LevelValues, exact_play, script_of
from ragen_gym.testing import games, states

Action = FrozenLake.Action


@given(games(FrozenLake).flatmap(lambda game: st.tuples(st.just(game), states(game))), st.integers(1, 8))
@settings(max_examples=25)
def test_the_oracle_against_trying_everything(drawn: tuple[Any, Any], actions_left: int) -> None:
    game, (board, state) = drawn
    solution, values = game.solve(board), LevelValues(game, (board, state), actions_left)
    said = solution.expected_return(board, state, actions_left), solution.success(board, state, actions_left)
    assert values.value(board, state, actions_left) == pytest.approx(said)
    won, total = exact_play(game, (board, state), actions_left, script_of(solution))
    assert (total, sum(won)) == pytest.approx(said)


@pytest.mark.parametrize("success_rate", [1 / 3, 0.8, 1.0])
def test_the_oracle_against_value_iteration_over_gymnasiums_table(success_rate: float) -> None:
    game = FrozenLake(success_rate=success_rate)
    for board in game.generate(episode_keys(9, 0, 5), None):
        text = game.own_text(bytes(board))
        desc = text.translate(str.maketrans("_OGP", "FHGS")).split("\n")
        table = FrozenLakeEnv(desc=desc, is_slippery=True, success_rate=success_rate).P
        value = np.zeros(16)
        start = text.replace("\n", "").index("P")
        solution, state = game.solve(bytes(board)), [text.index("P")]
        for actions_left in range(1, 41):
            value = np.array(
                [
                    max(sum(p * (r + value[t] * (not over)) for p, t, r, over in table[s][a]) for a in range(4))
                    for s in range(16)
                ]
            )
            assert solution.success(bytes(board), state, actions_left) == pytest.approx(value[start])


@pytest.mark.parametrize("success_rate", [0.0, 1 / 3, 0.8, 1.0])
def test_the_table_ends_where_a_further_action_changes_nothing(success_rate: float) -> None:
    game = FrozenLake(height=3, width=4, success_rate=success_rate)
    for board in map(bytes, game.generate(episode_keys(4, 0, 4), None)):
        solution, whole = FrozenLakeSolution(game, board), FrozenLakeSolution(game, board)
        ended = solution._row(10**9)
        whole._is_last = lambda *row: False  # type: ignore[method-assign]
        for actions_left in range(ended + 200):
            row, other = solution._row(actions_left), whole._row(actions_left)
            assert np.array_equal(solution._success[row], whole._success[other])
            assert np.array_equal(solution._actions[row], whole._actions[other])
        assert len(solution._success) == ended + 1 < 10_000


def test_a_budget_for_which_there_is_no_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_gym.games.frozen_lake._MOST_ROWS", 500)
    game = FrozenLake(success_rate=0.999999)
    board, state = game.parse("P_O_\n____\nO__O\n___G"), [0]
    solution = game.solve(board)
    assert solution.success(board, state, 500) > 0.9
    for ask in (solution.success, solution.expected_return, solution.action):
        with pytest.raises(ValueError, match=r"actions_left=501 is too many.*ask with up to 500"):
            ask(board, state, 501)
