"""The rules of FrozenLake, run as Python by the single environment and compiled by the batch.

The slip probability is 1 - ``FrozenLake.success_rate``, an option of the game (``__init__.py``); ``straight`` and
``first_side`` are made of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


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
_ICE, _GOAL, _PLAYER = 0, 2, 3


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Move the player; see ``ragen_gym.games.game.Rule``. ``state`` is [player's cell]."""
    moves, straight, first_side = params
    cell = state[0]
    target = moves[12 * cell + 3 * action + (u >= straight) + (u >= first_side)]
    board[cell] = _ICE
    tile = board[target]  # a player that cannot leave its cell reads the ice it has just left
    board[target] = _PLAYER + tile
    state[0] = target
    return (1.0 if tile == _GOAL else 0.0), tile  # on ice the game goes on, in a hole it is over, the goal is success


def legal(board: Any, state: Any, params: Any) -> int:
    """Bit a is set when action a can move the player: as intended, or by slipping."""
    moves, straight, _ = params
    cell, bits = state[0], 0
    for action in range(4):
        goes = straight > 0.0 and moves[12 * cell + 3 * action] != cell
        slips = straight < 1.0  # two cells a side or more: one of the two sides is on the board
        bits |= (goes or slips) << action
    return bits


def blind(board: Any, state: Any, params: Any) -> int:
    """The blind script's move: first to the goal's row, then to its column, through whatever lies there."""
    goal, stride = 0, int(params[0][3])  # the first cell's neighbour below: two rows or more
    while board[goal] != _GOAL:
        goal += 1
    rows = goal // stride - int(state[0]) // stride
    columns = goal % stride - int(state[0]) % stride
    if rows:
        return 1 if rows > 0 else 3
    return 2 if columns > 0 else 0


def destinations(height: int, width: int) -> list[int]:
    """Cells to which an action leads: 3 * (4 * cell + action) is the intended cell's place, then come the two sides'.

    A move off the board leads nowhere. The first side is the next direction in the order of ``Action``.
    """
    stride = width + 1
    cells = height * stride - 1
    nearest = []
    for cell in range(cells):
        row, column = divmod(cell, stride)
        steps = (column > 0, -1), (row < height - 1, stride), (column < width - 1, 1), (row > 0, -stride)
        nearest.append([cell + offset if inside and column < width else cell for inside, offset in steps])
    return [near[(action + turn) & 3] for near in nearest for action in range(4) for turn in (0, 1, 3)]
