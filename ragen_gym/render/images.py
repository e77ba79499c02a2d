"""Boards as pictures for visual models: the same level has the same pixels everywhere, many boards at once.

Neither pygame nor a window system takes part. Each tile is drawn once per process, game and style; a picture is then
put together from the lines of its tiles. ``ragen_gym.core.turn_config.TILE_SETS`` names the sets of tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ragen_gym.core.seeding import uniforms
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.turn_config import ImageStyle
from ragen_gym.games.game import Board, Boards, Game
from ragen_gym.render.bandit import lines_of
from ragen_gym.render.canvas import ADVANCE, Canvas, Colour, Pixels, missing
from ragen_gym.render.frames import Tiles, board_codes, painter_of, remembered

_PAPER: Colour = (246, 244, 238)
_INK: Colour = (28, 30, 40)
_LINE: Colour = (206, 204, 196)
_MARGIN: Colour = (58, 62, 74)

_COLOURS: dict[str, Colour] = {
    "blue": (46, 104, 206),
    "red": (214, 52, 52),
    "green": (40, 150, 82),
    "orange": (238, 142, 32),
    "purple": (140, 72, 182),
    "black": (30, 32, 42),
    "turquoise": (28, 176, 182),
}
#: Of ground and walls, in the order of their codes.
_GROUNDS: dict[str, Colour] = {"grey": (150, 152, 158), "white": _PAPER}
_SHAPES = ("ring", "square", "triangle", "diamond", "circle", "cross", "bar")


def shape_names(game: Game) -> list[str]:
    """Picture of each code in the tile set "shapes", such as ``red square``; grounds are without a shape.

    Raises:
        ValueError: there are more codes than shapes.
    """
    grounds = dict(zip(sorted(game.ground_tiles), _GROUNDS, strict=False))
    shapes = [f"{colour} {shape}" for shape, colour in _shapes()]
    if game.codes > len(grounds) + len(shapes):
        raise ValueError(
            f"image_tiles='shapes' has {len(shapes)} shapes, too few for the {game.codes} tiles of {game.name}; use "
            "image_tiles='letters'."
        )
    others = iter(shapes)
    return [f"{grounds[code]} ground" if code in grounds else next(others) for code in range(game.codes)]


def _tile_drawer(name: str, game: Game, vocabulary: Vocabulary) -> tuple[Callable[[Canvas, int], None], int]:
    """(a function that draws a tile of a code onto a canvas of one cell, side of a cell in tiles).

    The pictures of a bandit hold the names of its arms, whichever the tile set.
    """
    painter = painter_of(game)
    if name == "pictures":
        return lambda canvas, tile: painter.draw_tile(canvas, game, tile), painter.cell
    if game.layout == "arms":
        return lambda canvas, tile: _draw_card(canvas, game.action_names(bytes((tile, tile ^ 1)))[0]), painter.cell
    if name == "shapes":
        names = shape_names(game)
        return lambda canvas, tile: _draw_shape(canvas, *names[tile].split()), 1
    symbols = vocabulary.symbols
    return lambda canvas, tile: _draw_letter(canvas, symbols[tile]), 1


def _draw_number(canvas: Canvas, number: int | None) -> None:
    canvas.fill(_MARGIN)
    if number is not None:
        canvas.text(0.5, 0.5, 0.8, str(number), _PAPER, 0.9)


def _shapes() -> list[tuple[str, str]]:
    colours = list(_COLOURS)
    number = len(_SHAPES) * len(colours)
    return [(_SHAPES[i % len(_SHAPES)], colours[(i + i // len(_SHAPES)) % len(colours)]) for i in range(number)]


def _cell(canvas: Canvas) -> None:
    canvas.fill(_LINE)
    edge = 1 / canvas.unit
    canvas.rectangle(0, 0, 1 - edge, 1 - edge, _PAPER)


def _draw_shape(canvas: Canvas, name: str, shape: str) -> None:
    if shape == "ground":
        canvas.fill(_GROUNDS[name])
        return
    _cell(canvas)
    colour = _COLOURS[name]
    if shape == "square":
        canvas.rectangle(0.2, 0.2, 0.6, 0.6, colour)
    elif shape == "triangle":
        canvas.polygon([(0.5, 0.14), (0.86, 0.82), (0.14, 0.82)], colour)
    elif shape == "diamond":
        canvas.polygon([(0.5, 0.1), (0.86, 0.5), (0.5, 0.9), (0.14, 0.5)], colour)
    elif shape == "cross":
        canvas.line([(0.24, 0.24), (0.76, 0.76)], 0.2, colour)
        canvas.line([(0.76, 0.24), (0.24, 0.76)], 0.2, colour)
    elif shape == "bar":
        canvas.rectangle(0.1, 0.38, 0.8, 0.24, colour)
    else:
        canvas.circle(0.5, 0.5, 0.36, colour)
        if shape == "ring":
            canvas.circle(0.5, 0.5, 0.2, _PAPER)


def _draw_letter(canvas: Canvas, symbol: str) -> None:
    _cell(canvas)
    canvas.text(0.5, 0.5, 1.1, symbol, _INK, 0.9)


def _draw_card(canvas: Canvas, name: str) -> None:
    canvas.fill(_LINE)
    canvas.rectangle(0.03, 0.03, 0.94, 0.94, _PAPER, 0.05)
    lines = lines_of(name)
    for i, line in enumerate(lines):
        canvas.text(0.5, 0.5 + (i - (len(lines) - 1) / 2) * 0.2, 0.15, line, _INK, 0.9)


_VERSIONS = 4  # of each tile of the photographic palette
_CHUNK = 64  # boards put together at once: their indices stay in the cache
_SIGN = 0.89  # width of a name on a bandit's machine, as a part of the machine's


class BoardImages:
    """Makes pictures of a game's boards.

    Args:
        game: the game.
        style: the look.
        vocabulary: whose symbols the tile set "letters" draws; None for the game's own.

    Attributes:
        shape: (height, width, 3) of a picture: ``tile_size`` pixels a cell (six times that for the arms of a bandit),
            and one cell more each way with coordinates.

    Raises:
        ValueError: coordinates of a game without rows and columns, symbols or names that the pixel font lacks, or tiles
            too small for the names of a bandit.
    """

    def __init__(self, game: Game, style: ImageStyle | None = None, vocabulary: Vocabulary | None = None) -> None:
        self.game, self.style = game, style or ImageStyle()
        self._vocabulary = vocabulary or game.own_vocabulary
        self._check()
        self._tiles = _tiles(game, self.style, self._vocabulary)
        margin = int(self.style.coordinates)
        self._rows, self._columns, self._margin = game.height + margin, game.width + margin, margin
        side = self._tiles.side
        self.shape = self._rows * side, self._columns * side, 3
        row, column = np.arange(self._rows)[:, None], np.arange(self._columns)
        version = (row + 2 * column + row * column) % len(self._tiles.pixels)
        #: For each line of pixels and column of cells, where its version of the tiles begins, and the line in it.
        self._offsets = (version * self._tiles.count * side)[:, None, :] + np.arange(side)[None, :, None]
        self._frame = np.zeros((self._rows, self._columns), np.intp)
        if margin:
            self._frame[0, :] = self._frame[:, 0] = game.codes
            self._frame[0, 1:] += 1 + np.arange(game.width)
            self._frame[1:, 0] += 1 + np.arange(game.height)
            self._tiles.need(np.unique(self._frame))

    def __reduce__(self) -> tuple[type[BoardImages], tuple[Any, ...]]:
        return type(self), (self.game, self.style, self._vocabulary)

    def image(self, board: Board) -> Pixels:
        """The picture of one board, uint8 of ``shape``; fresh memory."""
        picture: Pixels = self.images(board_codes(self.game, board)[None])[0]
        return picture

    def images(self, codes: Boards) -> Pixels:
        """Pictures of many boards from their tile codes, uint8 (n, height, width): uint8 (n, *shape)."""
        self._tiles.need(codes)
        n, side = len(codes), self._tiles.side
        out = np.empty((n, *self.shape), np.uint8)
        lines = self._tiles.pixels.reshape(-1, side * 3)
        target = out.reshape(n, self._rows, side, self._columns, side * 3)
        for start in range(0, n, _CHUNK):
            part = codes[start : start + _CHUNK]
            cells = np.repeat(self._frame[None], len(part), 0)
            cells[:, self._margin :, self._margin :] = part
            cells *= side
            # Clipping cannot happen; it is the mode in which NumPy copies straight into ``out``.
            index = cells[:, :, None, :] + self._offsets
            np.take(lines, index, axis=0, out=target[start : start + _CHUNK], mode="clip")
        return out

    def _check(self) -> None:
        game, style = self.game, self.style
        if game.layout != "grid":
            if style.coordinates:
                raise ValueError(f"image_coordinates: {game.name} has no rows and columns to number; leave it out.")
            names = [line for arm in getattr(game, "arms", ()) for line in lines_of(arm)]
            if lacking := missing("".join(names)):
                raise ValueError(
                    f"{game.name}: pictures have no letter for {lacking!r}; use names in ASCII, or observation='text'."
                )
            least = -(-max(map(len, names), default=0) * ADVANCE // (6 * _SIGN))
            if style.tile_size < least:
                raise ValueError(
                    f"image_tile_size={style.tile_size} is too small for the names of {game.name}; it must be at least "
                    f"{int(least)}."
                )
        elif style.tiles == "letters" and (lacking := missing("".join(self._vocabulary.symbols))):
            raise ValueError(
                f"image_tiles='letters': pictures have no letter for {lacking!r} of vocabulary "
                f"{self._vocabulary.name!r}; choose another vocabulary, or other tiles."
            )


@remembered
def _tiles(game: Game, style: ImageStyle, vocabulary: Vocabulary) -> Tiles:
    """The tiles of a game in one style; after them the cells of the margin."""
    draw_tile, cell = _tile_drawer(style.tiles, game, vocabulary)
    side, photo = cell * style.tile_size, style.palette == "photographic"

    def draw(code: int) -> list[Pixels]:
        canvas = Canvas(1, 1, side, pixel_font=True)
        if code < game.codes:
            draw_tile(canvas, code)
        else:
            _draw_number(canvas, code - game.codes - 1 if code > game.codes else None)
        drawn = canvas.pixels()
        return [photographed(drawn, code * _VERSIONS + version) for version in range(_VERSIONS)] if photo else [drawn]

    count = game.codes + (1 + max(game.height, game.width)) * style.coordinates
    return Tiles(side, count, draw, _VERSIONS if photo else 1)


def photographed(tile: Pixels, key: int) -> Pixels:
    """A tile as if photographed: stained, unevenly lit, tinted and grainy; a function of the tile and the key alone.

    Args:
        tile: uint8 (side, side, 3).
        key: of the draws; each gives another version.
    """
    side = len(tile)
    stains, grain = 16, side * side * 3
    draws = uniforms(np.array([key], np.uint64), 0, stains + 6 + grain)[0] - 0.5
    # Stains: brightness on a lattice of 4 x 4 points, in between by lines.
    at = np.arange(side) * 3 / side
    low = at.astype(np.intp)
    share = at - low
    lattice = draws[:stains].reshape(4, 4)
    rows = lattice[low] * (1 - share)[:, None] + lattice[low + 1] * share[:, None]
    stained = rows[:, low] * (1 - share) + rows[:, low + 1] * share
    slope_down, slope_right, brightness, *tint = draws[stains : stains + 6]
    place = np.arange(side) / side - 0.5
    light = 1 + 0.3 * stained + 0.16 * slope_down * place[:, None] + 0.16 * slope_right * place + 0.1 * brightness
    colour = 1 + 0.08 * np.array(tint)
    noise = 26 * draws[stains + 6 :].reshape(side, side, 3)
    seen = (18 + 0.9 * tile) * light[..., None] * colour + noise
    photo: Pixels = np.clip(np.rint(seen), 0, 255).astype(np.uint8)
    return photo
