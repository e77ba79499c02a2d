"""Levels that are given: in every vocabulary and format, of several sizes, and from every kind of file."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_gym import StepEnv, make_turn
from ragen_gym.cli import main
from ragen_gym.core.text import TEXT_FORMATS, Vocabulary
from ragen_gym.envs.vector import BatchEnv
from ragen_gym.games.registry import TABLE
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.multiagent import parallel_env
from ragen_gym.testing import boards

ROOM = "#######\n#P_X_O#\n#__#__#\n#######"
SMALL = "#####\n#PXO#\n#####"
SOLVED = "#####\n#@* #\n#####"
LAKES = "P___\n_O__\n___O\n___G\n\nP____\n_O___\n___O_\n____O\nG____\n"
SIZES = "\n\n".join(f"#{'#' * n}#\n#@$.{' ' * (n - 3)}#\n#{'#' * n}#" for n in (3, 5, 8))
#: Ice, hole, goal and player, each in the symbol of another.
TURNED = Vocabulary("turned", "O_PGX√")


def shapes(name: str) -> list[dict[str, Any]]:
    """Options of small boards that are not square, where the game has such."""
    return [{}, {"height": 5, "width": 7}] if TABLE[name].game_class.layout == "grid" else [{}]


SHOWN = [
    (name, options, vocabulary, text_format)
    for name, spec in TABLE.items()
    for options in shapes(name)
    for vocabulary in (*spec.game_class.vocabularies, *([TURNED] if name == "FrozenLake" else []))
    for text_format in (TEXT_FORMATS if spec.game_class.layout == "grid" else ("grid",))
]


@pytest.mark.parametrize(("name", "options", "vocabulary", "text_format"), SHOWN, ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_what_is_shown_is_read(
    name: str, options: dict[str, Any], vocabulary: Any, text_format: Any, data: st.DataObject
) -> None:
    shown = StepEnv(name, vocabulary=vocabulary, text_format=text_format, **options)
    board = data.draw(boards(shown.game))
    text, info = shown.reset(seed=0, options={"level": shown.game.level(board)})
    again, read = shown.reset(seed=1, options={"level": text})
    assert (again, read["level_id"]) == (text, info["level_id"])
    if vocabulary == TURNED and text_format != "coord":
        return  # which the environments below would read in their own vocabularies
    second, its_info = shown.reset(seed=2, options={"level": shown.game.level(data.draw(boards(shown.game)))})
    both = StepEnv(name, levels=f"; two of them\n{text}\n\n\n{second}\n")
    for place, level_id in enumerate((info["level_id"], its_info["level_id"])):
        assert both.reset(seed=0, options={"level": place})[1]["level_id"] == level_id
    for other in (StepEnv(name, levels=[text]), StepEnv(name, levels=text), BatchEnv(name, levels=[text])):
        assert np.atleast_1d(other.reset(seed=0)[1]["level_id"])[0] == info["level_id"]
    if isinstance(vocabulary, str):
        same = StepEnv(name, vocabulary=vocabulary, levels=[text])
        assert same.reset(seed=0)[1]["level_id"] == info["level_id"]


def test_the_vocabulary_of_the_environment_decides() -> None:
    text = "P_OG"  # either end may be the player, and either sign the ice
    level = f"{text}\n____"
    plain = StepEnv("FrozenLake", levels=[level])
    turned = StepEnv("FrozenLake", levels=[level], vocabulary=TURNED)
    assert (plain.reset(seed=0)[0], turned.reset(seed=0)[0]) == (level, level)
    assert str(plain.level) == level
    assert str(turned.level) == "GO_P\nOOOO"
    exported = StepEnv("FrozenLake", levels=[plain.level], vocabulary=TURNED)
    assert exported.reset(seed=0)[1]["level_id"] == plain.level.id


class TwoWays(Sokoban):
    """Sokoban with two vocabularies of the same symbols."""

    vocabularies = {**Sokoban.vocabularies, "other": Vocabulary("other", "#_XSOP√")}  # noqa: RUF012


def test_a_board_that_means_two_things_is_refused() -> None:
    with pytest.raises(ValueError, match=r"means different things in the vocabularies ragen, other: make the"):
        TwoWays(height=3, width=6).board("######\n#PXO_#\n######")
    assert StepEnv("Sokoban", levels=[ROOM]).game.board(ROOM)


MAP = ["SFFF", "FFHF", "HFFF", "FFFG"]
GIVEN: list[dict[str, Any]] = [
    {"desc": MAP},
    {"desc": np.asarray(MAP, dtype="c")},
    {"desc": np.asarray(MAP)},
    {"desc": [list(row) for row in MAP]},
    {"desc": [row.encode() for row in MAP], "map_name": None},
    {"desc": MAP, "map_name": "8x8"},
    {"desc": "\n".join(MAP)},
    {"levels": MAP},
    {"levels": [MAP]},
    {"levels": [np.asarray(MAP, dtype="c")]},
    {"levels": "\n".join(MAP)},
    {"levels": [{"text": "\n".join(MAP)}]},
]


@pytest.mark.parametrize("kwargs", GIVEN, ids=str)
def test_gymnasiums_own_lakes(kwargs: dict[str, Any]) -> None:
    envs: list[Any] = [gymnasium.make("ragen/FrozenLake-v0", **kwargs), make_turn("FrozenLake", **kwargs)]
    for env in envs:
        env.reset(seed=3)
        assert str(env.unwrapped.level) == "P___\n__O_\nO___\n___G"
    assert BatchEnv("FrozenLake", **kwargs).reset(seed=0)[0] == ("P___\n__O_\nO___\n___G",)


@pytest.mark.parametrize("name", MAPS)
def test_gymnasiums_maps_by_name(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = StepEnv("FrozenLake", map_name=name, vocabulary="letters").reset(seed=0)[0]
    assert own == "\n".join(MAPS[name])
    monkeypatch.setattr("sys.stdin", StringIO())
    for option in (f"map_name={name}", f"desc={json.dumps(MAPS[name])}"):
        assert main(["play", "FrozenLake", "--option", option, "--vocabulary", "letters"]) == 0
        assert own in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"map_name": None}, r"map_name=None is not a map: choose one of 4x4, 8x8; for random lakes give size"),
        ({"desc": MAP, "levels": [LAKES]}, "is given next to .*: give one of them"),
        ({"desc": ["SFFF", "FFQG"]}, "unknown symbol 'Q' in a board; vocabulary .*'letters' has F H G S D W"),
        ({"desc": ["SFF", "FFFG"]}, "equally long and not empty; got lengths"),
        ({"desc": [[3]]}, "is not a row of a board"),
        ({"desc": MAP, "size": 6}, r"make it with height=4, width=4\.\nWithout height, width and size, each level is"),
        ({"desc": MAP, "is_slippery": False}, "Here is_slippery is success_rate: 1 for False, 1/3 for True"),
        ({"reward_schedule": (1, 0, 0)}, "reward_schedule is fixed: 1 for the goal, 0 for anything else"),
    ],
    ids=str,
)
def test_lakes_that_are_refused(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        StepEnv("FrozenLake", **kwargs)


@pytest.mark.parametrize(("name", "text", "count"), [("FrozenLake", LAKES, 2), ("Sokoban", SIZES, 3)])
def test_levels_of_several_sizes_are_each_played_at_their_own(name: str, text: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "levels.txt"
    path.write_text(text, encoding="utf-8")
    env = StepEnv(name, levels=path, regret=5, render_mode="rgb_array")
    alone = [StepEnv(name, levels=[board]) for board in text.strip().split("\n\n")]
    shown = [each.reset(seed=0)[0] for each in alone]
    for place in (*range(count), *reversed(range(count))):
        observation, info = env.reset(seed=place, options={"level": place})
        assert observation == shown[place]
        assert observation in env.observation_space
        assert info["level_id"] == alone[place].level.id
        assert env.game == alone[place].game
        assert env.render().shape == env.render().shape
        alone[place].reset(seed=place)
        for left in range(4, 0, -1):
            action = alone[place].oracle_action(left)
            assert env.oracle_action(left) == action
            step, other = env.step(action), alone[place].step(action)
            assert step[:4] == other[:4]
            assert (step[4]["action_mask"] == other[4]["action_mask"]).all()
            assert not np.isnan(step[4]["regret"])
            if step[2]:
                break
    assert {env.reset(seed=seed)[0] for seed in range(30)} == set(shown)
    families = {family for each in alone for family in each.level_families([0])}
    assert set(env.level_families(range(30))) == families
    assert len(families) == count


def test_turns_on_levels_of_several_sizes() -> None:
    env = make_turn("Sokoban", levels=SIZES, grounding=True, vocabulary="xsb", state_format="coordinates")
    for place in (0, 2, 1, 0):
        message, _ = env.reset(seed=0, options={"level": place})
        assert env.board in message
        assert message in env.observation_space
        assert env.state_text.write(env.env.state[0]).startswith("player: (1,1)")
        assert env.oracle_action() == 3
    with pytest.raises(
        ValueError, match=r"from 3x5 to 3x10, and observation='image' needs one size. height=3, width=10"
    ):
        make_turn("Sokoban", levels=SIZES, observation="image")


def test_a_batch_of_several_sizes_is_gymnasiums_own() -> None:
    with pytest.raises(ValueError, match=r"a native batch needs one size.*vectorization_mode='sync'"):
        gymnasium.make_vec("ragen/Sokoban-v0", 4, levels=SIZES)
    envs = gymnasium.make_vec("ragen/Sokoban-v0", 4, levels=SIZES, vectorization_mode="sync")
    alone = [gymnasium.make("ragen/Sokoban-v0", levels=SIZES).reset(seed=7 + i)[0] for i in range(4)]
    assert list(envs.reset(seed=7)[0]) == alone
    assert len(set(map(len, alone))) > 1


@pytest.mark.parametrize("observation", ["grid", "rgb"])
def test_grids_name_the_size_that_fits_all(observation: Any) -> None:
    for make in (StepEnv, BatchEnv):
        with pytest.raises(ValueError, match=r"from 3x5 to 3x10, and .* needs one size. height=3, width=10 fits all"):
            make("Sokoban", levels=SIZES, observation=observation)
        with pytest.raises(ValueError, match=r"from 4x4 to 5x5, and .* needs one size. Else give levels of one size"):
            make("FrozenLake", levels=LAKES, observation=observation)
    with pytest.raises(ValueError, match="several players needs one size"):
        parallel_env("Sokoban", levels=SIZES)
    env = StepEnv("Sokoban", levels=SIZES, observation=observation, height=3, width=10)
    assert {env.reset(seed=seed)[0].shape for seed in range(9)} == {env.observation_space.shape}


def test_a_size_that_is_given_is_kept_and_nothing_else_fills_a_board() -> None:
    assert StepEnv("Sokoban", levels=[SMALL], size=6).reset(seed=0)[0].count("\n") == 5
    assert StepEnv("Sokoban", levels=[SMALL]).reset(seed=0)[0] == SMALL
    assert StepEnv("LargeSokoban", levels=[SMALL]).reset(seed=0)[0] == SMALL
    with pytest.raises(
        ValueError, match="the board is 3x5, this environment plays 6x6; make it with height=3, width=5"
    ):
        StepEnv("Sokoban").reset(options={"level": SMALL})
    with pytest.raises(ValueError, match="the board is 3x5, this environment plays 6x6"):
        parallel_env("Sokoban").reset(options={"level": SMALL})
    with pytest.raises(
        ValueError, match=r"(?s)2 of 3 levels.*\nheight=3, width=10 fits all of them .* at its own size"
    ):
        StepEnv("Sokoban", levels=SIZES, height=3, width=6)


def test_levels_that_cannot_be_played_are_named_and_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "levels.txt"
    bad = [SOLVED, "#####\n#@$ #\n#####", "#####\n#@$.\n#####", "#####\n#@$?#\n#####", "##\n##"]
    path.write_text("\n\n".join([*bad, "#####\n#@$.#\n#####"]), encoding="utf-8")
    says = (
        r"(?s)5 of 6 levels cannot be played:\n.*level at line 1: .*over already.*line 5: .*1 and 0.*line 9: .*do not "
    )
    with pytest.raises(ValueError, match=says + r"close.*\nand 2 more.\n.*skip_invalid=True"):
        StepEnv("Sokoban", levels=path)
    makers: list[Any] = [StepEnv, make_turn]
    for make in makers:
        env = make("Sokoban", levels=path, skip_invalid=True)
        env.reset(seed=0)
        assert str(env.level) == SMALL
    skipped = StepEnv("Sokoban", levels=path, skip_invalid=True).skipped_levels
    assert [line.split("line ")[1].split(":")[0] for line in skipped] == ["1", "5", "9", "13", "17"]
    assert BatchEnv("Sokoban", levels=path, skip_invalid=True).reset(seed=0)[0] == (SMALL,)
    with pytest.raises(ValueError, match=r"(?s)2 of 2 levels cannot be played.*starts before that\.$"):
        StepEnv("Sokoban", levels=[SOLVED, SOLVED], skip_invalid=True)


XML = """<?xml version="1.0"?>
<SokobanLevels><Title>A &amp; B</Title><LevelCollection>
<Level Id="one" Width="7" Height="4"><L>#######</L><L>#@ $ .#</L>
<L>#  #  #</L><L>#######</L></Level>
</LevelCollection></SokobanLevels>"""

FORMS: dict[str, str | bytes] = {
    "run lengths": "7#\n#@-$-.#\n#2-#2-#\n7#",
    "ends of rows": "#######|#@-$-.#|#--#--#|#######",
    "between bars": "|#######|\n|#@ $ .#|\n|#  #  #|\n|#######|",
    "a level to a line": "7#|#@-$-.#|#2-#2-#|7#\n7#|#@-$-.#|#2-#2-#|7#",
    "a heading": "# my levels\n\n#######\n#@ $ .#\n#  #  #\n#######",
    "tabs": "\t#######\n\t#@ $ .#\n\t#  #  #\n\t#######",
    "mark": "\ufeff#######\r\n#@ $ .#\r\n#  #  #\r\n#######\r\n",
    "titles": "My levels\n10\n#######\n#@ $ .#\n#  #  #\n#######\nTitle: 1\nlurdLURD\n",
    "a fence": "```\n#######\n#@ $ .#\n#  #  #\n#######\n```\n",
    "spaced": " # # # # # # #\n # P _ X _ O #\n # _ _ # _ _ #\n # # # # # # #",
    "digits": "0000000\n0514120\n0110110\n0000000",
    "XML": XML,
    "JSON": json.dumps([ROOM]),
    "JSON with rows": json.dumps([ROOM.split("\n")]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["file", "text", "solve"])
def test_the_forms_of_level_files(form: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = FORMS[form]
    path = tmp_path / "levels.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if way == "file":
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        assert StepEnv("Sokoban", levels="~/levels.txt").reset(seed=0)[0] == ROOM
        assert StepEnv("Sokoban", levels=path).reset(seed=0)[0] == ROOM
    elif way == "text" and isinstance(content, str) and "\n" in content:
        assert StepEnv("Sokoban", levels=content).reset(seed=0)[0] == ROOM
    elif way == "solve":
        assert main(["solve", "Sokoban", str(path), "--json"]) == 0


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "holds no board: write one row a line"),
    "tabs within rows": ("#######\n#@\t$ .#\n#######", "holds a tab within a row: write spaces"),
    "other XML": ("<?xml version='1.0'?>\n<Row>#####</Row>", "holds no board"),
    "numbers": ("[[1, 2], [3, 4]]", "is not a row of a board"),
    "more boxes": ("######\n#@$$.#\n######", "this one has 2 and 1"),
    "too large": (
        "#" * 70 + "\n#@$." + " " * 65 + "#\n" + "#" * 70,
        "the board has 3 rows, the longest of 70 cells or more; a side has at most 64 cells",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_forms_of_level_files_that_are_refused_by_name(case: str, tmp_path: Path) -> None:
    content, says = REFUSED[case]
    path = tmp_path / "levels.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=says):
        StepEnv("Sokoban", levels=path)
    with pytest.raises(ValueError, match=r"is a folder, not a file: give one file"):
        StepEnv("Sokoban", levels=tmp_path)


def test_what_follows_an_environment_plays_at_the_size_of_its_level() -> None:
    levels = ["P_\n_G", "P__\n___\n__G"]
    shown, scored = (make_turn("FrozenLake", levels=levels, success_rate=1) for _ in range(2))
    for seed in range(6):
        scored.reset(seed=seed)
        shown.follow(scored, noise_seed=1)
        assert shown.env.text == scored.env.text
        assert shown.game.height == scored.game.height == shown.state_text.game.height
        assert shown.oracle_action() == scored.oracle_action()
