"""Boards as text: exact in every format and vocabulary."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from ragen_gym.core.text import TextFormat, Vocabulary, replace_surrogates, without_controls
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import Game
from ragen_gym.games.grid import GridGame
from ragen_gym.games.registry import TABLE
from ragen_gym.testing import games, states

FORMATS: tuple[TextFormat, ...] = get_args(TextFormat)
GRID_GAMES = [name for name, spec in TABLE.items() if issubclass(spec.game_class, GridGame)]

LAKE = """\
P__O
____
_O__
___G"""

LAKE_IN_COORDINATES = """\
board 4x4
hole: (0,3) (2,1)
goal: (3,3)
player: (0,0)"""


def test_the_formats_by_hand() -> None:
    game = FrozenLake()
    board = game.parse(LAKE)
    assert list(board) == [3, 0, 0, 1, 255, 0, 0, 0, 0, 255, 0, 1, 0, 0, 255, 0, 0, 0, 2]
    assert game.formatter(game.own_vocabulary, "grid")(board) == LAKE
    assert game.formatter(game.own_vocabulary, "spaced")(board) == " P _ _ O\n _ _ _ _\n _ O _ _\n _ _ _ G"
    assert game.formatter(game.own_vocabulary, "coord")(board) == LAKE_IN_COORDINATES
    assert game.formatter(game.own_vocabulary, "grid_coord")(board) == f"{LAKE}\n{LAKE_IN_COORDINATES}"
    letters = game.vocabularies["letters"]
    assert game.formatter(letters, "grid")(board) == "SFFH\nFFFF\nFHFF\nFFFG"


@given(games(FrozenLake).flatmap(lambda game: st.tuples(st.just(game), states(game))), st.sampled_from(FORMATS))
def test_text_reads_back(drawn: tuple[Game, tuple[bytes, tuple[int, ...]]], text_format: TextFormat) -> None:
    game, (board, _) = drawn
    for vocabulary in (*game.vocabularies.values(), Vocabulary("emoji", "🧊🕳🏁🙂💀🎉"), Vocabulary("regex", "().[]*")):
        text = game.formatter(vocabulary, text_format)(board)
        assert game.parse(text, vocabulary, text_format) == board
        characters, shortest, longest = game.charset(vocabulary, text_format)
        assert set(text) <= characters
        assert shortest <= len(text) <= longest


@pytest.mark.parametrize("name", TABLE)
def test_text_spaces_are_tight(name: str) -> None:
    """No character that no text has, no length that no text has."""
    env = StepEnv(name)
    space = env.observation_space
    assert isinstance(space, spaces.Text)
    if isinstance(env.game, GridGame):
        area = env.game.height * (env.game.width + 1) - 1
        assert (space.min_length, space.max_length) == (area, area)
        assert set(space.character_set) == {*env.vocabulary.symbols, "\n"}
    else:
        texts = [env.reset(seed=seed)[0] for seed in range(400)]
        assert set(space.character_set) == set("".join(texts))
        lengths = [len(text) for text in texts]
        assert (space.min_length, space.max_length) == (min(lengths), max(lengths))


@given(st.text(max_size=80) | st.text(alphabet="_OGPX√\n", max_size=40) | st.text(alphabet="board 24x(,):\nhole"))
@example("board 99999999999x99999999999")
@example("board 0x0")
@example("board 4x4\nhole: (0,٣)")
@example("board 4x4\nhole: (0,3) (0,3)\ngoal: (1,1)\nplayer: (2,2)")
@example(LAKE + "\n" + LAKE_IN_COORDINATES.replace("(2,1)", "(2,2)"))
@example(LAKE)
@example(LAKE_IN_COORDINATES)
def test_what_is_read_is_a_board_or_a_value_error(text: str) -> None:
    game = FrozenLake()
    for text_format in FORMATS:
        try:
            board = game.parse(text, None, text_format)
        except ValueError:
            continue
        assert game.parse(game.formatter(game.own_vocabulary, text_format)(board), None, text_format) == board


@pytest.mark.parametrize(
    ("text", "text_format", "message"),
    [
        ("board four", "coord", "starts with a line like 'board 4x4', not 'board four'"),
        (
            "board 4x4\nholes: (0,1)",
            "coord",
            r"cannot read 'holes: \(0,1\)'; write for example 'hole: \(0,1\) \(2,3\)'",
        ),
        ("board 4x4\nhole: (0,4)", "coord", r"hole at \(0,4\) is off the 4x4 board, or the place is taken"),
        ("board 4x4\nhole: (0,1)\ngoal: (0,1)", "coord", "or the place is taken"),
        ("board 2x2\nplayer: (0,0)\ngoal: (0,1)", "coord", "the board is 2x2, this environment plays 4x4"),
        (
            f"{LAKE} ? _",
            "spaced",
            r"the rows of a board must be equally long and not empty; got lengths \[4, 4, 4, 6\]",
        ),
        (LAKE, "grid_coord", "starts with a line like 'board 4x4'"),
        (f"{LAKE}\n{LAKE_IN_COORDINATES.replace('(2,1)', '(2,2)')}", "grid_coord", "are two different boards"),
    ],
)
def test_bad_texts(text: str, text_format: TextFormat, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenLake().parse(text, None, text_format)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("_OGPP√", "'P' stands for two tiles; give each tile a symbol of its own"),
        (("_", "O", "G", "P", "XX", "√"), "'XX' is not one visible character; give each tile exactly one"),
        ("\nOGPX√", r"'\\n' is not one visible character"),
    ],
)
def test_bad_vocabularies(symbols: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"vocabulary 'mine': {message}"):
        Vocabulary("mine", symbols)


@pytest.mark.parametrize("name", GRID_GAMES)
def test_a_vocabulary_changes_the_text_alone(name: str) -> None:
    plain = StepEnv(name)
    plain.reset(seed=4)
    for vocabulary in plain.game.vocabularies.values():
        env = StepEnv(name, vocabulary=vocabulary)
        text, info = env.reset(seed=4)
        assert info["level_id"] == plain.level.id
        assert env.state == plain.state
        assert text == vocabulary_text(plain, vocabulary)


def vocabulary_text(env: StepEnv, vocabulary: Vocabulary) -> str:
    """The text of an environment's board, symbol by symbol."""
    translate = dict(zip(env.vocabulary.symbols, vocabulary.symbols, strict=True))
    return "".join(translate.get(symbol, symbol) for symbol in env.text)


@given(st.text())
def test_no_text_controls_the_terminal(text: str) -> None:
    assert all(character.isprintable() or character == "\n" for character in without_controls(text))
    assert without_controls("\x1b[2Jx\n") == "\N{REPLACEMENT CHARACTER}[2Jx\n"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
        ("\ufeffé\U0001f600", "\ufeffé\U0001f600"),
    ],
)
def test_half_a_surrogate_pair_is_replaced(text: str, clean: str) -> None:
    assert replace_surrogates(text) == clean
