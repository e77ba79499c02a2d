"""Common base of games on a rectangular board: text in every format, level identity and splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import SPLIT_SALT, SPLITS, check_split, fnv
from ragen_gym.core.text import (
    EDGE,
    BoardWriter,
    TextFormat,
    Vocabulary,
    parse_coord,
    parse_grid,
)
from ragen_gym.core.validation import check_number
from ragen_gym.games.game import Board, Boards, Game

if TYPE_CHECKING:
    from ragen_gym.games.kernels import SplitKey


def size_of(board: Board) -> tuple[int, int]:
    """(rows, columns) of a board whose rows are separated by ``EDGE``."""
    rows = board.count(EDGE) + 1
    return rows, (len(board) + 1) // rows - 1


@dataclass(frozen=True)
class GridGame(Game):
    """A game on a board of ``height`` rows and ``width`` columns.

    A board is ``height * (width + 1) - 1`` bytes: the tile codes row by row, ``ragen_gym.core.text.EDGE`` between two
    rows.
    """

    height: int = 4
    width: int = 4

    layout = "grid"
    #: Tiles that are read as another one where families of levels are distinguished, such as the player as the floor.
    read_as: ClassVar[Mapping[int, int]] = {}
    #: The tile that fills a smaller board up to the size of the environment without changing the game, if there is one.
    fills: ClassVar[int | None] = None

    def square(self, size: int | None, low: int, high: int) -> None:
        """Set both sides of the board to ``size`` unless it is None, and check them; for ``__post_init__``.

        Raises:
            ValueError: a side is not an integer from ``low`` to ``high``, or one was given that differs from ``size``.
        """
        check_number(self.name, "size", size, low, high, whole=True, none=True)
        for side in ("height", "width"):
            given = getattr(self, side)
            check_number(self.name, side, given, low, high, whole=True)
            if size is not None and given not in (size, type(self).options()[side]):
                raise ValueError(f"{self.name}: size={size!r} and {side}={given!r} disagree; leave one out.")
            object.__setattr__(self, side, given if size is None else size)

    @cached_property
    def cells(self) -> int:
        """Bytes of a board."""
        return self.height * (self.width + 1) - 1

    @cached_property
    def tile_names(self) -> tuple[str, ...]:
        """The tiles in words, in the order of their codes."""
        return tuple(tile.name.lower().replace("_", " ") for tile in self.Tile)

    @cached_property
    def identity(self) -> tuple[npt.NDArray[np.uint64], np.uint64]:
        """(code point of each tile, hash state after the game's name): what the compiled hashes need."""
        codes = np.zeros(256, np.uint64)
        codes[EDGE] = 10
        codes[: len(self.Tile)] = [ord(symbol) for symbol in self.own_vocabulary.symbols]
        return codes, np.uint64(fnv(self.name + "\n"))

    @cached_property
    def family_codes(self) -> npt.NDArray[np.uint64]:
        """Code point of each tile, uint64 (256,): the same for tiles that a family does not tell apart."""
        codes = self.identity[0].copy()
        for tile, other in self.read_as.items():
            codes[tile] = codes[other]
        return codes

    def split_key(self, split: str | None) -> SplitKey:
        """Key of a split for ``ragen_gym.games.kernels.in_split``; every board belongs to None."""
        index = SPLITS.index(split) if check_split(split) else -1
        return self.family_codes, self.identity[1], np.uint64(SPLIT_SALT), index

    def ids(self, boards: Boards) -> list[str]:
        """``Level.id`` of each board."""
        from ragen_gym.games.kernels import row_hashes

        digits = row_hashes(boards, *self.identity).astype(">u8").tobytes().hex()
        return [digits[i : i + 16] for i in range(0, len(digits), 16)]

    def family(self, board: Board) -> int:
        """The smallest hash among the rotations and reflections of the board, its tiles read by ``read_as``."""
        from ragen_gym.games.kernels import canonical_hash

        row = np.frombuffer(bytes(board), np.uint8)
        return int(canonical_hash(row, self.family_codes, self.identity[1], self.height, self.width))

    def formatter(self, vocabulary: Vocabulary, text_format: TextFormat) -> Callable[[Board], str]:
        """A function from a board to its text."""
        writer = BoardWriter(vocabulary, self.tile_names, self.width)
        write: Callable[[Board], str] = getattr(writer, text_format)
        return write

    def parse(self, text: str, vocabulary: Vocabulary | None = None, text_format: TextFormat = "grid") -> bytes:
        """The board of a text in any format; a ValueError where it does not say which board is meant.

        A vocabulary or a format that is given is taken literally. Without either, see ``read``.
        """
        if vocabulary is None and text_format == "grid":
            text = self.own_form(text)
        vocabulary = vocabulary or self.own_vocabulary
        if text_format == "coord":
            board = parse_coord(text, self.tile_names, self.name)
        elif text_format in ("grid", "spaced"):
            board = parse_grid(text, vocabulary, self.name, spaced=text_format == "spaced")
        else:
            grid, _, coordinates = text.partition("\nboard ")
            board = self._both(parse_grid(grid, vocabulary, self.name), "board " + coordinates)
        self._check_size(board)
        self.check(board)
        return board

    def read(self, text: str, vocabulary: Vocabulary | None = None) -> bytes:
        """The board of a text, of whatever size and not checked.

        The format is found out from the text, and so is the vocabulary, unless all symbols are of ``vocabulary``: then
        the text means what it says in that one.

        Raises:
            ValueError: the text is not a board in one of the game's vocabularies, or a different one in two of them.
        """
        lines = [line.rstrip() for line in dedent(text).splitlines()]
        lines = "\n".join(lines).strip("\n").split("\n")
        at = next((place for place, line in enumerate(lines) if line.startswith("board ")), len(lines))
        rows, coordinates = lines[:at], "\n".join(lines[at:])
        if not rows:
            return parse_coord(coordinates, self.tile_names, self.name)
        if all(re.fullmatch(r"\S( \S)+", row.strip()) for row in rows):
            rows = [row.replace(" ", "") for row in rows]
        board = self.read_rows(rows, vocabulary)
        return self._both(board, coordinates) if coordinates else board

    def read_rows(self, rows: list[str], vocabulary: Vocabulary | None) -> bytes:
        """The board of rows of symbols; arguments and errors as of ``read``."""
        fitting = self.fitting(rows, vocabulary)
        if not fitting:
            known = "; ".join(f"{each.name!r} has {' '.join(each.symbols)}" for each in self.vocabularies.values())
            symbols = set("".join(rows))
            strange = min((symbols - set(each.symbols) for each in self.vocabularies.values()), key=len)
            raise ValueError(f"{self.name}: unknown symbol {min(strange)!r} in a board; vocabulary {known}.")
        boards = {parse_grid("\n".join(rows), each, self.name): each.name for each in fitting}
        if len(boards) > 1:
            raise ValueError(
                f"{self.name}: a board of the symbols {' '.join(sorted(set(''.join(rows))))} means different things in "
                f"the vocabularies {', '.join(boards.values())}: make the environment with the vocabulary meant."
            )
        return next(iter(boards))

    def fitting(self, rows: list[str], vocabulary: Vocabulary | None) -> list[Vocabulary]:
        """The vocabularies that have all symbols of the rows and in which these could be a level; see ``read``."""
        symbols = set("".join(rows))
        if vocabulary and symbols <= set(vocabulary.symbols):
            return [vocabulary]
        fitting = [each for each in self.vocabularies.values() if symbols <= set(each.symbols)]
        players = [each for each in fitting if any(each.symbols[tile] in symbols for tile in self.player_tiles)]
        return players or fitting

    def own_form(self, text: str, vocabulary: Vocabulary | None = None) -> str:
        """A board's text of any kind in the game's own symbols, filled up to this size if ``fills`` allows that."""
        board = self.fitted(self.read(text, vocabulary))
        self._check_size(board)
        return self.own_text(board)

    def fitted(self, board: bytes) -> bytes:
        """A board with rows added below and columns on the right, up to this size, if the game has a tile for that."""
        height, width = size_of(board)
        if self.fills is None or height > self.height or width > self.width:
            return board
        fill = bytes([self.fills])
        rows = [row.ljust(self.width, fill) for row in board.split(bytes([EDGE]))]
        return bytes([EDGE]).join(rows + [fill * self.width] * (self.height - height))

    def for_board(self, board: Board) -> GridGame:
        """This game on boards of the size of ``board``: the same object for each size.

        Raises:
            ValueError: the game cannot have that size.
        """
        height, width = size_of(board)
        if (height, width) not in self._sizes:
            try:
                made = replace(self, height=height, width=width, **self.options_at(height, width))
            except ValueError as error:
                raise ValueError(f"{self.name}: the board is {height}x{width}, and {error}") from None
            vars(made)["_sizes"] = self._sizes
            self._sizes[height, width] = made
        return self._sizes[height, width]

    def options_at(self, height: int, width: int) -> dict[str, Any]:
        """Options that must change where this game is played on given boards of another size."""
        return {}

    @cached_property
    def _sizes(self) -> dict[tuple[int, int], GridGame]:
        return {(self.height, self.width): self}

    def _both(self, board: bytes, coordinates: str) -> bytes:
        if parse_coord(coordinates, self.tile_names, self.name) != board:
            raise ValueError(f"{self.name}: the grid and the coordinates of this text are two different boards.")
        return board

    def _check_size(self, board: bytes) -> None:
        height, width = size_of(board)
        if (height, width) != (self.height, self.width):
            raise ValueError(
                f"{self.name}: the board is {height}x{width}, this environment plays {self.height}x{self.width}; "
                f"make it with height={height}, width={width}."
            )

    def check(self, board: bytes) -> None:
        """Raise a ValueError unless the board is a state of this game."""

    def charset(self, vocabulary: Vocabulary, text_format: TextFormat) -> tuple[frozenset[str], int, int]:
        """The characters of the texts, the least length and the greatest."""
        grid = frozenset(vocabulary.symbols) | {"\n"}
        if text_format == "grid":
            return grid if self.height > 1 else grid - {"\n"}, self.cells, self.cells
        if text_format == "spaced":
            length = self.cells + self.height * self.width
            return grid | {" "}, length, length
        size, kinds = f"board {self.height}x{self.width}", self.tile_names[1:]
        places = "".join(f" ({row},{column})" for row in range(self.height) for column in range(self.width))
        words = frozenset(size + places + ":\n" + "".join(kinds))
        longest = len(size) + sum(len(kind) + 2 for kind in kinds) + len(places)
        if text_format == "coord":
            return words, len(size), longest
        return words | grid, self.cells + 1 + len(size), self.cells + 1 + longest
