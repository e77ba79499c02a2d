"""One picture of an episode: the board, its last move, and a caption with step, reward and what happened."""

from __future__ import annotations

import numpy as np

from ragen_gym.games.game import OVER, PLAYING, Game
from ragen_gym.render.brush import Brush, Colour, Pixels
from ragen_gym.render.frames import board_codes, frame_shape, frames
from ragen_gym.render.painters import painter_of
from ragen_gym.render.story import Story

__all__ = ["picture", "picture_shape"]

#: A caption must be legible, so a picture is at least this wide, however small its tiles.
_LEAST_WIDTH = 176
_ROWS = 2.5

_GROUND: Colour = (30, 34, 46)
_TEXT: Colour = (238, 240, 246)
_FAINT: Colour = (164, 172, 190)
_PLAYING: Colour = (86, 128, 196)
_SUCCESS: Colour = (72, 186, 108)
_OVER: Colour = (226, 84, 84)


def picture_shape(game: Game, tile_size: int) -> tuple[int, int, int]:
    """(height, width, 3) of `picture`; both even, as video encoders ask."""
    height, width, _ = frame_shape(game, tile_size)
    width = max(width, _LEAST_WIDTH)
    return _even(height + _caption_height(width)), _even(width), 3


def picture(game: Game, story: Story, tile_size: int) -> Pixels:
    """The episode as it stands, uint8 of `picture_shape`."""
    out = np.empty(picture_shape(game, tile_size), np.uint8)
    out[:] = _GROUND
    board = frames(game, board_codes(game, story.board)[None], tile_size)[0]
    painter = painter_of(game)
    if painter.draw_move is not None and story.moves:
        painter.draw_move(board, game, story, tile_size)
    height, width, _ = board.shape
    left = (out.shape[1] - width) // 2
    out[:height, left : left + width] = board
    caption = _caption(game, story, out.shape[1])
    out[height : height + caption.shape[0]] = caption
    return out


def _caption_height(width: int) -> int:
    return round(_ROWS * _line(width))


def _line(width: int) -> int:
    """Height of a line of the caption in pixels."""
    return max(14, min(28, width // 14), width // 36)


def _even(size: int) -> int:
    return size + size % 2


def _caption(game: Game, story: Story, width: int) -> Pixels:
    line = _line(width)
    columns = width / line
    brush = Brush(columns, _ROWS, line, fineness=4)
    brush.fill(_GROUND)
    colour, ending = {PLAYING: (_PLAYING, ""), OVER: (_OVER, ": over")}.get(story.outcome, (_SUCCESS, ": success"))
    brush.rectangle(0, 0, columns, 0.16, colour)
    room = columns - 0.8
    text = story.last_move(game) + ending
    brush.text(0.4, 0.86, 0.62, text, _TEXT if story.outcome == PLAYING else colour, room, left=True)
    reward = story.moves[-1][1] if story.moves else 0.0
    facts = f"step {len(story.moves)}    reward {reward:g}    sum {story.total:.4g}"
    brush.text(0.4, 1.78, 0.54, facts, _FAINT, room, left=True)
    return brush.pixels()
