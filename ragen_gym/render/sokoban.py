"""Sokoban in pictures: brick walls, wooden crates, marked targets, a worker with a yellow helmet."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ragen_gym.games.sokoban.rules import BOXES, PLAYERS, TARGETS, Tile
from ragen_gym.render.canvas import Canvas, Colour

if TYPE_CHECKING:
    from ragen_gym.games.game import Game

_FLOOR: Colour = (238, 229, 211)
_FLOOR_EDGE: Colour = (222, 211, 190)
_MORTAR: Colour = (72, 66, 78)
_BRICK: Colour = (124, 112, 124)
_BRICK_LIGHT: Colour = (146, 134, 146)
_RED: Colour = (216, 58, 74)
_PINK: Colour = (250, 190, 190)
_WOOD: Colour = (196, 138, 72)
_FRAME: Colour = (146, 94, 42)
_NAIL: Colour = (96, 60, 26)
_GREEN: Colour = (104, 178, 92)
_GREEN_FRAME: Colour = (52, 126, 62)
_GREEN_NAIL: Colour = (28, 84, 40)
_WHITE: Colour = (255, 255, 255)
_HELMET: Colour = (250, 196, 40)
_HELMET_SHADE: Colour = (222, 160, 22)
_SKIN: Colour = (244, 200, 160)
_DARK: Colour = (44, 42, 56)
_OVERALL: Colour = (48, 96, 176)


def draw_tile(canvas: Canvas, game: Game, tile: int) -> None:
    """One cell of a warehouse."""
    if tile == Tile.WALL:
        _wall(canvas)
        return
    canvas.fill(_FLOOR)
    if canvas.unit >= 12:
        edge = 0.02 if canvas.unit >= 32 else 0.6 / canvas.unit
        canvas.rectangle(0, 1 - edge, 1, edge, _FLOOR_EDGE)
        canvas.rectangle(1 - edge, 0, edge, 1, _FLOOR_EDGE)
    if tile in TARGETS and tile not in BOXES:
        _target(canvas, 0.46 if tile in PLAYERS else 0.36)
    if tile in BOXES:
        _crate(canvas, *((_GREEN, _GREEN_FRAME, _GREEN_NAIL) if tile in TARGETS else (_WOOD, _FRAME, _NAIL)))
        if tile in TARGETS:
            _tick(canvas)
    elif tile in PLAYERS:
        _worker(canvas)


def _wall(canvas: Canvas) -> None:
    canvas.fill(_MORTAR)
    if canvas.unit < 14:
        canvas.rectangle(0, 0, 0.88, 0.88, _BRICK)
        return
    gap, third = 0.035, 1 / 3
    for course, joints in enumerate(((0.0, 0.5, 1.0), (-0.25, 0.25, 0.75, 1.25), (0.0, 0.5, 1.0))):
        top = course * third
        for left, right in pairwise(joints):
            box = left + gap, top + gap, right - left - 2 * gap, third - 2 * gap
            canvas.rectangle(*box, _BRICK, 0.03)
            canvas.rectangle(box[0] + 0.01, box[1] + 0.01, box[2] - 0.02, 0.06, _BRICK_LIGHT, 0.03)


def _target(canvas: Canvas, radius: float) -> None:
    if canvas.unit < 14:
        canvas.polygon([(0.5, 0.5 - radius), (0.5 + radius, 0.5), (0.5, 0.5 + radius), (0.5 - radius, 0.5)], _RED)
        return
    for part, colour in ((1.0, _RED), (0.79, _FLOOR), (0.6, _PINK), (0.36, _RED)):
        canvas.circle(0.5, 0.5, radius * part, colour)


def _crate(canvas: Canvas, wood: Colour, frame: Colour, nail: Colour) -> None:
    if canvas.unit < 14:
        canvas.rectangle(0.06, 0.06, 0.88, 0.88, frame)
        canvas.rectangle(0.20, 0.20, 0.60, 0.60, wood)
        return
    canvas.rectangle(0.10, 0.84, 0.84, 0.10, (120, 104, 80, 90), 0.05)
    canvas.rectangle(0.07, 0.06, 0.86, 0.85, nail, 0.06)
    canvas.rectangle(0.09, 0.08, 0.82, 0.81, frame, 0.05)
    canvas.rectangle(0.20, 0.19, 0.60, 0.59, wood)
    for plank in (0.39, 0.585):
        canvas.rectangle(plank - 0.01, 0.19, 0.02, 0.59, frame)
    canvas.line([(0.255, 0.245), (0.745, 0.725)], 0.115, frame)
    canvas.line([(0.745, 0.245), (0.255, 0.725)], 0.115, frame)
    if canvas.unit >= 32:
        for x in (0.145, 0.855):
            for y in (0.135, 0.835):
                canvas.circle(x, y, 0.022, nail)


def _tick(canvas: Canvas) -> None:
    if canvas.unit < 14:
        canvas.rectangle(0.34, 0.34, 0.32, 0.32, _WHITE)
        return
    canvas.circle(0.5, 0.485, 0.235, _GREEN_FRAME)
    canvas.line([(0.385, 0.49), (0.47, 0.575), (0.62, 0.39)], 0.075, _WHITE)


def _worker(canvas: Canvas) -> None:
    if canvas.unit < 14:
        canvas.rectangle(0.20, 0.50, 0.60, 0.46, _OVERALL)
        canvas.ellipse(0.5, 0.30, 0.32, 0.28, _HELMET)
        canvas.rectangle(0.26, 0.34, 0.48, 0.20, _SKIN)
        return
    canvas.ellipse(0.5, 0.91, 0.27, 0.055, (120, 104, 80, 90))
    for side in (-1, 1):
        canvas.line([(0.5 + side * 0.19, 0.60), (0.5 + side * 0.29, 0.75)], 0.115, _HELMET_SHADE)
        canvas.circle(0.5 + side * 0.295, 0.765, 0.06, _SKIN)
        canvas.rectangle(0.5 + side * 0.105 - 0.085, 0.82, 0.17, 0.10, _DARK, 0.04)
    canvas.rectangle(0.30, 0.53, 0.40, 0.33, _OVERALL, 0.10)
    canvas.rectangle(0.40, 0.53, 0.20, 0.12, _HELMET_SHADE, 0.03)
    canvas.ellipse(0.5, 0.375, 0.215, 0.215, _SKIN)
    canvas.ellipse(0.5, 0.27, 0.245, 0.19, _HELMET)
    canvas.rectangle(0.235, 0.27, 0.53, 0.075, _HELMET, 0.037)
    canvas.rectangle(0.25, 0.315, 0.50, 0.03, _HELMET_SHADE, 0.015)
    canvas.rectangle(0.46, 0.085, 0.08, 0.20, _HELMET_SHADE, 0.04)
    for side in (-1, 1):
        canvas.ellipse(0.5 + side * 0.085, 0.41, 0.03, 0.04, _DARK)
    canvas.arc(0.5, 0.455, 0.07, 0.08, 0.42, 0.025, _DARK)
