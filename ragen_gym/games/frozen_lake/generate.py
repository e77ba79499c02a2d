"""Lakes from generator keys, in one compiled loop.

A lake takes a word for start and goal, then the words of its ice: up to 64 cells are drawn together, bit by bit (see
`_ice`). Boards of up to 64 cells are searched as one integer, larger ones as arrays; both paths make the same lakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ragen_gym.games._jit import canonical_hash, compiled, next_word, split_index
from ragen_gym.levels import SPLITS, check_split

if TYPE_CHECKING:
    from ragen_gym.games.frozen_lake import FrozenLake
    from ragen_gym.games.game import Boards

__all__ = ["MAX_TRIES", "generate", "player_cells"]

#: Draws per level before the generator gives up.
MAX_TRIES = 20_000

_ZERO, _ONE, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_ALL, _LOW = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFFFFFFFF)


@compiled
def _ice(key: np.uint64, count: int, chance: np.uint64) -> tuple[np.uint64, np.uint64]:
    """(the generator's next state, ``count`` bits, each 1 with probability ``chance`` / 2**32); ``count`` up to 64.

    Each bit is the comparison of a random binary fraction with ``chance``. The fractions are drawn digit by digit from
    the first, all bits' digits at once from a slice of a random word, until every comparison is decided: about
    log2(count) + 1 slices, where a number for each cell would take ``count`` / 2 words.
    """
    full = _ALL >> np.uint64(64 - count)
    if chance >> _32:
        return key, full
    ones, undecided, digit = _ZERO, full, 32
    last = np.uint64(count - 1)
    while undecided and digit:
        key, word = next_word(key)
        for _ in range(64 // count):
            if not digit:
                break
            digit -= 1
            threshold = _ZERO - ((chance >> np.uint64(digit)) & _ONE)  # this digit of the chance, in every bit
            ones |= undecided & threshold & ~word
            undecided &= ~(word ^ threshold)
            word = word >> last >> _ONE  # in two steps, as a shift by 64 has no defined result
    return key, ones


@compiled
def _path_on_bits(ice: np.uint64, start: np.uint64, goal: np.uint64, columns: tuple[np.uint64, ...]) -> int:
    """Moves on a shortest path over the bits of ``ice``, or -1: everything within reach grows by one move at a time.

    ``start`` and ``goal`` are single bits, ``columns`` is (bits not in the first column, bits not in the last, width).
    """
    not_first, not_last, width = columns
    reached, length = start, 0
    while True:
        length += 1
        sideways = ((reached << _ONE) & not_first) | ((reached >> _ONE) & not_last)
        grown = (reached | sideways | (reached << width) | (reached >> width)) & ice
        if grown & goal:
            return length
        if grown == reached:
            return -1
        reached = grown


@compiled
def _path_on_array(
    board: np.ndarray, start: int, goal: int, stride: int, distance: np.ndarray, queue: np.ndarray
) -> int:
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
def _ends(key: np.uint64, n: np.uint64, random_start: bool) -> tuple[np.uint64, np.uint64, np.uint64]:
    """(the generator's next state, start, goal): two of ``n`` cells, in row order."""
    if not random_start:
        return key, _ZERO, n - _ONE
    key, word = next_word(key)
    start = ((word & _LOW) * n) >> _32
    goal = ((word >> _32) * (n - _ONE)) >> _32
    return key, start, goal + np.uint64(goal >= start)


@compiled
def _draw_on_array(
    key: np.uint64, board: np.ndarray, start: int, goal: int, stride: int, chance: np.uint64, queues: tuple[Any, Any]
) -> tuple[np.uint64, int]:
    """Write a lake of any size; (the generator's next state, moves on a shortest path or -1)."""
    cells = board.shape[0]
    left, drawn, ice = cells + 1 - (cells + 1) // stride, 0, _ZERO
    for j in range(cells):
        if j % stride == stride - 1:
            board[j] = 255
            continue
        if not drawn & 63:
            key, ice = _ice(key, min(64, left - drawn), chance)
        board[j] = np.uint8((~ice >> np.uint64(drawn & 63)) & _ONE)
        drawn += 1
    board[start], board[goal] = 3, 2
    return key, _path_on_array(board, start, goal, stride, queues[0], queues[1])


@compiled
def _layout(height: int, width: int, on_bits: bool) -> tuple[Any, Any, tuple[np.uint64, np.uint64, np.uint64]]:
    """(place in row order of each byte of a board, what the bytes between rows hold, `_path_on_bits`'s ``columns``)."""
    stride, cells, first = width + 1, height * (width + 1) - 1, _ZERO
    place, edge = np.zeros(cells, np.uint8), np.zeros(cells, np.uint8)
    if on_bits:
        for j in range(cells):
            if j % stride == width:
                edge[j] = 255
            else:
                place[j] = j // stride * width + j % stride
        for row in range(height):
            first |= _ONE << np.uint64(row * width)
    return place, edge, (~first, ~(first << np.uint64(width - 1)), np.uint64(width))


@compiled
def _fill(
    keys: np.ndarray,
    boards: np.ndarray,
    size: tuple[int, int],
    chance: np.uint64,
    min_path: int,
    random_start: bool,
    split: int,
    identity: tuple[np.ndarray, np.uint64],
    on_bits: bool,
    tries: int,
) -> int:
    """Write one lake a row; the index of the first row that could not be written in ``tries`` draws, or -1.

    ``split`` is an index of `SPLITS` or -1; ``on_bits`` chooses how paths are found, with the same result.
    """
    height, width = size
    n, cells = np.uint64(height * width), boards.shape[1]
    place, edge, columns = _layout(height, width, on_bits)
    queues = np.empty(cells, np.int32), np.empty(cells, np.int32)
    for i in range(keys.shape[0]):
        key, board = keys[i], boards[i]
        found = False
        for _ in range(tries):
            key, start, goal = _ends(key, n, random_start)
            at, to = int(start) + int(start) // width, int(goal) + int(goal) // width
            if on_bits:
                key, ice = _ice(key, int(n), chance)
                ends = _ONE << start, _ONE << goal
                if _path_on_bits(ice | ends[0] | ends[1], ends[0], ends[1], columns) < min_path:
                    continue
                for j in range(cells):
                    board[j] = edge[j] | np.uint8((~ice >> np.uint64(place[j])) & _ONE)
                board[at], board[to] = 3, 2
            else:
                key, length = _draw_on_array(key, board, at, to, width + 1, chance, queues)
                if length < min_path:
                    continue
            if split < 0 or split_index(canonical_hash(board, identity[0], identity[1], height, width)) == split:
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
        (game.height, game.width),
        np.uint64(round(game.frozen_prob * 2**32)),
        game.min_path,
        game.random_start,
        SPLITS.index(split) if split else -1,
        game.identity,
        game.height * game.width <= 64,
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
