"""The blind script of Sokoban: shortest solutions of levels without their inner walls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen_gym.games.game import Board, NotSolvedError
from ragen_gym.games.sokoban.rules import Tile, step
from ragen_gym.games.sokoban.solve import Plan, find_plan

if TYPE_CHECKING:
    from ragen_gym.games.sokoban import Sokoban

#: Nodes of each search.
MAX_NODES = 50_000


def blind(board: Board, state: Sequence[int], params: Any) -> int:
    """First action, in the order of the actions, of a shortest solution without inner walls; 0 where none is found."""
    stride = params[1]
    room = _without_inner_walls(board, stride)
    plan = _plan(room, stride)
    if plan is None:
        return 0
    for action in range(plan.actions[0]):
        after, now = bytearray(room), list(state)
        step(after, now, action, 0.0, params)
        if after != room and _plan(after, stride, plan.moves - 1) is not None:
            return action
    return plan.actions[0]


def solves_blindly(game: Sokoban, board: Board) -> bool:
    """True if the script solves a level, with any number of moves."""
    now, params = bytearray(board), game.params
    numbers = game.starts(np.frombuffer(bytes(board), np.uint8)[None])[0].tolist()
    met = set[bytes]()
    while bytes(now) not in met:  # at a wall it stays, and would again
        met.add(bytes(now))
        if step(now, numbers, blind(now, numbers, params), 0.0, params)[1]:
            return True
    return False


def _without_inner_walls(board: Board, stride: int) -> bytearray:
    room = bytearray(board)
    for row in range(stride, len(board) - stride, stride):
        inner = slice(row + 1, row + stride - 2)
        room[inner] = room[inner].replace(bytes([Tile.WALL]), bytes([Tile.FLOOR]))
    return room


def _plan(room: Board, stride: int, within: int | None = None) -> Plan | None:
    """A shortest solution (within that many moves), or None where none is found."""
    try:
        return find_plan(room, stride - 1, within=within, max_nodes=MAX_NODES)
    except NotSolvedError:
        return None
