"""Levels: identity, splits, files."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.core.levels import (
    SPLIT_SALT,
    SPLITS,
    Level,
    fnv,
    read_levels,
    split_of_hash,
    text_hash,
    write_levels,
)
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.games import kernels
from ragen_gym.games.bandit import SPLIT_OF_PAIR, Bandit
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import Game
from ragen_gym.games.given_levels import given_levels
from ragen_gym.games.grid import GridGame
from ragen_gym.games.registry import TABLE, build_game
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.testing import boards, games

# Names of levels and their splits in both versions, for ever: a level that changes its split would leak.
FROZEN = [
    ("FrozenLake", "P___\n_O__\n__O_\n___G", "e182408ef6bd5171", "train"),
    ("FrozenLake", "PO\n_G", "380044335d6124ef", "train"),
    ("FrozenLake", "P_G\nO__\n_O_", "cb608e9c4c15d504", "train"),
    ("FrozenLake", "P_OG\n__O_\n____\nO__O", "acf419401bb00499", "train"),
    ("FrozenLake", "G_O\n__P", "5c47e092804ed131", "train"),
    ("FrozenLake", "___OP_\n______\nOO_O__\n___G__\n__O___\n______", "32499679b31ff217", "train"),
    ("FrozenLake", "__P\n___\n__G", "44107a1a9e4b216c", "validation"),
    ("FrozenLake", "___O\n___P\n____\nO_GO", "308b7e269b501565", "test"),
    ("Sokoban", "######\n#_#__#\n#_XO_#\n#P___#\n####_#\n######", "166ffe00ec7b94ef", "test"),
    ("Sokoban", "#####\n#__##\n#_XP#\n#O__#\n#####", "a9f7dd449b2817c7", "validation"),
]

FNV_1A = {"": 0xCBF29CE484222325, "a": 0xAF63DC4C8601EC8C, "foobar": 0x85944171F73967E8}


def slow_symmetries(rows: list[str]) -> list[list[str]]:
    """The eight rotations and reflections of a board, by turning and mirroring it."""
    found = []
    for _ in range(4):
        rows = ["".join(column) for column in zip(*rows[::-1], strict=True)]
        found += [rows, [row[::-1] for row in rows]]
    return found


def some_boards(game: Game, count: int, split: str | None = None, seed: int = 0) -> list[bytes]:
    return [bytes(row) for row in game.generate(episode_keys(stream_key(seed, Stream.LEVEL), 0, count), split)]


def without_start(text: str) -> str:
    """A lake's text in which both ends of the way look alike."""
    return text.replace("P", "G")


@pytest.mark.parametrize(("text", "published"), FNV_1A.items())
def test_the_hash_is_fnv_1a(text: str, published: int) -> None:
    assert fnv(text) == published


@pytest.mark.parametrize(("game", "text", "level_id", "split"), FROZEN)
def test_identity_and_split_never_change(game: str, text: str, level_id: str, split: str) -> None:
    rows = text.split("\n")
    built = build_game(TABLE[game], {"height": len(rows), "width": len(rows[0])})
    assert Level(game, text).id == level_id
    board = built.board(text)
    assert built.split_of(board) == split
    assert [name for name in SPLITS if built.owns(name, board)] == [split]


@given(games(FrozenLake).flatmap(lambda game: st.tuples(st.just(game), boards(game))))
def test_a_split_owns_all_eight_symmetries(drawn: tuple[Game, bytes]) -> None:
    game, board = drawn
    assert isinstance(game, FrozenLake)
    turned = {False: game, True: FrozenLake(height=game.width, width=game.height)}
    rows = game.level(board).text.split("\n")
    texts = ["\n".join(symmetry) for symmetry in slow_symmetries(rows)]
    owners = set()
    for text in texts:
        shape = turned[text.index("\n") != game.width]
        owners.add(shape.split_of(shape.parse(text)))
    assert owners == {split_of_hash(min(text_hash("FrozenLake", without_start(text)) for text in texts))}


@pytest.mark.parametrize("options", [{}, {"height": 5, "width": 7}], ids=str)
@pytest.mark.parametrize("name", [name for name, spec in TABLE.items() if issubclass(spec.game_class, GridGame)])
def test_compiled_hashes_are_the_ones_in_the_text(name: str, options: dict[str, Any]) -> None:
    """So a family, and with it a split, holds all rotations and reflections of a board."""
    game = build_game(TABLE[name], options)
    assert isinstance(game, GridGame)
    symbols = game.own_vocabulary.symbols
    for board in some_boards(game, 50):
        text = game.level(board).text
        assert game.ids(np.frombuffer(board, np.uint8)[None]) == [f"{text_hash(game.name, text):016x}"]
        read = text.translate({ord(symbols[tile]): symbols[other] for tile, other in game.read_as.items()})
        symmetries = slow_symmetries(read.split("\n"))
        assert game.family(board) == min(text_hash(game.name, "\n".join(rows)) for rows in symmetries)


@pytest.mark.parametrize("name", ["Sokoban", "LargeSokoban"])
def test_a_room_is_one_family_wherever_the_player_begins(name: str) -> None:
    game, tile = build_game(TABLE[name], {}), Sokoban.Tile
    stands: dict[int, int] = {tile.FLOOR: tile.PLAYER, tile.TARGET: tile.PLAYER_ON_TARGET}
    leaves = {player: free for free, player in stands.items()}
    for board in some_boards(game, 20):
        room = bytes(leaves.get(code, code) for code in board)
        others = [room[:at] + bytes([stands[code]]) + room[at + 1 :] for at, code in enumerate(room) if code in stands]
        assert len(others) > 1
        assert {game.family(other) for other in others} == {game.family(board)}


def test_a_lake_is_one_family_in_both_directions() -> None:
    game, ends = build_game(TABLE["FrozenLake"], {}), bytes([FrozenLake.Tile.PLAYER, FrozenLake.Tile.GOAL])
    for board in some_boards(game, 20):
        assert game.family(board.translate(bytes.maketrans(ends, ends[::-1]))) == game.family(board)


@given(st.integers(0, 2**64 - 1))
def test_compiled_split_is_the_split(family: int) -> None:
    assert split_of_hash(family) == SPLITS[kernels.split_index(np.uint64(family), np.uint64(SPLIT_SALT))]


@pytest.mark.parametrize("name", ["Bandit", "BanditRev"])
def test_a_pair_of_arms_is_one_family_in_either_order(name: str) -> None:
    game = build_game(TABLE[name], {})
    pairs = range(len(SPLIT_OF_PAIR))
    orders = [{game.family(bytes(arms)) for arms in ((2 * i, 2 * i + 1), (2 * i + 1, 2 * i))} for i in pairs]
    assert all(len(families) == 1 for families in orders)
    assert len(set.union(*orders)) == len(SPLIT_OF_PAIR)
    mine = build_game(TABLE[name], {"names": (("Low", "High"),)})
    assert mine.family(bytes((0, 1))) == mine.family(bytes((1, 0)))


def test_where_a_game_says_nothing_each_level_is_a_family() -> None:
    game = FrozenLake()
    for board in some_boards(game, 20):
        assert Game.family(game, board) == int(game.level(board).id, 16)
        assert Game.split_of(game, board) == game.split_of(board)


def test_splits_own_eight_one_and_one_tenths_of_all_problems() -> None:
    """Every lake of 3x3, one of each family counted."""
    game = FrozenLake(size=3)
    owners = {}
    for start, goal in product(range(9), repeat=2):
        for holes in product("_O", repeat=7):
            if start == goal:
                continue
            cells = list(holes)
            for place, symbol in sorted([(start, "P"), (goal, "G")]):
                cells.insert(place, symbol)
            rows = ["".join(cells[i : i + 3]) for i in (0, 3, 6)]
            family = min(without_start("\n".join(symmetry)) for symmetry in slow_symmetries(rows))
            if family not in owners:
                owners[family] = game.split_of(game.parse("\n".join(rows)))
    counts = Counter(owners.values())
    share = {split: counts[split] / len(owners) for split in SPLITS}
    assert len(owners) == 656
    assert sum(share.values()) == pytest.approx(1)
    for split, part in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert abs(share[split] - part) < 4 * (part * (1 - part) / len(owners)) ** 0.5, share


def test_the_bandits_splits_are_the_papers_lists() -> None:
    sizes = Counter(SPLIT_OF_PAIR.values())
    assert sizes == {"train": 10, "validation": 2, "test": 8}
    assert SPLIT_OF_PAIR["Teacher", "Trader"] == "train"
    assert SPLIT_OF_PAIR["Gardener", "Cryptominer"] == "validation"
    assert SPLIT_OF_PAIR["CivilServant", "StartupAccelerator"] == "test"
    game = Bandit()
    for split in SPLITS:
        drawn = {frozenset(game.level(board).text.split("\n")) for board in some_boards(game, 400, split)}
        assert drawn == {frozenset(pair) for pair, owner in SPLIT_OF_PAIR.items() if owner == split}


def test_level_files(tmp_path: Path) -> None:
    game = FrozenLake()
    levels = [game.level(board) for board in some_boards(game, 20)]
    path = tmp_path / "lakes.txt"
    path.write_text("an older file")
    write_levels(path, levels)
    assert read_levels(path) == [level.text for level in levels]
    for source in (str(path), levels):
        assert given_levels(game, source, None).boards == some_boards(game, 20)
    assert list(tmp_path.iterdir()) == [path]
    kept = given_levels(game, path, "train").boards
    assert kept == [board for board in some_boards(game, 20) if game.split_of(board) == "train"]
    path.write_text("; two lakes, blank lines around\n\n\nPG\n__\n;between\n\n \n_P\nG_\n\n")
    assert read_levels(path) == ["PG\n__", "_P\nG_"]
    path.write_bytes("\ufeff; 1, with a mark of Windows\r\nPG\r\n__\r\n; 2\r\n_P\r\nG_".encode())
    assert read_levels(path) == ["PG\n__", "_P\nG_"]
    records = path.with_suffix(".jsonl")
    records.write_text('{"text": "PG\\n__"}\n \n{"id": 3, "text": "_P\\nG_"}\n', encoding="utf-8-sig")
    assert read_levels(records) == ["PG\n__", "_P\nG_"]
    records.write_bytes('{"text": "PG\\n__", "title": "one\u2028two"}\r\n'.encode())
    assert read_levels(records) == ["PG\n__"]


def test_bad_level_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a file: give a path to a text file of boards, or a list of boards"):
        read_levels(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("; nothing\n\n")
    with pytest.raises(ValueError, match=r"holds no board: write one row a line, a blank line between boards"):
        read_levels(tmp_path / "empty.txt")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(ValueError, match=r"picture.txt is not text in UTF-8: save it in that encoding"):
        read_levels(tmp_path / "picture.txt")
    for text in ("{}\n", "[" * 100_000):
        (tmp_path / "other.jsonl").write_text(text)
        with pytest.raises(ValueError, match="as its 'text'"):
            read_levels(tmp_path / "other.jsonl")
    nothings: list[Any] = [[], 3, None]
    for nothing in nothings:
        with pytest.raises(ValueError, match="holds no level: give a path to a level file, or a list of boards"):
            given_levels(FrozenLake(), nothing, None)
    lake = next(board for board in some_boards(FrozenLake(), 9) if FrozenLake().split_of(board) == "train")
    with pytest.raises(ValueError, match=r"none of the 1 levels given belongs to split='test'"):
        given_levels(FrozenLake(), [FrozenLake().level(lake)], "test")
    with pytest.raises(ValueError, match="split='dev' is not a split: choose one of train, validation, test, or None"):
        given_levels(FrozenLake(), ["P__G\n____\n____\n____"], "dev")


def test_a_row_that_would_be_read_as_a_comment_is_not_written(tmp_path: Path) -> None:
    for text in (";G\nP.", "P.\n;G"):
        with pytest.raises(ValueError, match=r"of Maze has a row that begins with ';'.* or a .jsonl file"):
            write_levels(tmp_path / "levels.txt", [Level("Maze", text)])
    assert not list(tmp_path.iterdir())


def test_levels_that_cannot_be_played() -> None:
    game = FrozenLake()
    for level, message in (
        (Level("Bandit", "Teacher\nTrader"), "belongs to Bandit, not to FrozenLake"),
        (Level("FrozenLake", "PG\n__"), "the board is 2x2, this environment plays 4x4; make it with height=2, width=2"),
        ("P__P\n____\n____\n___G", "one player and one goal; this one has 2 and 1"),
        ("P___\n____\n____\n____", "one player and one goal; this one has 1 and 0"),
        ("√___\n____\n____\n____", "over already"),
        ("X___\n____\n____\n___G", "over already"),
        ("P___\n__?_\n____\n___G", r"unknown symbol '\?' in a board; vocabulary 'ragen' has _ O G P X √"),
        ("P___\n___\n____\n___G", "equally long and not empty; got lengths"),
        ("", "equally long and not empty"),
        (7, "level=7 is not a level: give a ragen_gym.Level or the text of a board"),
    ):
        with pytest.raises(ValueError, match=message):
            game.board(level)
