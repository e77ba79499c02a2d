"""Shapes in units of a cell, with smooth edges: drawn several times as large, then averaged down, all in NumPy.

The same shapes give the same bits on every machine. Only lines of text that are not in the pixel font, 5 x 7
pixels a character, need pygame.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, cos, floor, pi, sin
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled

#: Pixels from one character to the next, and of a line with its descenders.
ADVANCE, HEIGHT = 6, 8

# Five bytes a character, a column each, the lowest bit at the top; from the space to the tilde.
_ASCII = """
0000000000 00005F0000 0007000700 147F147F14 242A7F2A12 2313086462 3649562050 0000070000
001C224100 0041221C00 2A1C7F1C2A 08083E0808 0080703000 0808080808 0000606000 2010080402
3E5149453E 00427F4000 7249494946 2141494D33 1814127F10 2745454539 3C4A494931 4121110907
3649494936 464949291E 0000140000 0040340000 0008142241 1414141414 0041221408 0201590906
3E415D594E 7C1211127C 7F49494936 3E41414122 7F4141413E 7F49494941 7F09090901 3E41415173
7F0808087F 00417F4100 2040413F01 7F08142241 7F40404040 7F021C027F 7F0408107F 3E4141413E
7F09090906 3E4151215E 7F09192946 2649494932 03017F0103 3F4040403F 1F2040201F 3F4038403F
6314081463 0304780403 6159494D43 007F414141 0204081020 004141417F 0402010204 4040404040
0003070800 2054547840 7F28444438 3844444428 384444287F 3854545418 00087E0902 18A4A49C78
7F08040478 00447D4000 2040403D00 7F10284400 00417F4000 7C04780478 7C08040478 3844444438
FC18242418 18242418FC 7C08040408 4854545424 04043F4424 3C4040207C 1C2040201C 3C4030403C
4428102844 4C9090907C 4464544C44 0008364100 0000770000 0041360800 0201020402
"""
_COLUMNS = {chr(32 + place): bytes.fromhex(columns) for place, columns in enumerate(_ASCII.split())}
_COLUMNS["√"] = bytes.fromhex("1820403F01")
_UNKNOWN = bytes.fromhex("7F4141417F")  # an empty box


def missing(text: str) -> str:
    """The characters of a text that the font lacks, each once."""
    return "".join(dict.fromkeys(character for character in text if character not in _COLUMNS))


@lru_cache(1024)
def glyphs(text: str) -> npt.NDArray[np.bool_]:
    """A line of text, bool (8, 6 * characters - 1), True where there is ink; a box for a character that is missing."""
    columns = b"\0".join(_COLUMNS.get(character, _UNKNOWN) for character in text)
    bits = np.frombuffer(columns, np.uint8)[None, :] >> np.arange(HEIGHT, dtype=np.uint8)[:, None] & 1
    ink: npt.NDArray[np.bool_] = bits.astype(np.bool_)
    ink.setflags(write=False)
    return ink


Pixels = npt.NDArray[np.uint8]

#: (red, green, blue) or (red, green, blue, opacity), 0 to 255.
Colour = tuple[int, int, int] | tuple[int, int, int, int]
Point = tuple[float, float]

_LEAST_SIDE, _LEAST_FACTOR = 384, 2

#: Pygame's size of its own font for text one unit high, and the height of a capital as a part of that size.
_FONT_SIZE, _CAPITAL = 1.37, 0.5
#: Height of a capital of the pixel font in its pixels, and as a part of the height of a text.
_PIXELS, _PIXEL_CAPITAL = 7, 0.68


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
        pixel_font: whether text is in the font of ``ragen_gym.render.canvas``, without pygame.
    """

    def __init__(
        self, columns: float, rows: float, unit: int, fineness: int | None = None, pixel_font: bool = False
    ) -> None:
        self.unit, self.pixel_font = unit, pixel_font
        self._size = round(columns * unit), round(rows * unit)
        f = self._factor = fineness or max(_LEAST_FACTOR, -(-_LEAST_SIDE // unit))
        self._scale = float(unit * f)
        #: Red, green and blue, each times the opacity, and the opacity.
        self._canvas = np.zeros((self._size[1] * f, self._size[0] * f, 4), np.uint8)

    def pixels(self) -> Pixels:
        """The picture at its own size, uint8 (height, width, 3); black where nothing was drawn."""
        return self._reduced(self._canvas[..., :3])

    def over(self, pixels: Pixels, x: int, y: int) -> None:
        """Lay the picture over another one, its upper left corner at that pixel; what lies outside is cut off."""
        left, top = max(x, 0), max(y, 0)
        below = pixels[top : max(y + self._size[1], 0), left : max(x + self._size[0], 0)]
        part = (slice(top - y, top - y + below.shape[0]), slice(left - x, left - x + below.shape[1]))
        opacity = self._reduced(self._canvas[..., 3:])[part].astype(np.uint16)
        below[:] = self.pixels()[part] + (below * (255 - opacity) + 127) // 255

    def _reduced(self, canvas: Pixels) -> Pixels:
        """Averages over the squares that become one pixel: (height * f, width * f, c) to (height, width, c)."""
        f, (width, height) = self._factor, self._size
        lines = canvas.reshape(height, f, width * f, -1).sum(axis=1, dtype=np.uint16)
        sums = lines.reshape(height, width, f, -1).sum(axis=2, dtype=np.uint32)
        averages: Pixels = ((sums + f * f // 2) // (f * f)).astype(np.uint8)
        return averages

    def fill(self, colour: Colour) -> None:
        """Cover everything."""
        self._canvas[:] = (*colour[:3], 255)

    def rectangle(self, x: float, y: float, width: float, height: float, colour: Colour, radius: float = 0.0) -> None:
        """A rectangle from its upper left corner, its corners rounded."""
        s = self._scale
        left, top = round(x * s), round(y * s)
        right, bottom = round((x + width) * s), round((y + height) * s)
        part, xs, ys = self._part(left, top, right, bottom)
        r = min(round(radius * s), (right - left) // 2, (bottom - top) // 2)
        aside = np.maximum(np.maximum(left + r - xs, xs - (right - r)), 0)
        above = np.maximum(np.maximum(top + r - ys, ys - (bottom - r)), 0)
        _paint(part, aside * aside + above * above <= r * r, colour)

    def ellipse(self, x: float, y: float, across: float, down: float, colour: Colour) -> None:
        """An ellipse from its centre and its two radii."""
        s = self._scale
        left, top, width, height = (round(length * s) for length in (x - across, y - down, 2 * across, 2 * down))
        if width <= 0 or height <= 0:
            return
        part, xs, ys = self._part(left, top, left + width, top + height)
        aside, above = (2 * (xs - left) - width) / width, (2 * (ys - top) - height) / height
        _paint(part, aside * aside + above * above <= 1, colour)

    def circle(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc."""
        self.ellipse(x, y, radius, radius, colour)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        # To a 256th of a pixel: sines and cosines end in other bits on other machines.
        corners = [(round(x * self._scale * 256) / 256, round(y * self._scale * 256) / 256) for x, y in points]
        left, top = (floor(min(corner[axis] for corner in corners)) for axis in (0, 1))
        right, bottom = (ceil(max(corner[axis] for corner in corners)) for axis in (0, 1))
        part, xs, ys = self._part(left, top, right, bottom)
        inside = np.zeros(part.shape[:2], np.bool_)
        for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
            if y0 != y1:
                inside ^= ((y0 > ys) != (y1 > ys)) & (xs < x0 + (ys - y0) * ((x1 - x0) / (y1 - y0)))
        _paint(part, inside, colour)

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """A line through points, with round ends and joints, in a colour without opacity."""
        half = width / 2
        for (x0, y0), (x1, y1) in pairwise(points):
            length = max(1e-9, ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
            dx, dy = (y1 - y0) / length * half, (x0 - x1) / length * half
            self.polygon([(x0 + dx, y0 + dy), (x1 + dx, y1 + dy), (x1 - dx, y1 - dy), (x0 - dx, y0 - dy)], colour)
        for x, y in points:
            self.circle(x, y, half, colour)

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
        opacity, up = self._pixel_text(height, text, width) if self.pixel_font else self._text(height, text, width)
        s, f = self._scale, self._factor if self.pixel_font else 1
        at = int(x * s - (0 if left else opacity.shape[1] / 2)) // f * f
        top = int(y * s - up) // f * f
        part, xs, ys = self._part(at, top, at + opacity.shape[1], top + opacity.shape[0])
        rows, columns = ys[:, 0].astype(np.intp) - top, xs[0].astype(np.intp) - at
        _blend(part, opacity[rows][:, columns], colour)

    def _pixel_text(self, height: float, text: str, width: float | None) -> tuple[Pixels, float]:
        """The opacity of a line in pixel font, and how far its top lies above the middle of its capitals."""
        size = max(1, round(height * self.unit * _PIXEL_CAPITAL / _PIXELS))
        if width is not None and text:
            size = max(1, min(size, int(width * self.unit) // (len(text) * ADVANCE - 1)))
        size *= self._factor
        ink = glyphs(text).repeat(size, 0).repeat(size, 1)
        return ink.astype(np.uint8) * np.uint8(255), _PIXELS * size / 2

    def _text(self, height: float, text: str, width: float | None) -> tuple[Pixels, float]:
        pygame, s = load_pygame(), self._scale
        if not pygame.font.get_init():
            pygame.font.init()
        size = max(4, round(height * s * _FONT_SIZE))
        wide = pygame.font.Font(None, size).size(text)[0]
        if width is not None and wide > width * s:
            size = max(4, int(size * width * s / wide))
        face = pygame.font.Font(None, size)
        drawn = face.render(text, True, (255, 255, 255))
        opacity: Pixels = pygame.surfarray.array_alpha(drawn).T
        return opacity, face.get_ascent() - _CAPITAL * size / 2

    def _part(
        self, left: int, top: int, right: int, bottom: int
    ) -> tuple[Pixels, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """What of a box lies on the canvas, and the middles of its pixels: x of (1, width), y of (height, 1)."""
        left, top = max(left, 0), max(top, 0)
        part = self._canvas[top : max(bottom, top), left : max(right, left)]
        xs = np.arange(left, left + part.shape[1]) + 0.5
        return part, xs[None, :], (np.arange(top, top + part.shape[0]) + 0.5)[:, None]


def _paint(part: Pixels, where: Any, colour: Colour) -> None:
    """Lay a colour over the pixels of a part of a canvas that ``where`` marks, bool (height, width)."""
    where = np.broadcast_to(where, part.shape[:2])
    if len(colour) == 3:
        part[where] = (*colour, 255)
        return
    opacity = colour[3]
    over = np.array((*colour[:3], 255), np.uint32) * opacity
    part[where] = (over + part[where].astype(np.uint32) * (255 - opacity) + 127) // 255


def _blend(part: Pixels, opacity: Pixels, colour: Colour) -> None:
    """Lay a colour over a part of a canvas, with an opacity for each pixel, uint8 (height, width)."""
    share = opacity[..., None].astype(np.uint32)
    part[:] = (np.array((*colour[:3], 255), np.uint32) * share + part.astype(np.uint32) * (255 - share) + 127) // 255
