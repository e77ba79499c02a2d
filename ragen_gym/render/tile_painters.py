"""Which functions draw which game.

A game without an entry in ``PAINTERS`` is drawn as coloured cells with its own symbols on them, so a new game has
pictures from the first day; ``PAINTERS["MyGame"] = Painter(draw_tile)`` gives it better ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ragen_gym.render.canvas import Canvas, Colour, Pixels

if TYPE_CHECKING:
    from ragen_gym.games.game import Game
    from ragen_gym.render.recorder import Recording

__all__ = ["PAINTERS", "Painter", "painter_of"]


@dataclass(frozen=True)
class Painter:
    """How a game is drawn.

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
    """The painter of the game's class, or of the nearest class that it extends."""
    for base in type(game).__mro__:
        entry = PAINTERS.get(base.__name__)
        if isinstance(entry, str):
            module = import_module(entry)
            entry = Painter(module.draw_tile, getattr(module, "draw_move", None), getattr(module, "CELL", 1))
        if entry is not None:
            return entry
    return Painter(_draw_symbol)


#: By the name of a game's class: its painter, or the module with its ``draw_tile``, imported when first needed.
PAINTERS: dict[str, Painter | str] = {
    "Bandit": "ragen_gym.render.bandit",
    "FrozenLake": "ragen_gym.render.frozen_lake",
    "Sokoban": "ragen_gym.render.sokoban",
}

_CELL_COLOURS: tuple[Colour, ...] = (
    (236, 232, 222),
    (96, 104, 124),
    (222, 92, 84),
    (92, 164, 108),
    (214, 160, 72),
    (76, 124, 196),
    (150, 96, 180),
)


def _draw_symbol(canvas: Canvas, game: Game, tile: int) -> None:
    canvas.fill(_CELL_COLOURS[0])
    symbols = game.own_vocabulary.symbols
    colour = _CELL_COLOURS[tile % len(_CELL_COLOURS)]
    if tile:
        canvas.rectangle(0.06, 0.06, 0.88, 0.88, colour, 0.12)
    if canvas.unit >= 14 and tile < len(symbols):
        canvas.text(0.5, 0.5, 0.5, symbols[tile], (255, 255, 255) if tile else (150, 146, 136), 0.7)
