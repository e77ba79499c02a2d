"""Pictures of games with several players: everybody wears a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ragen_gym.games.game import Board, Game
from ragen_gym.render import frozen_lake, sokoban
from ragen_gym.render.canvas import Canvas, Colour, Pixels
from ragen_gym.render.frames import TEXT, Painter, board_codes, frames, painter_of

DrawTile = Callable[[Canvas, Game, int], None]

_COLOURS: tuple[Colour, ...] = (
    (44, 110, 196),
    (208, 62, 56),
    (40, 140, 76),
    (206, 134, 20),
    (132, 72, 180),
    (20, 142, 150),
    (200, 76, 144),
    (96, 92, 88),
)
_OTHER: Colour = (120, 60, 160)


def picture(game: Game, board: Board, cells: Sequence[int | None], tile_size: int) -> Pixels:
    """The board with a number on every player: uint8 (height, width, 3).

    Args:
        game: the game.
        board: with every player on it.
        cells: for each player its index on the board, None where it has no place yet.
        tile_size: side of a tile in pixels.
    """
    pixels: Pixels = frames(game, board_codes(game, board)[None], tile_size)[0]
    side = painter_of(game).cell * tile_size
    size = min(side, max(8, tile_size // 3)) if side == tile_size else tile_size
    crowd: dict[int, int] = {}
    for player, cell in enumerate(cells):
        if cell is not None:
            row, column = divmod(cell, game.width + 1)
            down, across = divmod(crowd.get(cell, 0), side // size)
            y = down * size if side == tile_size else side - (down + 1) * size  # a machine has its name above
            _badge(pixels, player, column * side + across * size, row * side + y, size)
            crowd[cell] = crowd.get(cell, 0) + 1
    return pixels


def _badge(pixels: Pixels, player: int, x: int, y: int, size: int) -> None:
    canvas = Canvas(1, 1, size)
    canvas.circle(0.5, 0.5, 0.48, TEXT)
    canvas.circle(0.5, 0.5, 0.41, _COLOURS[player])
    canvas.text(0.5, 0.5, 0.62, str(player), TEXT)
    canvas.over(pixels, x, y)


def _draw_shared(single: DrawTile, own: dict[int, int], canvas: Canvas, game: Game, tile: int) -> None:
    """A cell on which another player looks like the game's own (``own`` gives its tile), but for a mark."""
    single(canvas, game, own.get(tile, tile))
    if tile in own:
        canvas.rectangle(0.04, 0.04, 0.26, 0.26, TEXT, 0.13)
        canvas.rectangle(0.07, 0.07, 0.20, 0.20, _OTHER, 0.10)


SHARED_LAKE = Painter(partial(_draw_shared, frozen_lake.draw_tile, {6: 3, 7: 5}))
SHARED_SOKOBAN = Painter(partial(_draw_shared, sokoban.draw_tile, {7: 5, 8: 6}))
