"""Levels in XSB, the common text format of Sokoban, and the files that hold many of them.

| symbol | tile | | symbol | tile |
|---|---|---|---|---|
| ``#`` | wall | | ``.`` | target |
| space, ``-``, ``_`` | floor | | ``*`` | box on target |
| ``@`` | player | | ``$`` | box |
| ``+`` | player on target | | | |
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_gym.core.levels import check_file
from ragen_gym.core.text import Vocabulary

__all__ = ["XSB", "is_xsb", "read_file", "split_text", "to_rectangle"]

#: XSB as a vocabulary; a space or an underscore is read as its floor, too.
XSB = Vocabulary("xsb", "#-.*$@+")

_FLOOR, _WALL = "-", "#"
_FLOORS = " _"


def is_xsb(text: str) -> bool:
    """Whether every character of the text is a symbol of XSB."""
    return set(text) <= {*XSB.symbols, *_FLOORS, "\n"}


def to_rectangle(text: str, height: int, width: int) -> str:
    """An XSB level as full rows of ``XSB``'s symbols, at least ``height`` rows of ``width``.

    What lies outside the walls becomes wall: short rows are filled up, floor that can be reached from beyond the edge
    is walled, and rows and columns are added below and on the right. None of that changes the game.

    Raises:
        ValueError: the walls leave a way from the player, a box or a target to beyond the edge.
    """
    rows = [row.rstrip() for row in text.strip("\n").split("\n")]
    columns = max(map(len, rows))
    cells = [list(row.translate(dict.fromkeys(map(ord, _FLOORS), _FLOOR)).ljust(columns, _FLOOR)) for row in rows]
    edge = [
        (r, c) for r in range(len(rows)) for c in range(columns) if r in (0, len(rows) - 1) or c in (0, columns - 1)
    ]
    outside = [(r, c) for r, c in edge if cells[r][c] != _WALL]
    while outside:
        r, c = outside.pop()
        if cells[r][c] == _WALL:
            continue
        if cells[r][c] != _FLOOR:
            raise ValueError(
                f"Sokoban: the walls do not close: {cells[r][c]!r} in row {r + 1}, column {c + 1} "
                "can be reached from beyond the edge."
            )
        cells[r][c] = _WALL
        outside += [
            (y, x)
            for y, x in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1))
            if 0 <= y < len(rows) and 0 <= x < columns
        ]
    full = ["".join(row).ljust(width, _WALL) for row in cells]
    full += [_WALL * len(full[0])] * (height - len(full))
    return "\n".join(full)


def split_text(text: str, vocabularies: Sequence[Vocabulary]) -> list[tuple[int, str]]:
    """The levels of a text that holds many, each with the number of its first line, from 1 on.

    The rows of a level stand on neighbouring lines. A row is made of the symbols of XSB, or of one of the vocabularies,
    with a wall among them (their first symbol). Every other line, be it empty, a comment after ``;``, a title or an
    author, only ends a level.

    Raises:
        ValueError: a line starts with a wall and is not a row.
    """
    alphabets = [{*XSB.symbols, *_FLOORS}, *(set(vocabulary.symbols) for vocabulary in vocabularies)]
    walls = [_WALL, *(vocabulary.symbols[0] for vocabulary in vocabularies)]
    levels: list[tuple[int, str]] = []
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        row = line.rstrip()
        if any(wall in row and set(row) <= symbols for wall, symbols in zip(walls, alphabets, strict=True)):
            block.append(row)
            continue
        if row.lstrip().startswith(_WALL):
            raise ValueError(f"Sokoban: line {number} starts like a row of a board, but {row!r} holds other symbols.")
        if block:
            levels.append((number - len(block), "\n".join(block)))
            block = []
    return levels


def read_file(source: str | Path, vocabularies: Sequence[Vocabulary]) -> list[tuple[int, str]]:
    """The levels of a file, as ``split_text`` reads them.

    Raises:
        ValueError: there is no such file, no level in it, or a line that cannot be read.
    """
    path = Path(source)
    check_file(path)
    # Collections come with titles in every encoding; a board has none of the characters that differ.
    levels = split_text(path.read_text(encoding="utf-8-sig", errors="replace"), vocabularies)
    if not levels:
        raise ValueError(f"{path} holds no board: write one row a line, a blank line between boards.")
    return levels
