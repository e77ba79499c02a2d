"""Tile sets for pictures that visual models read (``ragen_gym.core.turn_config.TILE_SETS``): how each draws a tile."""

from __future__ import annotations

from collections.abc import Callable

from ragen_gym.core.text import Vocabulary
from ragen_gym.games.game import Game
from ragen_gym.render.bandit import lines_of
from ragen_gym.render.canvas import Canvas, Colour
from ragen_gym.render.frames import painter_of

__all__ = ["draw_number", "shape_names", "tile_drawer"]

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


def tile_drawer(name: str, game: Game, vocabulary: Vocabulary) -> tuple[Callable[[Canvas, int], None], int]:
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


def draw_number(canvas: Canvas, number: int | None) -> None:
    """A cell of the margin, with the number of its row or column."""
    canvas.fill(_MARGIN)
    if number is not None:
        canvas.text(0.5, 0.5, 0.8, str(number), _PAPER, 0.9)


def _shapes() -> list[tuple[str, str]]:
    """Every (shape, colour), so that neighbours in the list differ in both."""
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
