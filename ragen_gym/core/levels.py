r"""What a level is, how it is named, which split it belongs to, and how levels are kept in files.

A ``Level`` is data: the name of its game and the text of its first board in the game's own symbols. Its ``Level.id`` is
a hash of just that (64-bit FNV-1a over the code points of ``name + "\n" + text``, finished by SplitMix64's mixer), so
it is the same everywhere and forever.

A split must not leak. Two boards that differ by a rotation or a reflection are one problem, and so are two rooms of
Sokoban that differ in where the player begins, or two lakes that differ in which end of the way is the start: they are
one family. So the split is decided by a hash of the family, the smallest one among the eight rotations and reflections
of a board on which such tiles are written alike: 80 % of all families belong to ``train``, 10 % to ``validation``, 10 %
to ``test``, whatever generator or option made them. A room that is moved as a whole within a larger board is another
family; ``benchmarks/heldout.md`` says how often that happens.

The first version of the splits, ``train-v1``, ``validation-v1`` and ``test-v1``, knows rotations and reflections only.
It stays as it is, for what was measured on it; its splits are disjoint among themselves, not from those of today.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ragen_gym.core.seeding import mix
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.validation import shown

__all__ = [
    "SPLITS",
    "SPLIT_NAMES",
    "SPLIT_VERSION",
    "Level",
    "is_training_split",
    "read_levels",
    "same_version",
    "split_of_hash",
    "text_hash",
    "text_of_levels",
    "version_of",
    "write_levels",
]

SPLITS = ("train", "validation", "test")
SPLIT_TENTHS = (8, 1, 1)
SPLIT_VERSION = 2
#: All names of splits: those of today, and those of the first version.
SPLIT_NAMES = (*SPLITS, *(f"{split}-v1" for split in SPLITS))

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


SPLIT_SALTS = {version: mix(fnv(f"ragen-gym splits v{version}")) for version in (1, SPLIT_VERSION)}


def split_of_hash(family: int, version: int = SPLIT_VERSION) -> str:
    """The name of the split that owns a family, given its hash."""
    tenth = mix(family ^ SPLIT_SALTS[version]) % 10
    split = SPLITS[0 if tenth < SPLIT_TENTHS[0] else 1 if tenth < SPLIT_TENTHS[0] + SPLIT_TENTHS[1] else 2]
    return same_version(split, version)


def version_of(split: str | None) -> int:
    """The version of the splits that a name belongs to."""
    return 1 if split is not None and split.endswith("-v1") else SPLIT_VERSION


def same_version(split: str, version: int) -> str:
    """What ``train``, ``validation`` or ``test`` is called in a version of the splits."""
    return split if version == SPLIT_VERSION else f"{split}-v{version}"


def is_training_split(split: str) -> bool:
    """Whether a name is that of the training split, of any version."""
    return split == same_version(SPLITS[0], version_of(split))


def check_split(split: str | None) -> str | None:
    """Return ``split`` unchanged, or raise a ValueError that names the splits."""
    if split is not None and (not isinstance(split, str) or split not in SPLIT_NAMES):
        raise ValueError(
            f"split={shown(split)} is not a split: choose one of {', '.join(SPLIT_NAMES)}, or None for all levels."
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
    """Board texts of a level file, as ``ragen-gym levels export`` writes it.

    A ``.jsonl`` file holds one JSON object with a ``text`` a line. Any other file is text: blocks of lines, separated
    by blank lines or by comments, which are lines that start with ``;``.

    Raises:
        ValueError: there is no such file, no board in it, or it is not text in UTF-8.
    """
    path = Path(source)
    text = _text_of(path)
    if path.suffix == ".jsonl":
        return _read_records(path, text)
    boards: list[str] = []
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line.startswith(";"):
            block.append(line.rstrip())
        elif block:
            boards.append("\n".join(block))
            block = []
    if not boards:
        raise ValueError(f"{path} holds no board: write one row a line, a blank line between boards.")
    return boards


def check_file(path: str | Path) -> None:
    """Raise a ValueError unless there is a file of that name."""
    if not os.path.isfile(path):  # which takes names that no file can have, too
        raise ValueError(
            f"levels={shown(str(path))} is not a file: give a path to a text file of boards, or a list of boards."
        )


def _text_of(path: Path) -> str:
    check_file(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: save it in that encoding.") from None


def _read_records(path: Path, text: str) -> list[str]:
    try:  # a text in JSON may hold what str.splitlines takes for the end of a line
        boards = [str(json.loads(line)["text"]) for line in text.split("\n") if line.strip()]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path}: each line must be a JSON object with the board as its 'text' ({error!r})."
        ) from error
    if not boards:
        raise ValueError(f"{path} holds no board: export some with `ragen-gym levels export`.")
    return boards


def text_of_levels(levels: Iterable[Level]) -> str:
    """The text file from which ``read_levels`` reads these levels: each under a comment with its id.

    Raises:
        ValueError: a row begins as a comment does, and would be left out when the file is read.
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
