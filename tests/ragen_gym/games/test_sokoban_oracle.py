"""The oracle of Sokoban against searches through everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragen_gym.core.seeding import episode_keys
from ragen_gym.games.game import NotSolvedError
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.games.sokoban.solve import Plan, SokobanSolution, find_plan
from ragen_gym.games.values import LevelValues, exact_play, script_of
from tests.ragen_gym.games.slow_warehouse import SlowWarehouse

Action = Sokoban.Action


@st.composite
def boards(draw: st.DrawFn, boxes: int = 3) -> tuple[Sokoban, bytes]:
    """Boards with anything anywhere, most of them without a solution."""
    height, width = draw(st.integers(3, 6)), draw(st.integers(5, 6))
    inner = (height - 2) * (width - 2)
    count = draw(st.integers(1, min(boxes, (inner - 1) // 2)))
    free = draw(st.integers(2 * count + 1, inner))
    tiles = draw(st.permutations("P" + count * "X" + count * "O" + (free - 2 * count - 1) * "_" + (inner - free) * "#"))
    if draw(st.booleans()) and count > 1:
        tiles[tiles.index("X")], tiles[tiles.index("O")] = "√", "_"
    rows = ["".join(tiles[i : i + width - 2]) for i in range(0, inner, width - 2)]
    text = "\n".join(["#" * width, *(f"#{row}#" for row in rows), "#" * width])
    game = Sokoban(height=height, width=width)
    return game, game.parse(text)


def play(game: Sokoban, board: bytes, plan: Plan) -> tuple[bool, int]:
    """(whether the plan ends the game with its last action, pushes) by the slow rules."""
    slow = SlowWarehouse(game.own_text(board))
    pushes, won = 0, slow.boxes == slow.targets
    for action in plan.actions:
        assert not won
        before = slow.boxes
        _, won = slow.step(Action(action).name.capitalize())
        pushes += slow.boxes != before
    return won, pushes


@given(boards())
@settings(max_examples=300)
def test_plans_are_as_short_as_dijkstras(drawn: tuple[Sokoban, bytes]) -> None:
    game, board = drawn
    slow = SlowWarehouse(game.own_text(board))
    plan, fewest = find_plan(board, game.width), slow.fewest()
    if fewest is None:
        assert plan is None
        return
    assert plan is not None
    assert plan.moves == fewest
    assert play(game, board, plan) == (True, plan.pushes)
    assert find_plan(board, game.width, within=plan.moves) == plan
    assert find_plan(board, game.width, within=plan.moves - 1) is None


@given(boards(), st.integers(0, 8))
@settings(max_examples=150)
def test_every_answer_against_trying_everything(drawn: tuple[Sokoban, bytes], actions_left: int) -> None:
    game, board = drawn
    assume(not game.over(board))
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    solution, values = game.solve(board), LevelValues(game, (board, state), actions_left)
    said = solution.expected_return(board, state, actions_left), solution.success(board, state, actions_left)
    assert values.value(board, state, actions_left) == pytest.approx(said)
    assert solution.action(board, state, actions_left) in list(Action)
    if said[1]:
        won, total = exact_play(game, (board, state), actions_left, script_of(solution))
        assert (total, sum(won)) == pytest.approx(said)


@pytest.mark.parametrize("kwargs", [{}, {"size": 8, "boxes": 3, "generator": "reverse_walk"}], ids=str)
def test_a_plan_is_searched_for_once_and_followed_to_its_end(
    kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Plan | None] = []

    def counted(*args: Any, **options: Any) -> Plan | None:
        searches.append(find_plan(*args, **options))
        return searches[-1]

    monkeypatch.setattr("ragen_gym.games.sokoban.solve.find_plan", counted)
    game = Sokoban(**kwargs)
    for start in game.generate(episode_keys(5, 0, 20), None):
        searches.clear()
        board, state = bytearray(start), game.starts(start[None])[0].tolist()
        solution = game.solve(bytes(start))
        assert isinstance(solution, SokobanSolution)
        moves = int(solution.moves(board, state))
        total, expected = 0.0, solution.expected_return(board, state, moves)
        assert solution.success(board, state, moves - 1) == 0
        for left in range(moves, 0, -1):
            assert solution.success(board, state, left) == 1
            reward, outcome = game.rule(board, state, solution.action(board, state, left), 0.0, game.params)
            total += reward
            assert (outcome == 2) == (left == 1)
        assert total == pytest.approx(expected)
        assert len(searches) == 1


HARD = """
##########
#________#
#_X_X_X__#
#________#
#_X_P_X__#
#________#
#_O_O_O__#
#_O_O____#
#________#
##########
"""


def test_a_search_that_is_cut_short_says_so() -> None:
    game = Sokoban(size=10)
    board = game.parse(HARD)
    with pytest.raises(NotSolvedError, match="not solved within 1000 nodes") as raised:
        find_plan(board, game.width, max_nodes=1000)
    assert raised.value.nodes == 1000
    state = game.starts(np.frombuffer(board, np.uint8)[None])[0].tolist()
    solution = SokobanSolution(game, board, max_nodes=1000)
    assert solution.success(board, state, 10) == 0  # no plan is so short, and that takes few nodes to see
    with pytest.raises(NotSolvedError):
        solution.action(board, state, 10)


def test_limits_out_of_range_are_refused() -> None:
    game = Sokoban()
    board = bytes(game.generate(episode_keys(1, 0, 1), None)[0])
    for nodes in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match=r"max_nodes=.* must be an integer from 1"):
            find_plan(board, 6, max_nodes=nodes)  # type: ignore[arg-type]
    for within in (-1, 1.5):
        with pytest.raises(ValueError, match=r"within=.* must be None or an integer from 0"):
            find_plan(board, 6, within=within)  # type: ignore[arg-type]
