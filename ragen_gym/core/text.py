"""Boards as text: vocabularies, and four exact formats (grid, spaced grid, coordinates, both), each with its inverse.

``replace_surrogates`` and ``without_controls`` make foreign text safe to store and to print.
"""

from __future__ import annotations

import re
from codecs import charmap_decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

#: The byte between two rows of a board.
EDGE = 255

TextFormat = Literal["grid", "spaced", "coord", "grid_coord"]
TEXT_FORMATS: tuple[str, ...] = get_args(TextFormat)


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a game's tiles.

    Attributes:
        name: its name in errors and tables.
        symbols: one character for each tile, in the order of the game's ``Tile`` enum.

    Raises:
        ValueError: a symbol is not one visible character, or two tiles share one.
    """

    name: str
    symbols: tuple[str, ...]

    def __init__(self, name: str, symbols: Sequence[str]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "symbols", tuple(symbols))
        for symbol in self.symbols:
            if len(symbol) != 1 or symbol.isspace() or not symbol.isprintable():
                raise ValueError(
                    f"vocabulary {name!r}: {symbol!r} is not one visible character; give each tile exactly one."
                )
            if self.symbols.count(symbol) > 1:
                raise ValueError(
                    f"vocabulary {name!r}: {symbol!r} stands for two tiles; give each tile a symbol of its own."
                )

    def check(self, game: str, tiles: Sequence[str]) -> Vocabulary:
        """Return self if it has a symbol for each tile of the game, else raise a ValueError."""
        if len(self.symbols) != len(tiles):
            raise ValueError(
                f"vocabulary {self.name!r} has {len(self.symbols)} symbols; {game} needs {len(tiles)}, "
                f"in this order: {', '.join(tiles)}."
            )
        return self


class BoardWriter:
    """Boards as text, by the methods ``grid``, ``spaced``, ``coord`` and ``grid_coord``, one per format; picklable.

    Args:
        vocabulary: the symbols of the grid.
        tiles: the tiles in words, in the order of their codes.
        width: columns of a board.
    """

    def __init__(self, vocabulary: Vocabulary, tiles: Sequence[str], width: int) -> None:
        self._table = "".join(vocabulary.symbols).ljust(EDGE, "\ufffe") + "\n"
        self._tiles, self._width = tuple(tiles), width

    def grid(self, board: bytes | bytearray) -> str:
        """Rows of symbols, separated by newlines."""
        return charmap_decode(board, "strict", self._table)[0]

    def spaced(self, board: bytes | bytearray) -> str:
        """The grid with a space before each symbol.

        Tokenizers merge neighbouring signs and letters into longer tokens, as in ``____`` or ``GO``. With spaces each
        cell is a token of its own, and in most tokenizers a symbol is the same token everywhere.
        """
        return " " + " ".join(self.grid(board)).replace(" \n", "\n")

    def coord(self, board: bytes | bytearray) -> str:
        """The board's size, then every kind of tile but the first with its (row, column) places."""
        stride = self._width + 1
        lines = [f"board {(len(board) + 1) // stride}x{self._width}"]
        for code in range(1, len(self._tiles)):
            places = [divmod(cell, stride) for cell, value in enumerate(board) if value == code]
            if places:
                lines.append(f"{self._tiles[code]}: " + " ".join(f"({row},{column})" for row, column in places))
        return "\n".join(lines)

    def grid_coord(self, board: bytes | bytearray) -> str:
        """The grid, and the coordinates below it."""
        return f"{self.grid(board)}\n{self.coord(board)}"


def parse_grid(text: str, vocabulary: Vocabulary, game: str, *, spaced: bool = False) -> bytes:
    """The board of a grid text; spaces are ignored if it is ``spaced``.

    Raises:
        ValueError: an unknown symbol, an empty text, or rows of different lengths.
    """
    rows = (text.replace(" ", "") if spaced else text).strip("\n").split("\n")
    codes = {symbol: code for code, symbol in enumerate(vocabulary.symbols)}
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise ValueError(
            f"{game}: the rows of a board must be equally long and not empty; got lengths {[*map(len, rows)]}."
        )
    unknown = sorted(set("".join(rows)) - set(codes))
    if unknown:
        raise ValueError(
            f"{game}: unknown symbol {unknown[0]!r} in a board; "
            f"vocabulary {vocabulary.name!r} has {' '.join(vocabulary.symbols)}"
        )
    return bytes([EDGE]).join(bytes(codes[symbol] for symbol in row) for row in rows)


_PLACES = r"\([0-9]{1,3},[0-9]{1,3}\)( \([0-9]{1,3},[0-9]{1,3}\))*"


def parse_coord(text: str, tiles: Sequence[str], game: str) -> bytes:
    """The board of a text in coordinates: the inverse of ``BoardWriter.coord``.

    Raises:
        ValueError: a line that is not of that form, or a place named twice or off the board.
    """
    lines = text.strip("\n").split("\n")
    size = re.fullmatch(r"board ([1-9][0-9]{0,2})x([1-9][0-9]{0,2})", lines[0])
    if size is None:
        raise ValueError(f"{game}: a board in coordinates starts with a line like 'board 4x4', not {lines[0][:80]!r}.")
    height, width = int(size[1]), int(size[2])
    board = bytearray(bytes([EDGE]).join([bytes(width)] * height))
    for line in lines[1:]:
        kind, colon, places = line.partition(": ")
        if not colon or kind not in tiles[1:] or not re.fullmatch(_PLACES, places):
            raise ValueError(
                f"{game}: cannot read {line[:80]!r}; write for example '{tiles[1]}: (0,1) (2,3)', "
                f"with one of {', '.join(tiles[1:])}."
            )
        for place in places.split(" "):
            row, column = (int(number) for number in place[1:-1].split(","))
            if row >= height or column >= width or board[row * (width + 1) + column]:
                raise ValueError(f"{game}: {kind} at {place} is off the {height}x{width} board, or the place is taken.")
            board[row * (width + 1) + column] = tiles.index(kind)
    return bytes(board)


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which UTF-8 cannot hold; a pair becomes a character.

    JSON can contain lone surrogates, as the escape of U+D800.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def without_controls(text: str) -> str:
    """The text with U+FFFD for each character that is not printable, such as ESC, which a terminal would obey.

    Newlines stay.
    """
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
