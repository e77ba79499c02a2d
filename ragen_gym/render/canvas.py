"""Shapes in units of a cell, with smooth edges: drawn several times as large, then averaged down in NumPy.

Pygame's own smooth scaling rounds in ways that depend on the machine; the averages here are exact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil, cos, floor, pi, sin
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled

if TYPE_CHECKING:
    import pygame

__all__ = ["Canvas", "Colour", "Pixels", "Point", "load_pygame"]

Pixels = npt.NDArray[np.uint8]

#: (red, green, blue) or (red, green, blue, opacity), 0 to 255.
Colour = tuple[int, int, int] | tuple[int, int, int, int]
Point = tuple[float, float]

_LEAST_SIDE, _LEAST_FACTOR = 384, 2

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


class Canvas:
    """A transparent canvas whose coordinates are cells: (0, 0) is its upper left corner, (1, 1) one cell further.

    Args:
        columns: width in cells.
        rows: height in cells.
        unit: side of a cell in pixels of the finished picture.
        fineness: how many times as large it draws; None chooses enough for a tile's details.
    """

    def __init__(self, columns: float, rows: float, unit: int, fineness: int | None = None) -> None:
        self.pygame = load_pygame()
        self.unit = unit
        self._size = round(columns * unit), round(rows * unit)
        f = self._factor = fineness or max(_LEAST_FACTOR, -(-_LEAST_SIDE // unit))
        self._scale = float(unit * f)
        self._canvas = self.pygame.Surface((self._size[0] * f, self._size[1] * f), self.pygame.SRCALPHA)

    def pixels(self) -> Pixels:
        """The picture at its own size, uint8 (height, width, 3); black where nothing was drawn."""
        return self._reduced(self.pygame.surfarray.pixels3d(self._canvas.premul_alpha()))

    def over(self, pixels: Pixels, x: int, y: int) -> None:
        """Lay the picture over another one, its upper left corner at that pixel; what lies outside is cut off."""
        left, top = max(x, 0), max(y, 0)
        below = pixels[top : max(y + self._size[1], 0), left : max(x + self._size[0], 0)]
        part = (slice(top - y, top - y + below.shape[0]), slice(left - x, left - x + below.shape[1]))
        opacity = self._reduced(self.pygame.surfarray.pixels_alpha(self._canvas)[..., None])[part].astype(np.uint16)
        below[:] = self.pixels()[part] + (below * (255 - opacity) + 127) // 255

    def _reduced(self, canvas: Pixels) -> Pixels:
        """Averages over the squares that become one pixel: (width * f, height * f, c) to (height, width, c)."""
        f, (width, height) = self._factor, self._size
        lines = canvas.reshape(width, f, height * f, -1).sum(axis=1, dtype=np.uint16)
        sums = lines.reshape(width, height, f, -1).sum(axis=2, dtype=np.uint32)
        averages: Pixels = ((sums + f * f // 2) // (f * f)).astype(np.uint8).swapaxes(0, 1)
        return averages

    def fill(self, colour: Colour) -> None:
        """Cover everything."""
        self._canvas.fill(colour)

    def rectangle(self, x: float, y: float, width: float, height: float, colour: Colour, radius: float = 0.0) -> None:
        """A rectangle from its upper left corner, its corners rounded."""
        s = self._scale
        left, top = round(x * s), round(y * s)
        size = round((x + width) * s) - left, round((y + height) * s) - top
        with self._layer(left, top, *size, colour) as (canvas, dx, dy):
            box = (left - dx, top - dy, *size)
            self.pygame.draw.rect(canvas, colour, box, border_radius=round(radius * s))

    def ellipse(self, x: float, y: float, across: float, down: float, colour: Colour) -> None:
        """An ellipse from its centre and its two radii."""
        s = self._scale
        left, top, size = round((x - across) * s), round((y - down) * s), (round(2 * across * s), round(2 * down * s))
        with self._layer(left, top, *size, colour) as (canvas, dx, dy):
            self.pygame.draw.ellipse(canvas, colour, (left - dx, top - dy, *size))

    def circle(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc."""
        self.ellipse(x, y, radius, radius, colour)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        corners = [(x * self._scale, y * self._scale) for x, y in points]
        left, top = (floor(min(corner[axis] for corner in corners)) for axis in (0, 1))
        right, bottom = (ceil(max(corner[axis] for corner in corners)) for axis in (0, 1))
        with self._layer(left, top, right - left + 1, bottom - top + 1, colour) as (canvas, dx, dy):
            self.pygame.draw.polygon(canvas, colour, [(x - dx, y - dy) for x, y in corners])

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """A line through points, with round ends and joints, in a colour without opacity."""
        s, half = self._scale, width / 2
        for (x0, y0), (x1, y1) in pairwise(points):
            length = max(1e-9, ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
            dx, dy = (y1 - y0) / length * half, (x0 - x1) / length * half
            self.polygon([(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)], colour)
        for x, y in points:
            self.pygame.draw.circle(self._canvas, colour, (x * s, y * s), half * s)

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

    @contextmanager
    def _layer(
        self, left: int, top: int, width: int, height: int, colour: Colour
    ) -> Iterator[tuple[pygame.Surface, int, int]]:
        """What to draw on, and the offset of its origin: the canvas; for a translucent colour a layer laid over it."""
        if len(colour) == 3:
            yield self._canvas, 0, 0
            return
        layer = self.pygame.Surface((max(1, width), max(1, height)), self.pygame.SRCALPHA)
        yield layer, left, top
        self._canvas.blit(layer, (left, top))
