"""The rules of FrozenLake, run as Python by the single environment and compiled by the batch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

__all__ = ["PLAYERS", "Action", "Tile", "legal", "step"]


class Action(IntEnum):
    """Gymnasium's order: the directions go round, so the perpendicular ones are the neighbours."""

    LEFT = 0
    DOWN = 1
    RIGHT = 2
    UP = 3


class Tile(IntEnum):
    """The cells of a board; the player's tile says what lies under it."""

    ICE = 0
    HOLE = 1
    GOAL = 2
    PLAYER = 3
    PLAYER_IN_HOLE = 4
    PLAYER_ON_GOAL = 5


PLAYERS = (Tile.PLAYER, Tile.PLAYER_IN_HOLE, Tile.PLAYER_ON_GOAL)

# Plain integers: the rule runs a million times a second, and an enum member costs a look-up each time.
_ICE, _HOLE, _GOAL, _EDGE = 0, 1, 2, 255
_PLAYER = 3


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Move the player; see `ragen_gym.games.game.Rule`. ``state`` is [player's cell]."""
    offsets, cells, intended, first_side = params
    if u >= intended:
        action = (action + 1) & 3 if u < first_side else (action + 3) & 3
    cell = state[0]
    target = cell + offsets[action]
    if target < 0 or target >= cells:
        return 0.0, 0
    tile = board[target]
    if tile == _EDGE:
        return 0.0, 0
    board[cell] = _ICE
    board[target] = _PLAYER + tile
    state[0] = target
    if tile == _ICE:
        return 0.0, 0
    return (1.0, 2) if tile == _GOAL else (0.0, 1)


def legal(state: Sequence[int], params: Any) -> int:
    """Bit a is set when action a can move the player: itself, or by slipping."""
    offsets, cells, intended, _ = params
    stride, cell = offsets[1], state[0]
    row, column = cell // stride, cell % stride
    open_left, open_down = column > 0, cell + stride < cells
    open_right, open_up = column < stride - 2, row > 0
    across, along = open_left or open_right, open_up or open_down
    slips, goes = intended < 1.0, intended > 0.0
    left = (goes and open_left) or (slips and along)
    down = (goes and open_down) or (slips and across)
    right = (goes and open_right) or (slips and along)
    up = (goes and open_up) or (slips and across)
    return int(left) | int(down) << 1 | int(right) << 2 | int(up) << 3
