"""Lakes from generator keys.

A lake takes a word for start and goal, then the words of its ice, up to 64 cells at a time. Boards of up to 64 cells
are drawn by ``ragen_gym.games.frozen_lake.bitboards``, larger ones as arrays here; both make the same lakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ragen_gym.core.levels import SPLITS, check_split
from ragen_gym.games._jit import canonical_hash, compiled, split_index
from ragen_gym.games.frozen_lake.bitboards import GOAL, ICE, KEY, ROWS, START, draw_ends, draw_ice, fill_bitboards

if TYPE_CHECKING:
    from ragen_gym.games.frozen_lake import FrozenLake
    from ragen_gym.games.game import Boards

__all__ = ["MAX_TRIES", "fill_arrays", "generate", "player_cells"]

#: Draws per level before the generator gives up.
MAX_TRIES = 20_000

_1 = np.uint64(1)


@compiled
def _path(board: np.ndarray, start: int, goal: int, stride: int, distance: np.ndarray, queue: np.ndarray) -> int:
    """Moves on a shortest path over cells that are not holes (1) or edges (255), or -1: breadth-first search."""
    cells = board.shape[0]
    distance[:] = -1
    distance[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for offset in (-1, 1, -stride, stride):
            target = cell + offset
            if 0 <= target < cells and distance[target] < 0 and board[target] != 1 and board[target] != 255:
                distance[target] = distance[cell] + 1
                if target == goal:
                    return int(distance[target])
                queue[tail] = target
                tail += 1
    return -1


@compiled
def _draw(
    lake: np.ndarray, board: np.ndarray, stride: int, chance: np.uint64, random_start: bool, queues: tuple[Any, Any]
) -> int:
    """Draw a lake of any size onto ``board``; the moves on a shortest path, or -1.

    ``lake`` is a group of one, see ``ragen_gym.games.frozen_lake.bitboards``.
    """
    cells, width = board.shape[0], stride - 1
    left, drawn, ice = cells + 1 - (cells + 1) // stride, 0, np.uint64(0)
    draw_ends(lake, 1, np.uint64(left), random_start)
    for byte in range(cells):
        if byte % stride == width:
            board[byte] = 255
            continue
        if not drawn & 63:
            draw_ice(lake, 1, min(64, left - drawn), chance)
            ice = lake[ICE, 0]
        board[byte] = np.uint8((~ice >> np.uint64(drawn & 63)) & _1)
        drawn += 1
    start, goal = int(lake[START, 0]), int(lake[GOAL, 0])
    start, goal = start + start // width, goal + goal // width
    board[start], board[goal] = 3, 2
    return _path(board, start, goal, stride, queues[0], queues[1])


@compiled
def fill_arrays(
    keys: np.ndarray,
    boards: np.ndarray,
    size: tuple[int, int],
    chance: np.uint64,
    min_path: int,
    random_start: bool,
    split: int,
    identity: tuple[np.ndarray, np.uint64],
    tries: int,
) -> int:
    """Write one lake a row; the index of the first row that could not be written in ``tries`` draws, or -1.

    Args:
        keys: uint64 (n,), the lakes' generator keys.
        boards: uint8 (n, cells), written.
        size: rows and columns of a board.
        chance: chance of ice, in units of 2**-32.
        min_path: the least number of moves from start to goal.
        random_start: whether start and goal are drawn, or the first cell and the last.
        split: index of ``SPLITS``, or -1 for all lakes.
        identity: ``ragen_gym.games.grid.GridGame.identity``.
        tries: draws for each lake.
    """
    height, width = size
    queues = np.empty(boards.shape[1], np.int32), np.empty(boards.shape[1], np.int32)
    lake = np.zeros((ROWS, 1), np.uint64)
    for i in range(keys.shape[0]):
        lake[KEY, 0], found = keys[i], False
        for _ in range(tries):
            if _draw(lake, boards[i], width + 1, chance, random_start, queues) < min_path:
                continue
            if split < 0 or split_index(canonical_hash(boards[i], *identity, height, width)) == split:
                found = True
                break
        if not found:
            return i
    return -1


def generate(game: FrozenLake, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
    """One lake for each key, uint8 (len(keys), cells).

    Raises:
        ValueError: no lake that meets the options was found in ``MAX_TRIES`` draws.
    """
    check_split(split)
    boards = np.empty((len(keys), game.cells), np.uint8)
    fill = fill_bitboards if game.height * game.width <= 64 else fill_arrays
    failed = fill(
        keys,
        boards,
        (game.height, game.width),
        np.uint64(round(game.frozen_prob * 2**32)),
        game.min_path,
        game.random_start,
        SPLITS.index(split) if split else -1,
        game.identity,
        MAX_TRIES,
    )
    if failed >= 0:
        raise ValueError(
            f"FrozenLake: no level in {MAX_TRIES} draws has a path of min_path={game.min_path} moves or more "
            f"with height={game.height}, width={game.width}, frozen_prob={game.frozen_prob}, "
            f"random_start={game.random_start}, "
            f"split={split!r}; ask for a shorter path, more ice or a larger board."
        )
    return boards


@compiled
def player_cells(boards: np.ndarray) -> np.ndarray:
    """Where the player (tiles 3 to 5) stands on each board: uint8 (n, cells) -> int32 (n, 1)."""
    cells = np.zeros((boards.shape[0], 1), np.int32)
    for i in range(boards.shape[0]):
        cell = np.int32(0)
        for j in range(boards.shape[1]):  # without a break, so that it compiles to vector instructions
            cell |= np.int32(j) if (boards[i, j] >= 3) & (boards[i, j] <= 5) else np.int32(0)
        cells[i, 0] = cell
    return cells
