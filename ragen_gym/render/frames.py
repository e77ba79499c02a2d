"""Boards as pixels, with a caption below, and as GIF files; which functions draw which game.

A game is drawn by the module that its class names as ``painter``; one without is drawn as coloured cells with its own
symbols on them, so a new game has pictures from the first day.

A tile is drawn once per process, game and size, text on it by pygame; everything after it is copying lines of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BytesIO
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled

from ragen_gym.core.text import EDGE
from ragen_gym.core.turn_config import check_tile_size
from ragen_gym.games.game import OVER, PLAYING, Board, Boards, Game
from ragen_gym.render.canvas import Canvas, Colour, Pixels
from ragen_gym.render.recorder import Recording

#: A caption must be legible, so a picture is at least this wide, however small its tiles.
_LEAST_WIDTH = 176
_ROWS = 2.5

_GROUND: Colour = (30, 34, 46)
TEXT: Colour = (238, 240, 246)
_FAINT: Colour = (164, 172, 190)
_PLAYING: Colour = (86, 128, 196)
_SUCCESS: Colour = (72, 186, 108)
_OVER: Colour = (226, 84, 84)

_GIF_COLOURS = 96
_GIF_SHOWN, _GIF_LAST = 700, 1800  # milliseconds
_CELL_COLOURS: tuple[Colour, ...] = (
    (236, 232, 222),
    (96, 104, 124),
    (222, 92, 84),
    (92, 164, 108),
    (214, 160, 72),
    (76, 124, 196),
    (150, 96, 180),
)


@dataclass(frozen=True)
class Painter:
    """Functions that draw a game.

    Attributes:
        draw_tile: ``draw_tile(canvas, game, code)`` covers one cell, from (0, 0) to (1, 1) of the canvas.
        draw_move: ``draw_move(pixels, game, recording, side)`` draws the last move onto a finished board, in place; a
            tile has ``side`` pixels. None where there is nothing to add.
        cell: side of a board's cell in tiles.
    """

    draw_tile: Callable[[Canvas, Game, int], None]
    draw_move: Callable[[Pixels, Game, Recording, int], None] | None = None
    cell: int = 1


def painter_of(game: Game) -> Painter:
    """The painter that the game's class names, or one of symbols on coloured cells."""
    return _painter(game.painter)


@cache
def _painter(name: str) -> Painter:
    if not name:
        return Painter(_draw_symbol)
    found = resolve_name(name)
    if isinstance(found, Painter):
        return found
    return Painter(found.draw_tile, getattr(found, "draw_move", None), getattr(found, "CELL", 1))


def _draw_symbol(canvas: Canvas, game: Game, tile: int) -> None:
    canvas.fill(_CELL_COLOURS[0])
    symbols = game.own_vocabulary.symbols
    colour = _CELL_COLOURS[tile % len(_CELL_COLOURS)]
    if tile:
        canvas.rectangle(0.06, 0.06, 0.88, 0.88, colour, 0.12)
    if canvas.unit >= 14 and tile < len(symbols):
        canvas.text(0.5, 0.5, 0.5, symbols[tile], (255, 255, 255) if tile else (150, 146, 136), 0.7)


class Tiles:
    """Tiles of one size, each drawn when it is first needed.

    Args:
        side: of a tile in pixels.
        count: how many there are.
        draw: gives the versions of a tile, uint8 (side, side, 3) each.
        versions: how many those are.

    Attributes:
        pixels: uint8 (versions, count, side, side, 3).
    """

    def __init__(self, side: int, count: int, draw: Callable[[int], Sequence[Pixels]], versions: int = 1) -> None:
        self.side, self.count, self._draw = side, count, draw
        self.pixels = np.empty((versions, count, side, side, 3), np.uint8)
        self._missing = np.ones(count, np.bool_)

    def need(self, codes: npt.NDArray[np.integer[Any]]) -> None:
        """Draw those of the tiles that are not yet drawn."""
        if not self._missing.any() or not (wanted := self._missing[codes]).any():
            return
        for code in np.unique(codes[wanted]).tolist():
            self.pixels[:, code] = self._draw(code)
            self._missing[code] = False


def remembered(make: Callable[..., Tiles]) -> Callable[..., Tiles]:
    """A function of a game and more, which keeps the last tiles; not of a game with an option that cannot be hashed."""
    kept = lru_cache(maxsize=32)(make)

    def tiles(*key: Any) -> Tiles:
        try:
            return kept(*key)
        except TypeError:  # such an option is a list
            return make(*key)

    return tiles


@remembered
def _tiles(game: Game, tile_size: int) -> Tiles:
    painter = painter_of(game)
    side = painter.cell * check_tile_size(tile_size)

    def draw(code: int) -> list[Pixels]:
        canvas = Canvas(1, 1, side)
        painter.draw_tile(canvas, game, code)
        return [canvas.pixels()]

    return Tiles(side, game.codes, draw)


def frame_shape(game: Game, tile_size: int) -> tuple[int, int, int]:
    """(height, width, 3) of a board's picture."""
    side = painter_of(game).cell * check_tile_size(tile_size)
    return game.height * side, game.width * side, 3


def board_codes(game: Game, board: Board) -> Boards:
    """The tile codes of one board without its edges, uint8 (height, width); not a copy where it can be avoided."""
    return np.frombuffer(bytes(board) + bytes([EDGE]), np.uint8).reshape(game.height, -1)[:, : game.width]


def frames(game: Game, codes: Boards, tile_size: int) -> Pixels:
    """Pictures of boards, without captions.

    Args:
        game: the game.
        codes: tile codes, uint8 (n, height, width).
        tile_size: side of a tile in pixels, 8 to 128.

    Returns:
        uint8 (n, height * side, width * side, 3), where ``side`` is ``tile_size`` (six times that for a bandit).
    """
    drawn = _tiles(game, tile_size)
    drawn.need(codes)
    n, height, width = codes.shape
    side, tiles = drawn.side, drawn.pixels[0]
    # A line of a tile is one item to copy, so that NumPy moves whole lines and not single bytes.
    lines = tiles.reshape(len(tiles), side * side * 3).view(f"V{side * 3}")
    copied = lines[codes[:, :, None, :], np.arange(side)[:, None]]
    pixels: Pixels = copied.view(np.uint8).reshape(n, height * side, width * side, 3)
    return pixels


def picture(game: Game, recording: Recording, tile_size: int) -> Pixels:
    """The episode as it stands, uint8 (height, width, 3), both even, as video encoders ask."""
    board = frames(game, board_codes(game, recording.board)[None], tile_size)[0]
    painter = painter_of(game)
    if painter.draw_move is not None and recording.moves:
        painter.draw_move(board, game, recording, tile_size)
    height, width, _ = board.shape
    caption = _caption(game, recording, _even(max(width, _LEAST_WIDTH)))
    out = np.empty((_even(height + caption.shape[0]), caption.shape[1], 3), np.uint8)
    out[:] = _GROUND
    left = (out.shape[1] - width) // 2
    out[:height, left : left + width] = board
    out[height : height + caption.shape[0]] = caption
    return out


def _even(size: int) -> int:
    return size + size % 2


def _caption(game: Game, recording: Recording, width: int) -> Pixels:
    line = max(14, min(28, width // 14), width // 36)  # its height in pixels
    columns = width / line
    canvas = Canvas(columns, _ROWS, line, fineness=4)
    canvas.fill(_GROUND)
    colour, ending = {PLAYING: (_PLAYING, ""), OVER: (_OVER, ": over")}.get(recording.outcome, (_SUCCESS, ": success"))
    canvas.rectangle(0, 0, columns, 0.16, colour)
    room = columns - 0.8
    text = recording.last_move(game) + ending
    canvas.text(0.4, 0.86, 0.62, text, TEXT if recording.outcome == PLAYING else colour, room, left=True)
    reward = recording.moves[-1][1] if recording.moves else 0.0
    facts = f"step {len(recording.moves)}    reward {reward:g}    sum {recording.total:.4g}"
    canvas.text(0.4, 1.78, 0.54, facts, _FAINT, room, left=True)
    return canvas.pixels()


def gif(pictures: Sequence[Pixels]) -> bytes:
    """A GIF that plays for ever, of pictures uint8 (height, width, 3), all of one shape; the last is shown longest.

    Raises:
        gymnasium.error.DependencyNotInstalled: Pillow is missing.
    """
    try:
        from PIL import Image as image  # a module
    except ImportError:
        raise DependencyNotInstalled("GIF files need Pillow: run `pip install 'ragen-gym[render]'`.") from None
    # One palette for all frames, made from all of them side by side, so that nothing flickers.
    palette = image.fromarray(np.concatenate(list(pictures), axis=1)).quantize(
        _GIF_COLOURS, method=image.Quantize.MEDIANCUT
    )
    drawn = [image.fromarray(p).quantize(palette=palette, dither=image.Dither.NONE) for p in pictures]
    times = [_GIF_SHOWN] * (len(drawn) - 1) + [_GIF_LAST]
    out = BytesIO()
    drawn[0].save(out, "GIF", save_all=True, append_images=drawn[1:], duration=times, loop=0, optimize=False)
    return out.getvalue()
