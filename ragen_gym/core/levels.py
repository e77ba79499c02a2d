r"""Levels: their ids, splits and files.

A ``Level`` is data: the name of its game and the text of its first board in the game's own symbols. Its ``Level.id``
hashes both (64-bit FNV-1a over the code points of ``name + "\n" + text``, finished by SplitMix64's mixer), so it is the
same everywhere and forever.

A split must not leak, so it is decided by family. Two boards are of one family if they differ only by a rotation, a
reflection, the start position of Sokoban's player, or which end of a lake's path is the start. The family's hash is the
smallest hash among the eight rotations and reflections of a board on which these tiles are written alike. 80 % of all
families belong to ``train``, 10 % to ``validation``, 10 % to ``test``, whatever generator or option made them. A room
that is moved as a whole within a larger board is another family; ``benchmarks/heldout.md`` counts these cases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ragen_gym.core.seeding import mix
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.validation import shown

SPLITS = ("train", "validation", "test")
SPLIT_TENTHS = (8, 1, 1)

FNV_BASIS, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_WORD = 0xFFFFFFFFFFFFFFFF


def fnv(text: str, h: int = FNV_BASIS) -> int:
    """64-bit FNV-1a over code points, from the state ``h`` on."""
    for character in text:
        h = ((h ^ ord(character)) * FNV_PRIME) & _WORD
    return h


def text_hash(name: str, text: str) -> int:
    """The 64-bit content hash of a board's text under the name of its game."""
    return mix(fnv(text, fnv(name + "\n")))


SPLIT_SALT = mix(fnv("ragen-gym splits v2"))


def split_of_hash(family: int) -> str:
    """The name of the split that owns a family, given its hash."""
    tenth = mix(family ^ SPLIT_SALT) % 10
    return SPLITS[0 if tenth < SPLIT_TENTHS[0] else 1 if tenth < SPLIT_TENTHS[0] + SPLIT_TENTHS[1] else 2]


def check_split(split: str | None) -> str | None:
    """Return ``split`` unchanged, or raise a ValueError that names the splits."""
    if split is not None and (not isinstance(split, str) or split not in SPLITS):
        raise ValueError(
            f"split={shown(split)} is not a split: choose one of {', '.join(SPLITS)}, or None for all levels."
        )
    return split


@dataclass(frozen=True)
class Level:
    """One instance of a game.

    Attributes:
        game: name of the game, such as ``"FrozenLake"``.
        text: the first board in the game's own symbols, rows separated by newlines, none at the end.
    """

    game: str
    text: str

    @cached_property
    def id(self) -> str:
        """Content hash, 16 hexadecimal digits."""
        return f"{text_hash(self.game, self.text):016x}"

    def __str__(self) -> str:
        return self.text


def read_levels(source: str | Path) -> list[str]:
    """Board texts of a level file, as ``ragen-gym levels export`` writes it; see ``level_items``.

    Raises:
        ValueError: see ``level_items`` and ``item_text``.
    """
    texts = []
    for place, item in level_items(source):
        try:
            text = item_text(item)
        except ValueError as error:
            raise ValueError(f"{source}, {place}: {error}") from None
        texts.append(text.text if isinstance(text, Level) else text)
    return texts


#: Splits a text into its boards, each with the number of its first line.
Splitter = Callable[[str], list[tuple[int, str]]]


def paragraphs(text: str, symbols: Iterable[str] = ()) -> list[tuple[int, str]]:
    """Blocks of lines, separated by blank lines or by comments, which are lines that start with ``;``.

    A line of nothing but ``symbols`` is not a comment.
    """
    own = set(symbols)
    boards: list[tuple[int, str]] = []
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip() and (not line.startswith(";") or set(line) <= own):
            block.append(line.rstrip())
        elif block:
            boards.append((number - len(block), "\n".join(block)))
            block = []
    return boards


def level_items(source: str | Path, split: Splitter = paragraphs, *, lenient: bool = False) -> list[tuple[str, Any]]:
    """The levels of a file, or of a text of more than one line, each with its place.

    A ``.jsonl`` file holds one JSON value a line, a ``.json`` file an array of them; ``item_text`` says what a value
    may be. Any other file is text in UTF-8.

    Args:
        source: a path, in which ``~`` is the home folder, or the text itself.
        split: splits a text into boards.
        lenient: True to read bytes that are not UTF-8 as U+FFFD.

    Raises:
        ValueError: the file is missing, holds no board, or is neither text nor JSON.
    """
    if isinstance(source, str) and "\n" in source:
        name, suffix, text = "the text of levels", "", source
    else:
        check_file(found := os.path.expanduser(source))
        path = Path(found)
        name, suffix, text = str(path), path.suffix.lower(), _decoded(path, lenient)
    text = text.removeprefix("\ufeff")
    if suffix in (".json", ".jsonl") or _is_json(text):
        items = _json_items(name, text, lines=suffix == ".jsonl")
    else:
        items = [(f"level at line {number}", board) for number, board in split(text)]
    if not items:
        raise ValueError(f"{name} holds no board: write one row a line, a blank line between boards.")
    return items


def item_text(item: Any) -> Level | str:
    """A level from a list or from JSON: a ``Level``, a text, an object with its ``text``, or a list of rows.

    An object that also names its ``game``, as exported files do, is a ``Level``, written in the game's own symbols.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(item, Level | str):
        return item
    if isinstance(item, Mapping):
        if not isinstance(item.get("text"), str):
            keys = ", ".join(map(str, item)) or "nothing"
            raise ValueError(f"an object holds the board as its 'text'; this one has {shown(keys)}.")
        return Level(item["game"], item["text"]) if isinstance(item.get("game"), str) else str(item["text"])
    rows = [row if isinstance(row, str | bytes) else _joined_cells(row) for row in _listed(item)]
    if not rows:
        raise ValueError(f"level={shown(item)} is not a level: give a ragen_gym.Level or the text of a board.")
    return "\n".join(row.decode("latin-1") if isinstance(row, bytes) else row for row in rows)


def _listed(value: Any) -> list[Any]:
    """The items of a list or of an array of NumPy."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    return list(listed) if isinstance(listed, list | tuple) else []


def _joined_cells(row: Any) -> str:
    cells = [cell.decode("latin-1") if isinstance(cell, bytes) else cell for cell in _listed(row)]
    if not cells or not all(isinstance(cell, str) for cell in cells):
        raise ValueError(f"{shown(row)} is not a row of a board: write each row as a text of one symbol a cell.")
    return "".join(cells)


def check_file(path: str | Path) -> None:
    """Raise a ValueError unless the file exists."""
    if os.path.isdir(path):
        raise ValueError(f"levels={shown(str(path))} is a folder, not a file: give one file.")
    if not os.path.isfile(path):  # which takes names that no file can have, too
        raise ValueError(
            f"levels={shown(str(path))} is not a file: give a path to a text file of boards, or a list of boards."
        )


def _decoded(path: Path, lenient: bool) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save it in that encoding.") from None


def _is_json(text: str) -> bool:
    try:
        return text.lstrip()[:1] in ("[", "{") and isinstance(json.loads(text), list | dict)
    except (ValueError, RecursionError):
        return False


def _json_items(name: str, text: str, *, lines: bool) -> list[tuple[str, Any]]:
    try:
        if lines:  # a text in JSON may hold what str.splitlines takes for the end of a line
            rows = enumerate(text.split("\n"), 1)
            return [(f"line {number}", json.loads(line)) for number, line in rows if line.strip()]
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        form = "each line must be a JSON object with" if lines else "it must be a JSON array of boards, or objects with"
        raise ValueError(f"{name}: {form} the board as its 'text' ({shown(error)}).") from error
    return [(f"[{place}]", item) for place, item in enumerate(value if isinstance(value, list) else [value])]


def text_of_levels(levels: Iterable[Level]) -> str:
    """The text file from which ``read_levels`` reads these levels: each under a comment with its id.

    Raises:
        ValueError: a row begins with ";", so it would be read as a comment.
    """
    blocks = []
    for level in levels:
        if "\n;" in f"\n{level.text}":
            raise ValueError(
                f"level {level.id} of {level.game} has a row that begins with ';', which is a comment in a text file: "
                "choose another symbol, or a .jsonl file."
            )
        blocks.append(f"; {level.id}\n{level.text}")
    return "\n\n".join(blocks) + "\n"


def write_levels(path: str | Path, levels: Iterable[Level]) -> None:
    """Write ``text_of_levels`` as a file; the write is atomic."""
    write_atomic(path, text_of_levels(levels))
