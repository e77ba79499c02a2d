"""Sokoban's levels: the generators, splits, level texts and files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ragen_gym.core.seeding import episode_keys
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.given_levels import given_levels
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.games.sokoban.generate import work_arrays
from ragen_gym.games.sokoban.reverse_play import explore
from ragen_gym.games.sokoban.rules import most_boxes
from ragen_gym.games.sokoban.solve import find_plan
from tests.ragen_gym.games.slow_warehouse import pull_search

LARGE = {"height": 8, "width": 8, "boxes": 2, "search_depth": 10}


@st.composite
def rooms(draw: st.DrawFn) -> tuple[Sokoban, bytes, list[int], int]:
    """(game, room with targets, targets, player) with walls anywhere."""
    height, width, boxes = draw(st.integers(4, 7)), draw(st.integers(4, 7)), draw(st.integers(1, 3))
    stride = width + 1
    inner = [r * stride + c for r in range(1, height - 1) for c in range(1, width - 1)]
    assume(boxes <= most_boxes(height, width))
    walls = draw(st.sets(st.sampled_from(inner), max_size=len(inner) // 3))
    floor = [cell for cell in inner if cell not in walls]
    assume(len(floor) > boxes)
    cells = draw(st.permutations(floor))
    game = Sokoban(height=height, width=width, boxes=boxes, search_depth=draw(st.integers(2, 11)))
    room = bytearray(255 if i % stride == width else 0 for i in range(game.cells))
    for cell in floor:
        room[cell] = 1
    for cell in cells[:boxes]:
        room[cell] = 2
    return game, bytes(room), cells[:boxes], cells[boxes]


@given(rooms())
@settings(max_examples=150)
def test_reverse_play_finds_what_a_plain_recursion_finds(drawn: tuple[Sokoban, bytes, list[int], int]) -> None:
    game, room, targets, player = drawn
    boxes, cells, stack, explored, seen = work_arrays(game)
    boxes[0] = targets
    ground = np.frombuffer(room, np.uint8)
    found = explore(ground, game.width + 1, player, game.search_depth, boxes, cells[2], stack, explored, seen)
    assert (cells[2] == -1).all()
    place = [divmod(cell, game.width + 1) for cell in (*targets, player)]
    floor = {divmod(cell, game.width + 1) for cell, tile in enumerate(room) if tile in (1, 2)}
    score, slow_player, slow_boxes, apart = pull_search(floor, place[:-1], place[-1], game.search_depth)
    assert found[1] == apart
    if score:
        assert divmod(int(found[0]), game.width + 1) == slow_player
        assert [divmod(int(cell), game.width + 1) for cell in boxes[2]] == slow_boxes


@pytest.mark.parametrize(
    ("kwargs", "moves", "pushes", "floor"),
    # means over 4,000 and 2,700 boards of the paper's code
    [({}, 4.11, 2.07, 10.63), (LARGE, 5.78, 3.32, 18.15)],
    ids=["Sokoban", "LargeSokoban"],
)
def test_reverse_play_has_the_distribution_of_the_papers_code(
    kwargs: dict[str, Any], moves: float, pushes: float, floor: float
) -> None:
    game = Sokoban(**kwargs)
    boards = game.generate(episode_keys(7, 0, 4000), None)
    plans = [find_plan(bytes(board), game.width) for board in boards]
    assert np.mean([plan.moves for plan in plans if plan]) == pytest.approx(moves, abs=0.15)
    assert np.mean([plan.pushes for plan in plans if plan]) == pytest.approx(pushes, abs=0.08)
    assert ((boards > 0) & (boards < 255)).sum(axis=1).mean() == pytest.approx(floor, abs=0.2)


CASES: list[dict[str, Any]] = [
    {},
    LARGE,
    {"generator": "reverse_walk"},
    {"generator": "reverse_walk", "height": 5, "width": 9, "boxes": 3},
    {"min_moves": 4, "max_moves": 7},
    {**LARGE, "min_moves": 8},
    {"generator": "reverse_walk", "height": 7, "width": 7, "boxes": 2, "min_moves": 9},
]


@pytest.mark.parametrize("kwargs", CASES, ids=str)
def test_every_level_is_solvable_and_keeps_the_options(kwargs: dict[str, Any]) -> None:
    game = Sokoban(**kwargs)
    for board in map(bytes, game.generate(episode_keys(11, 0, 150), None)):
        assert game.parse(game.own_text(board)) == board
        assert board.count(Sokoban.Tile.BOX) == game.boxes
        plan = find_plan(board, game.width)
        assert plan is not None
        assert (game.min_moves or 0) <= plan.moves <= (game.max_moves or 1000)


#: As collections on the web look: a head, comments over several lines, titles on either side, no blank lines between.
ON_THE_WEB = """\
::: Collection: Gen\u00e8ve :::
------------------------------------

Title: Small steps
Author: S. Omebody
Comment:
A first level. Push $ onto .
Comment-End:
1
#####
#@$.#
#####
Title: 1

; 2
  ####
  #  #
  #$ #
###  #
#.@ ##
#####
Title: \u00ab2\u00bb
Solution: urDldLdL

Level 3
#######
#+$ *$#
# ##. #
#######
; 4
; 4 'again'
#######
#@ $.##
#######
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_collection_as_it_is_found_on_the_web(encoding: str, newline: str, tmp_path: Path) -> None:
    path = tmp_path / "collection.txt"
    path.write_text(ON_THE_WEB, encoding=encoding, newline=newline)
    game = Sokoban(height=6, width=7)
    rows = [game.own_text(board).split("\n") for board in given_levels(game, path, None).boards]
    assert [board[:4] for board in rows] == [
        ["#######", "#PXO###", "#######", "#######"],
        ["#######", "###__##", "###X_##", "###__##"],
        ["#######", "#SX_√X#", "#_##O_#", "#######"],
        ["#######", "#P_XO##", "#######", "#######"],
    ]
    env = StepEnv("Sokoban", height=6, width=7, levels=path)
    assert len({env.reset(seed=seed)[0] for seed in range(40)}) == 4


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ("######\n#PP__#\n#_X__#\n#__O_#\n#____#\n######", "one player; this one has 2"),
        ("######\n#____#\n#_X__#\n#__O_#\n#____#\n######", "one player; this one has 0"),
        ("######\n#P___#\n#____#\n#____#\n#____#\n######", "as many targets; this one has 0 and 0"),
        ("######\n#P_X_#\n#_X__#\n#__O_#\n#____#\n######", "this one has 2 and 1"),
        ("######\n#P_√_#\n#____#\n#____#\n#____#\n######", "over already"),
        ("######\n#P_X_#\n#____#\n#__O__\n#____#\n######", "every cell on the edge"),
        ("#####\n#PXO#\n#####", r"make it with height=3, width=5, or with levels=\[...\]"),
        ("######\n#PXO_#\n###\n######\n######\n######", "equally long"),
        ("######\n#PQO_#\n#____#\n#____#\n#____#\n######", "written in the symbols of one of"),
        ("######\n#@XO #\n#    #\n#    #\n#    #\n######", "written in the symbols of one of"),
        ("######\n#@$.  \n#    #\n#    #\n#    #\n######", "can be reached from beyond the edge"),
        ("#######\n#@$.  #\n#######", "the board is 3x7, this environment plays 6x6; make it with height=3, width=7"),
        ("", "symbols|one player|rows"),
    ],
)
def test_boards_that_are_none_are_refused(level: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StepEnv("Sokoban").reset(options={"level": level})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("######\n#PXO_#\n######\n######\n######\n##x###", "level at line 1: .*this one is not:\n######\n.*\n##x###"),
        ("Title\n\n######\n#PXX_#\n######\n", "level at line 3: .*this one has 2 and 0"),
        ("; nothing\n", "holds no board"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "levels.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"(?s){says}"):
        StepEnv("Sokoban", levels=path)
    with pytest.raises(ValueError, match="is not a file"):
        StepEnv("Sokoban", levels=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"height": 2}, "height=2 must be an integer from 3 to 64"),
        ({"width": 65}, "width=65"),
        ({"width": True}, "width=True"),
        ({"boxes": 0}, "boxes=0"),
        ({"boxes": 5, "size": 5}, "boxes=5 do not fit on height=5, width=5.* set boxes to 4 or fewer, or make"),
        ({"size": 3}, "boxes=1 do not fit on height=3, width=3.* three cells in a line; make the board larger"),
        ({"size": 4}, "boxes=1 do not fit on height=4, width=4.* three cells in a line; make the board larger"),
        ({"boxes": 3, "max_moves": 2}, "max_moves=2 is below boxes=3: every box starts off target"),
        ({"search_depth": 1}, "search_depth=1"),
        ({"walk_steps": 0}, "walk_steps=0"),
        ({"generator": "magic"}, "one of reverse_play, reverse_walk"),
        ({"min_moves": 0}, "min_moves=0"),
        ({"min_moves": 5, "max_moves": 4}, "min_moves=5 is above max_moves=4"),
    ],
)
def test_options_out_of_range_are_refused(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StepEnv("Sokoban", **kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": 9, "boxes": 24},
        {"min_moves": 500},
        {"height": 3, "width": 5, "min_moves": 3},
        {"generator": "reverse_walk", "walk_steps": 1, "boxes": 4},
    ],
    ids=str,
)
def test_options_that_no_level_meets_end_in_an_error_that_names_them(kwargs: dict[str, Any]) -> None:
    env = StepEnv("Sokoban", **kwargs)
    with pytest.raises(ValueError, match="Sokoban: no level in") as raised:
        env.reset(seed=0)
    for option in kwargs:
        assert (option if option != "size" else "height") + "=" in str(raised.value)


@pytest.mark.parametrize("preset", Sokoban.presets)
@pytest.mark.parametrize("name", ["Sokoban", "LargeSokoban", "NewVocab"])
def test_presets_can_be_solved_within_the_horizon(name: str, preset: str) -> None:
    env = StepEnv(name, preset=preset)
    for seed in range(20):
        env.reset(seed=seed)
        assert env.solution().success(*env.state, 10) == 1
