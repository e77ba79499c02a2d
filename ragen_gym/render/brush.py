"""Shapes on a surface, in units of a cell, with smooth edges: drawn several times as large and then scaled down."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import cos, pi, sin
from types import ModuleType
from typing import TYPE_CHECKING

from gymnasium.error import DependencyNotInstalled

if TYPE_CHECKING:
    import pygame

__all__ = ["Brush", "Colour", "Point", "load_pygame"]

#: (red, green, blue) or (red, green, blue, opacity), 0 to 255.
Colour = tuple[int, int, int] | tuple[int, int, int, int]
Point = tuple[float, float]

_LEAST_SIDE, _LEAST_FACTOR = 256, 4

#: Pygame's size of its own font for text one unit high, and the height of a capital as a part of that size.
_FONT_SIZE, _CAPITAL = 1.37, 0.5


def load_pygame() -> ModuleType:
    """Pygame, without its greeting.

    Raises:
        gymnasium.error.DependencyNotInstalled: it is not installed.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError:
        raise DependencyNotInstalled("pictures need pygame: run `pip install 'ragen-gym[render]'`.") from None
    return pygame


class Brush:
    """A transparent canvas whose coordinates are cells: (0, 0) is its upper left corner, (1, 1) one cell further.

    Args:
        columns: width in cells.
        rows: height in cells.
        unit: side of a cell in pixels of the finished picture.
    """

    def __init__(self, columns: float, rows: float, unit: int) -> None:
        self.pygame = load_pygame()
        self.unit = unit
        self._size = round(columns * unit), round(rows * unit)
        factor = max(_LEAST_FACTOR, -(-_LEAST_SIDE // unit))
        self._scale = float(unit * factor)
        self._canvas = self.pygame.Surface((self._size[0] * factor, self._size[1] * factor), self.pygame.SRCALPHA)

    def finish(self) -> pygame.Surface:
        """The picture at its own size; where it is translucent its colours are premultiplied by the opacity."""
        surface: pygame.Surface = self.pygame.transform.smoothscale(self._canvas.premul_alpha(), self._size)
        return surface

    def over(self, surface: pygame.Surface, x: int, y: int) -> None:
        """Lay the finished picture over a surface, its upper left corner at that pixel."""
        surface.blit(self.finish(), (x, y), special_flags=self.pygame.BLEND_PREMULTIPLIED)

    def fill(self, colour: Colour) -> None:
        """Cover everything."""
        self._canvas.fill(colour)

    def rectangle(self, x: float, y: float, width: float, height: float, colour: Colour, radius: float = 0.0) -> None:
        """A rectangle from its upper left corner, its corners rounded."""
        s = self._scale
        left, top = round(x * s), round(y * s)
        box = self.pygame.Rect(left, top, round((x + width) * s) - left, round((y + height) * s) - top)
        self._draw(colour, lambda canvas, c: self.pygame.draw.rect(canvas, c, box, border_radius=round(radius * s)))

    def ellipse(self, x: float, y: float, across: float, down: float, colour: Colour) -> None:
        """An ellipse from its centre and its two radii."""
        s = self._scale
        box = self.pygame.Rect(
            round((x - across) * s), round((y - down) * s), round(2 * across * s), round(2 * down * s)
        )
        self._draw(colour, lambda canvas, c: self.pygame.draw.ellipse(canvas, c, box))

    def circle(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc."""
        self.ellipse(x, y, radius, radius, colour)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        corners = [(x * self._scale, y * self._scale) for x, y in points]
        self._draw(colour, lambda canvas, c: self.pygame.draw.polygon(canvas, c, corners))

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """A line through points, with round ends and joints."""
        if len(colour) == 4:
            self._draw(colour, lambda canvas, c: self._stroke(canvas, points, width, c))
        else:
            self._stroke(self._canvas, points, width, colour)

    def arc(self, x: float, y: float, radius: float, start: float, end: float, width: float, colour: Colour) -> None:
        """A part of a circle from the angle ``start`` to ``end``, in turns, clockwise from the right."""
        angles = [2 * pi * (start + (end - start) * i / 32) for i in range(33)]
        self.line([(x + radius * cos(a), y + radius * sin(a)) for a in angles], width, colour)

    def text(
        self,
        x: float,
        y: float,
        height: float,
        text: str,
        colour: Colour,
        width: float | None = None,
        left: bool = False,
    ) -> None:
        """A line of text of that height, made smaller where it would be wider than ``width``.

        The capitals have their middle at y. x is the middle of the line, or its left end where ``left`` is set.
        """
        s = self._scale
        font = self.pygame.font
        if not font.get_init():
            font.init()
        size = max(4, round(height * s * _FONT_SIZE))
        wide = font.Font(None, size).size(text)[0]
        if width is not None and wide > width * s:
            size = max(4, int(size * width * s / wide))
        face = font.Font(None, size)
        drawn = face.render(text, True, colour)
        baseline = y * s + _CAPITAL * size / 2
        self._canvas.blit(drawn, (x * s - (0 if left else drawn.get_width() / 2), baseline - face.get_ascent()))

    def _stroke(self, canvas: pygame.Surface, points: Sequence[Point], width: float, colour: Colour) -> None:
        s, half = self._scale, width / 2
        for (x0, y0), (x1, y1) in pairwise(points):
            length = max(1e-9, ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
            dx, dy = (y1 - y0) / length * half, (x0 - x1) / length * half
            corners = [(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)]
            self.pygame.draw.polygon(canvas, colour, [(x * s, y * s) for x, y in corners])
        for x, y in points:
            self.pygame.draw.circle(canvas, colour, (x * s, y * s), half * s)

    def _draw(
        self,
        colour: Colour,
        draw: Callable[[pygame.Surface, Colour], object],
    ) -> None:
        """Draw; what is translucent goes over a layer of its own, so that it mixes with what lies below."""
        if len(colour) == 3:
            draw(self._canvas, colour)
            return
        layer = self.pygame.Surface(self._canvas.get_size(), self.pygame.SRCALPHA)
        draw(layer, colour)
        self._canvas.blit(layer, (0, 0))
