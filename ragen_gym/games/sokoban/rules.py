"""The rules of Sokoban, run as Python by the single environment and compiled by the batch."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Action(IntEnum):
    """The paper's order."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3


class Tile(IntEnum):
    """The cells of a board, with gym-sokoban's codes; a box's and the player's tile say what lies under them."""

    WALL = 0
    FLOOR = 1
    TARGET = 2
    BOX_ON_TARGET = 3
    BOX = 4
    PLAYER = 5
    PLAYER_ON_TARGET = 6


PLAYERS = (Tile.PLAYER, Tile.PLAYER_ON_TARGET)
BOXES = (Tile.BOX, Tile.BOX_ON_TARGET)
TARGETS = (Tile.TARGET, Tile.BOX_ON_TARGET, Tile.PLAYER_ON_TARGET)

# Plain integers: the rule runs a million times a second, and an enum member costs a look-up each time. The ground is
# floor (1) or target (2); the player on it is ground + 4, and a box on it is 5 - ground.
_FLOOR, _TARGET, _BOX = 1, 2, 4


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Walk or push; see ``ragen_gym.games.game.Rule``. ``state`` is [player's cell, boxes off target].

    Walls close every board, so no cell that a player or a box can come to lies off the board.
    """
    offset = params[action]
    cell = state[0]
    target = cell + offset
    tile = board[target]
    if tile <= _TARGET:
        walk = 4 if tile else 0  # a wall is not a case of its own: compiled, that would be a branch nobody can predict
        board[cell] -= walk
        board[target] = tile + walk
        state[0] = target if tile else cell
        return -0.1, 0
    beyond = target + offset
    ground = board[beyond]
    if ground == 0 or ground > _TARGET:
        return -0.1, 0
    board[cell] -= 4
    board[target] = 9 - tile
    board[beyond] = 5 - ground
    state[0] = target
    if tile + ground == _BOX + _FLOOR:  # neither onto a target nor off one: floor to floor, or target to target
        return -0.1, 0
    if ground == _FLOOR:
        state[1] += 1
        return -1.1, 0
    state[1] -= 1
    return (0.9, 0) if state[1] else (10.9, 2)


def legal(board: Any, state: Any, params: Any) -> int:
    """Bit a is set when action a can move the player."""
    cell, stride = state[0], params[1]
    bits = 0
    tile = board[cell - stride]
    if tile and (tile < 3 or 0 < board[cell - 2 * stride] < 3):
        bits = 1
    tile = board[cell + stride]
    if tile and (tile < 3 or 0 < board[cell + 2 * stride] < 3):
        bits += 2
    tile = board[cell - 1]
    if tile and (tile < 3 or 0 < board[cell - 2] < 3):
        bits += 4
    tile = board[cell + 1]
    if tile and (tile < 3 or 0 < board[cell + 2] < 3):
        bits += 8
    return bits


def most_boxes(height: int, width: int) -> int:
    """Boxes for which a board with its border of walls has cells: each needs a target, and the player a cell.

    None fits where no three cells lie in a line, as a push needs them.
    """
    return ((height - 2) * (width - 2) - 1) // 2 if max(height, width) > 4 else 0
