"""FrozenLake in pictures: a penguin on the ice, holes of open water, a flag on the goal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen_gym.games.frozen_lake.rules import Tile
from ragen_gym.render.canvas import Canvas, Colour, Pixels
from ragen_gym.render.recorder import DIRECTIONS, player_cell

if TYPE_CHECKING:
    from ragen_gym.games.game import Game
    from ragen_gym.render.recorder import Recording

_ICE: Colour = (222, 240, 250)
_ICE_SHADE: Colour = (196, 223, 240)
_GLINT: Colour = (250, 254, 255)
_RIM: Colour = (148, 192, 222)
_WATER: Colour = (22, 58, 104)
_DEEP: Colour = (13, 36, 72)
_RIPPLE: Colour = (92, 146, 198)
_BLACK: Colour = (38, 42, 58)
_WHITE: Colour = (253, 253, 255)
_ORANGE: Colour = (246, 150, 40)
_RED: Colour = (222, 52, 62)
_POLE: Colour = (92, 66, 50)
_SNOW: Colour = (255, 255, 255)
_GREEN: Colour = (46, 160, 88)
_MEANT: Colour = (60, 74, 110, 110)
_WENT: Colour = (32, 120, 200, 225)
_SLIPPED: Colour = (226, 84, 30, 235)


def draw_tile(canvas: Canvas, game: Game, tile: int) -> None:
    """One cell of a lake."""
    _ice(canvas)
    if tile in (Tile.HOLE, Tile.PLAYER_IN_HOLE):
        _hole(canvas)
    if tile == Tile.GOAL:
        _flag(canvas, _RED)
    elif tile == Tile.PLAYER_ON_GOAL:
        canvas.ellipse(0.5, 0.53, 0.48, 0.45, (255, 222, 104))
        _flag(canvas, _GREEN, 0.64, 0.07, 0.68)
        _penguin(canvas, 0.38, 0.53, 0.88)
    elif tile == Tile.PLAYER:
        _penguin(canvas, 0.5, 0.51, 1.0)
    elif tile == Tile.PLAYER_IN_HOLE:
        _penguin(canvas, 0.5, 0.56, 0.92, swims=True)
        _surface_of_water(canvas)


def draw_move(pixels: Pixels, game: Game, recording: Recording, tile: int) -> None:
    """The last move: an arrow the way the player went, and a pale one the way it meant to go if that is another."""
    if not recording.moves:
        return
    start, end = player_cell(game, recording.before), player_cell(game, recording.board)
    if start is None or end is None:
        return
    row, column = DIRECTIONS[game.Action(recording.moves[-1][0]).name]
    moved = end[0] - start[0], end[1] - start[1]
    canvas = Canvas(3, 3, tile, fineness=4)
    if moved != (row, column):  # where the player stayed, the arrow keeps clear of it
        _arrow(canvas, row, column, _MEANT, 0.12 if moved != (0, 0) else 0.34)
    if moved != (0, 0):
        _arrow(canvas, *moved, _WENT if moved == (row, column) else _SLIPPED)
    canvas.over(pixels, (start[1] - 1) * tile, (start[0] - 1) * tile)


def _ice(canvas: Canvas) -> None:
    canvas.fill(_ICE)
    if canvas.unit >= 12:
        canvas.polygon([(0, 1), (0, 0.62), (0.62, 0), (1, 0)], (232, 246, 253))
        canvas.line([(0.14, 0.36), (0.36, 0.14)], 0.035, _GLINT)
        canvas.line([(0.70, 0.90), (0.90, 0.70)], 0.035, _GLINT)
        canvas.line([(0.80, 0.93), (0.93, 0.80)], 0.02, _GLINT)
    edge = 0.035 if canvas.unit >= 24 else 0.6 / canvas.unit
    canvas.rectangle(0, 1 - edge, 1, edge, _ICE_SHADE)
    canvas.rectangle(1 - edge, 0, edge, 1, _ICE_SHADE)


def _hole(canvas: Canvas) -> None:
    canvas.ellipse(0.5, 0.52, 0.44, 0.41, _RIM)
    canvas.ellipse(0.5, 0.55, 0.40, 0.36, _WATER)
    canvas.ellipse(0.5, 0.60, 0.34, 0.28, _DEEP)
    if canvas.unit >= 16:
        canvas.line([(0.34, 0.42), (0.44, 0.39)], 0.03, _RIPPLE)
        canvas.line([(0.52, 0.62), (0.66, 0.60)], 0.025, _RIPPLE)
        canvas.line([(0.30, 0.66), (0.38, 0.68)], 0.025, _RIPPLE)


def _surface_of_water(canvas: Canvas) -> None:
    """Water in front of whoever is in it."""
    if canvas.unit < 14:
        canvas.ellipse(0.5, 0.86, 0.34, 0.16, _WATER)
        return
    canvas.ellipse(0.5, 0.725, 0.33, 0.185, _DEEP)
    canvas.arc(0.5, 0.60, 0.27, 0.07, 0.43, 0.035, _RIPPLE)
    canvas.arc(0.5, 0.66, 0.30, 0.12, 0.38, 0.025, _RIPPLE)
    for x, y, radius in ((0.19, 0.40, 0.035), (0.81, 0.38, 0.04), (0.16, 0.54, 0.025), (0.85, 0.53, 0.025)):
        canvas.circle(x, y, radius, _RIPPLE)


def _flag(canvas: Canvas, colour: Colour, x: float = 0.38, y: float = 0.10, cloth: float = 1.0) -> None:
    if canvas.unit < 14:  # so small that only the cloth counts
        canvas.rectangle(x - 0.16, y + 0.02, 0.14, 0.82, _POLE)
        canvas.polygon([(x - 0.02, y), (x + 0.52 * cloth, y + 0.24), (x - 0.02, y + 0.52)], colour)
        return
    canvas.ellipse(x, 0.84, 0.24, 0.085, _ICE_SHADE)
    canvas.ellipse(x, 0.82, 0.20, 0.075, _SNOW)
    canvas.line([(x, y + 0.02), (x, 0.80)], 0.055, _POLE)
    tip, half = x + 0.46 * cloth, x + 0.24 * cloth
    canvas.polygon([(x, y), (half, y + 0.055), (tip, y + 0.17), (half, y + 0.30), (x, y + 0.36)], colour)
    canvas.polygon([(x, y + 0.20), (x + 0.42 * cloth, y + 0.19), (half, y + 0.30), (x, y + 0.36)], _darker(colour))
    canvas.circle(x, y, 0.045, (250, 206, 80))


def _penguin(canvas: Canvas, x: float, y: float, size: float, swims: bool = False) -> None:
    def ellipse(dx: float, dy: float, across: float, down: float, colour: Colour) -> None:
        canvas.ellipse(x + dx * size, y + dy * size, across * size, down * size, colour)

    if canvas.unit < 14:
        ellipse(0, 0, 0.36, 0.44, _BLACK)
        ellipse(0, 0.16, 0.22, 0.26, _WHITE)
        ellipse(0, -0.12, 0.17, 0.11, _ORANGE)
        return
    if not swims:
        ellipse(0, 0.40, 0.30, 0.065, (170, 204, 228))
    for side in (-1, 1):
        if not swims:
            ellipse(side * 0.14, 0.385, 0.11, 0.05, _ORANGE)
        canvas.polygon(
            [
                (x + side * dx * size, y + dy * size)
                for dx, dy in ((0.22, -0.08), (0.40, 0.20), (0.31, 0.24), (0.2, 0.16))
            ],
            _BLACK,
        )
    ellipse(0, 0.10, 0.285, 0.29, _BLACK)
    ellipse(0, -0.19, 0.215, 0.205, _BLACK)
    ellipse(0, 0.15, 0.205, 0.225, _WHITE)
    for side in (-1, 1):
        ellipse(side * 0.085, -0.16, 0.105, 0.115, _WHITE)
        ellipse(side * 0.085, -0.185, 0.036, 0.045, _BLACK)
    canvas.polygon(
        [(x + dx * size, y + dy * size) for dx, dy in ((-0.075, -0.12), (0.075, -0.12), (0, -0.015))], _ORANGE
    )


def _arrow(canvas: Canvas, row: int, column: int, colour: Colour, start: float = 0.12) -> None:
    """From the middle cell of a canvas of 3 x 3 cells towards a neighbour, ``start`` cells from the middle on."""

    def at(along: float, aside: float) -> tuple[float, float]:
        return 1.5 + column * along + row * aside, 1.5 + row * along + column * aside

    canvas.polygon(
        [
            at(start, 0.07),
            at(start + 0.18, 0.07),
            at(start + 0.18, 0.17),
            at(start + 0.44, 0),
            at(start + 0.18, -0.17),
            at(start + 0.18, -0.07),
            at(start, -0.07),
        ],
        colour,
    )


def _darker(colour: Colour) -> Colour:
    red, green, blue = colour[:3]
    return red * 4 // 5, green * 4 // 5, blue * 4 // 5
