"""Boards to pixels without drawing anything: each tile is drawn once per size, then copied by its code.

The drawing needs pygame and happens once per process, game and size; everything after it is NumPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.games.game import Board, Boards, Game
from ragen_gym.render.brush import Brush, Pixels
from ragen_gym.render.painters import painter_of
from ragen_gym.text import EDGE

__all__ = ["SIZES", "atlas", "board_codes", "check_tile_size", "frame_shape", "frames"]

#: Least and greatest side of a tile in pixels.
SIZES = (8, 128)


def check_tile_size(tile_size: int) -> int:
    """Return ``tile_size``, or raise a ValueError that says which sizes there are."""
    if isinstance(tile_size, bool) or not isinstance(tile_size, int) or not SIZES[0] <= tile_size <= SIZES[1]:
        raise ValueError(f"tile_size={tile_size!r} must be a whole number of pixels from {SIZES[0]} to {SIZES[1]}.")
    return tile_size


class _Atlas:
    """The tiles of a game at one size, each drawn when it is first asked for."""

    def __init__(self, game: Game, tile_size: int) -> None:
        self._game, self._painter = game, painter_of(game)
        self.side = self._painter.cell * check_tile_size(tile_size)
        arms = getattr(game, "arms", None)  # a bandit's codes are its arms, not its tiles
        count = len(arms or game.Tile)
        self.tiles = np.empty((count, self.side, self.side, 3), np.uint8)
        self._missing = np.ones(count, bool)

    def need(self, codes: npt.NDArray[np.integer[Any]]) -> None:
        """Draw those of the tiles that are not yet drawn."""
        if not self._missing.any() or not (wanted := self._missing[codes]).any():
            return
        for code in np.unique(codes[wanted]).tolist():
            brush = Brush(1, 1, self.side)
            self._painter.draw_tile(brush, self._game, code)
            self.tiles[code] = brush.pixels()
            self._missing[code] = False


_atlas = lru_cache(maxsize=16)(_Atlas)


def atlas(game: Game, tile_size: int) -> Pixels:
    """Every tile of a game, uint8 (tiles, side, side, 3).

    Raises:
        ValueError: a size out of range.
        gymnasium.error.DependencyNotInstalled: pygame is missing.
    """
    drawn = _Atlas(game, tile_size)
    drawn.need(np.arange(len(drawn.tiles)))
    return drawn.tiles


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
        tile_size: side of a tile in pixels, within `SIZES`.

    Returns:
        uint8 (n, height * side, width * side, 3), where ``side`` is ``tile_size`` (six times that for a bandit).
    """
    drawn = _atlas(game, tile_size)
    drawn.need(codes)
    n, height, width = codes.shape
    side, tiles = drawn.side, drawn.tiles
    # A line of a tile is one item to copy, so that NumPy moves whole lines and not single bytes.
    lines = tiles.reshape(len(tiles), side * side * 3).view(f"V{side * 3}")
    copied = lines[codes[:, :, None, :], np.arange(side)[:, None]]
    return copied.view(np.uint8).reshape(n, height * side, width * side, 3)
