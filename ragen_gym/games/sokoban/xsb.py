r"""Levels in XSB, the common text format of Sokoban, and the files that hold many of them.

| symbol | tile | | symbol | tile |
|---|---|---|---|---|
| ``#`` | wall | | ``.`` | target |
| space, ``-``, ``_`` | floor | | ``*`` | box on target |
| ``@`` | player | | ``$`` | box |
| ``+`` | player on target | | | |

A number before a symbol repeats it, as in ``4#``, and ``|`` ends a row as a new line does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape

from ragen_gym.core.text import Vocabulary

#: XSB as a vocabulary; ``_READ_AS`` is read as well.
XSB = Vocabulary("xsb", "#-.*$@+")

_FLOOR, _WALL, _DECORATION = "-", "#", "*"
_PLAYERS = "@+"
_LONGEST = 64  # cells of a side
_READ_AS = str.maketrans(" _", "--")
_SYMBOLS = "".join((*XSB.symbols, *map(chr, _READ_AS)))
_ROWS = re.compile(rf"(?:\d{{0,9}}[{re.escape(_SYMBOLS)}]|\|)+")
_ROW_END = re.compile(r"\|?\n\|?|\|")
_SPACED = re.compile(r"\S( \S)+")
_SIZE, _PLACES = re.compile(r"board \d+x\d+"), re.compile(r"[a-z ]+: [(),\d ]+")
#: A row that is reported where it stands alone: not what only separates or says something.
_ALONE = re.compile(r"\s*#+[^#\s]|.*\|")
#: Of files in the XML of Sokoban collections (.slc).
_XML_LEVEL, _XML_ROW = re.compile(r"<Level\b.*?</Level>", re.DOTALL), re.compile(r"<L>(.*?)</L>")


def xsb_rows(rows: Sequence[str]) -> list[str] | None:
    """Rows in ``XSB``'s own symbols, of any length; None where they are not XSB."""
    if not all(row == "" or _ROWS.fullmatch(row) for row in rows):
        return None
    full = _ROW_END.sub("\n", "\n".join(rows)).translate(_READ_AS)
    full = re.sub(r"(\d+)(\D)", lambda run: run[2] * min(int(run[1]), _LONGEST + 1), full)  # one more is refused
    return full.strip("\n").split("\n")


def to_rectangle(rows: Sequence[str]) -> str:
    """The rows of a level in ``XSB``'s symbols, equally long.

    What lies outside the walls becomes wall: short rows are filled up, and floor and boxes on targets that can be
    reached from beyond the edge are walled. None of that changes the game.

    Raises:
        ValueError: a side is too long, or the walls leave a way from the player, a box or a target to beyond the edge.
    """
    columns = max(map(len, rows))
    if max(columns, len(rows)) > _LONGEST:
        raise ValueError(
            f"Sokoban: the board has {len(rows)} rows, the longest of {columns} cells or more; a side has at most "
            f"{_LONGEST} cells."
        )
    cells = [list(row.ljust(columns, _FLOOR)) for row in rows]
    ends = (0, len(rows) - 1), (0, columns - 1)
    todo = [(r, c) for r in range(len(rows)) for c in range(columns) if r in ends[0] or c in ends[1]]
    while todo:
        r, c = todo.pop()
        if cells[r][c] == _WALL:
            continue
        if cells[r][c] not in (_FLOOR, _DECORATION):
            raise ValueError(
                f"Sokoban: the walls do not close: {cells[r][c]!r} in row {r + 1}, column {c + 1} can be reached from "
                "beyond the edge; close them, or remove what stands outside them."
            )
        cells[r][c] = _WALL
        around = ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1))
        todo += [(y, x) for y, x in around if 0 <= y < len(rows) and 0 <= x < columns]
    return "\n".join(map("".join, cells))


def split_text(text: str, vocabularies: Sequence[Vocabulary]) -> list[tuple[int, str]]:
    """The levels of a text that holds many, each with the number of its first line, from 1 on.

    The rows of a level stand on neighbouring lines, or on one with ``|`` between them. A row is made of the symbols of
    XSB, or of one of the vocabularies, with a wall among them (their first symbol); the rows of a level share a
    vocabulary. Coordinates may follow, or stand alone. A line that begins with ``#`` belongs to the level next to it
    whatever it holds, so that a slip of the pen is not taken for a title. Every other line, be it empty, a comment
    after ``;``, a title or an author, only ends a level.
    """
    if "</Level>" in text:
        return [
            (text.count("\n", 0, level.start()) + 1, "\n".join(map(unescape, _XML_ROW.findall(level[0]))))
            for level in _XML_LEVEL.finditer(text)
        ]
    levels: list[tuple[int, str]] = []
    block: list[str] = []
    shared: set[str] = set()
    listing = False  # whether the lines of coordinates have begun
    for number, line in enumerate([*text.splitlines(), ""], 1):
        row = line.rstrip()
        written_in, size = _written_in(row.strip(), vocabularies), bool(_SIZE.fullmatch(row))
        places = listing and bool(_PLACES.fullmatch(row))
        another = "|" in row and all(set(_PLAYERS) & set(each) for each in (row, "".join(block)))
        if block and not places and (listing or another or not (size or written_in & shared)):
            if len(block) > 1 or _ALONE.match(block[0]):
                levels.append((number - len(block), "\n".join(block)))
            block, listing = [], False
        if size:
            listing = True
        elif written_in:
            shared = written_in & shared if block else written_in
        elif not places:
            continue
        block.append(row)
    return levels


def _written_in(row: str, vocabularies: Sequence[Vocabulary]) -> set[str]:
    compact = set(row.replace(" ", "") if _SPACED.fullmatch(row) else row)
    found = {each.name for each in vocabularies if each.symbols[0] in compact and compact <= set(each.symbols)}
    if _WALL in row and _ROWS.fullmatch(row.translate({ord("("): None, ord(")"): None})):
        found.add(XSB.name)
    walled = {XSB.name, *(each.name for each in vocabularies if each.symbols[0] == _WALL)}
    return found or (walled if row.startswith(_WALL) else set())
