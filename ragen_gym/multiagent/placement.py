"""Where the further workers of a Sokoban level start, so that they do not make it unsolvable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragen_gym.games.game import Board
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.games.sokoban.rules import Tile
from ragen_gym.games.sokoban.solve import NotSolvedError, find_plan
from ragen_gym.seeding import Stream, stream_key, uniforms

__all__ = ["place", "touched_cells", "walkable_cells"]

#: Nodes that the solver may look at for one level; a level that needs more counts as one without room.
MAX_NODES = 200_000


def place(game: Sokoban, board: Board, state: Sequence[int], others: int, level_key: int) -> list[int] | None:
    """Cells for ``others`` further workers, drawn uniformly by the level's key; None where the level has no room.

    They are floor that the player can walk to and that a move-optimal plan of the player alone never touches.
    """
    if not others:
        return []
    try:
        free = sorted(walkable_cells(game, board, state[0]) - touched_cells(game, board, state))
    except NotSolvedError:
        return None
    if len(free) < others:
        return None
    # A key of its own, so that the draws of the generator are not used twice.
    key = np.array([stream_key(level_key, Stream.LEVEL)], np.uint64)
    return [free.pop(int(u * len(free))) for u in uniforms(key, 0, others)[0].tolist()]


def touched_cells(game: Sokoban, board: Board, state: Sequence[int]) -> set[int]:
    """The cells that change at any time while the player carries out a move-optimal plan; none without a plan.

    Raises:
        NotSolvedError: the search for the plan was left undecided.
    """
    plan = find_plan(board, game.width, max_nodes=MAX_NODES)
    now, rest = bytearray(board), list(state)
    touched = {state[0]}
    for action in plan.actions if plan else ():
        before = bytes(now)
        game.rule(now, rest, action, 0.0, game.params)
        touched |= {cell for cell, tile in enumerate(now) if tile != before[cell]}
    return touched


def walkable_cells(game: Sokoban, board: Board, start: int) -> set[int]:
    """The cells of bare floor that the player can reach without pushing."""
    reached, edge = {start}, [start]
    while edge:
        cell = edge.pop()
        new = {cell + offset for offset in game.params if board[cell + offset] in (Tile.FLOOR, Tile.TARGET)} - reached
        reached |= new
        edge += new
    return {cell for cell in reached if board[cell] == Tile.FLOOR}
