"""Lakes of up to 64 cells: an integer each, a bit for every cell, and many of them in step.

Whether a bit is decided, or a path found, is nothing that a processor can predict. So no lake is drawn by itself: every
loop does the same to all of a group, which compiles to vector instructions, and goes on until the last one is done.
"""

from __future__ import annotations

import numpy as np

from ragen_gym.core.seeding import GOLDEN
from ragen_gym.games._jit import canonical_hash, compiled, mix, split_index

__all__ = ["GROUP", "ICE", "KEY", "ROWS", "draw_ends", "draw_ice", "fill_bitboards"]

#: Lakes that are drawn together.
GROUP = 64

#: Rows of the array uint64 (ROWS, lakes) that a group is drawn in: state of the generator, cell of the start, cell of
#: the goal, bits of the ice, bits undecided (later: cells that can be walked on), random bits (later: cells reached),
#: moves until the goal was reached.
KEY, START, GOAL, ICE, OPEN, BITS, MOVES = range(7)
ROWS = 7

_GOLDEN = np.uint64(GOLDEN)
_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)
_ALL, _LOW = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0xFFFFFFFF)


@compiled
def draw_ends(lakes: np.ndarray, held: int, n: np.uint64, random_start: bool) -> None:
    """Draw start and goal, two of ``n`` cells in row order, of the first ``held`` lakes."""
    key, start, goal = lakes[KEY], lakes[START], lakes[GOAL]
    for k in range(held):
        if random_start:
            key[k] += _GOLDEN
            word = mix(key[k])
            first = ((word & _LOW) * n) >> _32
            second = ((word >> _32) * (n - _1)) >> _32
            start[k], goal[k] = first, second + np.uint64(second >= first)
        else:
            start[k], goal[k] = _0, n - _1


@compiled
def draw_ice(lakes: np.ndarray, held: int, count: int, chance: np.uint64) -> None:
    """Draw ``count`` bits of ice, up to 64, of the first ``held`` lakes: each is 1 with probability ``chance`` / 2**32.

    Each bit is the comparison of a random binary fraction with ``chance``. The fractions are drawn digit by digit from
    the first, all bits' digits at once from a slice of a random word, until every comparison is decided: about
    log2(count) + 1 slices, where a number for each cell would take ``count`` / 2 words. A lake whose bits are decided
    draws no further word, whatever the others of its group do.
    """
    key, ice, undecided, word = lakes[KEY], lakes[ICE], lakes[OPEN], lakes[BITS]
    full, last, digit = _ALL >> np.uint64(64 - count), np.uint64(count - 1), 32
    if chance >> _32:
        ice[:] = full
        return
    ice[:], undecided[:held], undecided[held:] = _0, full, _0
    left = full
    while left and digit:
        for k in range(held):
            key[k] += _GOLDEN if undecided[k] else _0
            word[k] = mix(key[k])
        for _ in range(min(64 // count, digit)):
            digit -= 1
            threshold = _0 - ((chance >> np.uint64(digit)) & _1)  # this digit of the chance, in every bit
            left = _0
            for k in range(held):
                ice[k] |= undecided[k] & threshold & ~word[k]
                undecided[k] &= ~(word[k] ^ threshold)
                left |= undecided[k]
                word[k] = word[k] >> last >> _1  # in two steps, as a shift by 64 has no defined result


@compiled
def _find_paths(lakes: np.ndarray, held: int, not_first: np.uint64, not_last: np.uint64, width: np.uint64) -> None:
    """Count the moves of a shortest path over the ice of the first ``held`` lakes, 0 where there is none.

    All that is within reach grows by a move at a time. ``not_first`` and ``not_last`` are the bits that are not in the
    first, the last column.
    """
    start, goal, ice, open_, reached, moves = (
        lakes[START],
        lakes[GOAL],
        lakes[ICE],
        lakes[OPEN],
        lakes[BITS],
        lakes[MOVES],
    )
    for k in range(held):
        reached[k] = _1 << start[k]
        open_[k] = ice[k] | reached[k] | (_1 << goal[k])
        moves[k] = _0
    growing = _1
    while growing:
        growing = _0
        for k in range(held):
            now = reached[k]
            sideways = ((now << _1) & not_first) | ((now >> _1) & not_last)
            grown = (now | sideways | (now << width) | (now >> width)) & open_[k]
            new = _0 if (now >> goal[k]) & _1 else grown ^ now
            reached[k] = now | new
            moves[k] += np.uint64(new != _0)
            growing |= new
    for k in range(held):
        moves[k] = moves[k] if (reached[k] >> goal[k]) & _1 else _0


@compiled
def _layout(height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.uint64]:
    """What places the cells, in row order, on a board.

    Returns:
        the cell of each byte of a board (uint8), what the bytes between its rows hold (uint8), the byte of each cell
        (uint8), and the bits of the first column.
    """
    cells = height * (width + 1) - 1
    cell_of, edge, byte_of = np.zeros(cells, np.uint8), np.zeros(cells, np.uint8), np.zeros(height * width, np.uint8)
    first = _0
    for byte in range(cells):
        row, column = byte // (width + 1), byte % (width + 1)
        if column == width:
            edge[byte] = 255
        else:
            cell_of[byte], byte_of[row * width + column] = row * width + column, byte
    for row in range(height):
        first |= _1 << np.uint64(row * width)
    return cell_of, edge, byte_of, first


@compiled
def fill_bitboards(
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
    """``ragen_gym.games.frozen_lake.generate.fill_arrays`` for boards of up to 64 cells: the same lakes, faster."""
    height, width = size
    cell_of, edge, byte_of, first = _layout(height, width)
    lakes = np.empty((ROWS, GROUP), np.uint64)
    rows, drawn = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
    held, begun = 0, 0  # lakes in the group, and rows that have come to it
    while held or begun < keys.shape[0]:
        while held < GROUP and begun < keys.shape[0]:
            lakes[KEY, held], rows[held], drawn[held] = keys[begun], begun, 0
            held, begun = held + 1, begun + 1
        draw_ends(lakes, held, np.uint64(height * width), random_start)
        draw_ice(lakes, held, height * width, chance)
        _find_paths(lakes, held, ~first, ~(first << np.uint64(width - 1)), np.uint64(width))
        drawn_before, held = held, 0
        for k in range(drawn_before):
            good = lakes[MOVES, k] >= np.uint64(min_path)
            if good:
                board, water = boards[rows[k]], ~lakes[ICE, k]
                for byte in range(board.shape[0]):
                    board[byte] = edge[byte] | np.uint8((water >> np.uint64(cell_of[byte])) & _1)
                board[byte_of[lakes[START, k]]], board[byte_of[lakes[GOAL, k]]] = 3, 2
                good = split < 0 or split_index(canonical_hash(board, *identity, height, width)) == split
            if not good:  # it stays in the group, for another draw
                if drawn[k] + 1 == tries:
                    return int(rows[k])
                lakes[KEY, held], rows[held], drawn[held] = lakes[KEY, k], rows[k], drawn[k] + 1
                held += 1
    return -1
