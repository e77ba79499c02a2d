"""Lakes from generator keys, in one compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ragen_gym.games._jit import canonical_hash, compiled, next_word, split_index
from ragen_gym.levels import SPLITS, check_split

if TYPE_CHECKING:
    from ragen_gym.games.frozen_lake import FrozenLake
    from ragen_gym.games.game import Boards

__all__ = ["MAX_TRIES", "generate"]

#: Draws per level before the generator gives up.
MAX_TRIES = 20_000

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@compiled
def _path_length(board: np.ndarray, start: int, goal: int, stride: int, distance: np.ndarray, queue: np.ndarray) -> int:
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
def _fill(
    keys: np.ndarray,
    boards: np.ndarray,
    height: int,
    width: int,
    frozen: np.uint64,
    min_path: int,
    random_start: bool,
    split: int,
    codes: np.ndarray,
    basis: np.uint64,
    tries: int,
) -> int:
    """Write one lake a row; the index of the first row that could not be written in ``tries`` draws, or -1."""
    stride, n = width + 1, height * width
    cells = boards.shape[1]
    distance, queue = np.empty(cells, np.int32), np.empty(cells, np.int32)
    for i in range(keys.shape[0]):
        key, board = keys[i], boards[i]
        found = False
        for _ in range(tries):
            start, goal = np.int64(0), np.int64(n - 1)
            if random_start:
                key, word = next_word(key)
                start = np.int64(((word & _LOW) * np.uint64(n)) >> _32)
                goal = np.int64(((word >> _32) * np.uint64(n - 1)) >> _32)
                if goal >= start:
                    goal += 1
            start, goal = start // width * stride + start % width, goal // width * stride + goal % width
            word, spare = np.uint64(0), False
            for j in range(cells):
                if j % stride == width:
                    board[j] = 255
                    continue
                if spare:
                    draw = word >> _32
                else:
                    key, word = next_word(key)
                    draw = word & _LOW
                spare = not spare
                board[j] = 0 if draw < frozen else 1
            board[start], board[goal] = 3, 2
            length = _path_length(board, int(start), int(goal), stride, distance, queue)
            if length >= min_path and (
                split < 0 or split_index(canonical_hash(board, codes, basis, height, width)) == split
            ):
                found = True
                break
        if not found:
            return i
    return -1


def generate(game: FrozenLake, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
    """One lake for each key, uint8 (len(keys), cells).

    Raises:
        ValueError: no lake that meets the knobs was found in `MAX_TRIES` draws.
    """
    check_split(split)
    boards = np.empty((len(keys), game.cells), np.uint8)
    failed = _fill(
        keys,
        boards,
        game.height,
        game.width,
        np.uint64(round(game.frozen_prob * 2**32)),
        game.min_path,
        game.random_start,
        SPLITS.index(split) if split else -1,
        *game.identity,
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
