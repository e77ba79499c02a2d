"""The kernels that several games share: random words, and the identity of levels."""

from __future__ import annotations

import numpy as np

from ragen_gym.core import seeding
from ragen_gym.core.levels import FNV_PRIME, SPLIT_TENTHS
from ragen_gym.core.seeding import GOLDEN
from ragen_gym.games._jit import Kernel, check_time, kernel

SplitKey = tuple[np.ndarray, np.uint64, np.uint64, int]
"""What says whose a board is: (code point of each tile, hash state after the game's name, salt, index or -1)."""

_GOLDEN = np.uint64(GOLDEN)
_PRIME = np.uint64(FNV_PRIME)
_TRAIN, _VALIDATION = SPLIT_TENTHS[0], SPLIT_TENTHS[0] + SPLIT_TENTHS[1]
_C1, _C2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _TEN, _27, _30, _31, _32 = (np.uint64(i) for i in (1, 10, 27, 30, 31, 32))


def _mix(x: np.uint64) -> np.uint64:
    """``ragen_gym.core.seeding.mix`` of a word; what takes long as Python calls it often."""
    x = (x ^ (x >> _30)) * _C1
    x = (x ^ (x >> _27)) * _C2
    return x ^ (x >> _31)


def _plain_mix(x: np.uint64) -> np.uint64:
    check_time()
    return np.uint64(seeding.mix(int(x)))


mix = Kernel(_mix, _plain_mix)


@kernel
def next_word(key: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Advance a SplitMix64 generator: (its next state, 64 random bits)."""
    key = key + _GOLDEN
    return key, mix(key)


@kernel
def below(word: np.uint64, n: int) -> int:
    """A number from 0 to n - 1 from the upper half of a random word."""
    return int(np.int64(((word >> _32) * np.uint64(n)) >> _32))


@kernel
def row_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.uint64:
    """``ragen_gym.core.levels.text_hash`` of a board, uint8 (cells,).

    ``codes`` are the tiles' code points, uint64 (256,).
    """
    h = basis
    for j in range(row.shape[0]):
        h = (h ^ codes[row[j]]) * _PRIME
    return mix(h)


@kernel
def row_hashes(rows: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.ndarray:
    """``row_hash`` of each board: uint8 (n, cells) -> uint64 (n,)."""
    hashes = np.empty(rows.shape[0], np.uint64)
    for i in range(rows.shape[0]):
        hashes[i] = row_hash(rows[i], codes, basis)
    return hashes


@kernel
def _least_of_four(
    row: np.ndarray,
    codes: np.ndarray,
    basis: np.uint64,
    lines: np.uint64,
    columns: np.uint64,
    down: np.uint64,
    right: np.uint64,
) -> np.uint64:
    """The smallest hash among a board's four reflections, read in steps of ``down`` from line to line and ``right``.

    A hash is one long chain of products; four chains side by side take little longer than one.
    """
    a = b = c = d = basis
    top, bottom = np.uint64(0), (lines - _ONE) * down
    while True:
        p, q, r, s = top, top + (columns - _ONE) * right, bottom, bottom + (columns - _ONE) * right
        for _ in range(columns):
            a, b = (a ^ codes[row[p]]) * _PRIME, (b ^ codes[row[q]]) * _PRIME
            c, d = (c ^ codes[row[r]]) * _PRIME, (d ^ codes[row[s]]) * _PRIME
            p, q, r, s = p + right, q - right, r + right, s - right
        if not bottom:
            return min(mix(a), mix(b), mix(c), mix(d))
        a, b, c, d = (a ^ _TEN) * _PRIME, (b ^ _TEN) * _PRIME, (c ^ _TEN) * _PRIME, (d ^ _TEN) * _PRIME
        top, bottom = top + down, bottom - down


@kernel
def canonical_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64, height: int, width: int) -> np.uint64:
    """The smallest hash among the eight rotations and reflections of a board: uint8 (height * (width + 1) - 1,)."""
    lines, columns = np.uint64(height), np.uint64(width)
    upright = _least_of_four(row, codes, basis, lines, columns, columns + _ONE, _ONE)
    return min(upright, _least_of_four(row, codes, basis, columns, lines, _ONE, columns + _ONE))


@kernel
def split_index(family: np.uint64, salt: np.uint64) -> int:
    """``ragen_gym.core.levels.split_of_hash``, as the split's index in ``ragen_gym.core.levels.SPLITS``."""
    tenth = mix(family ^ salt) % _TEN
    return 0 if tenth < _TRAIN else (1 if tenth < _VALIDATION else 2)


@kernel
def in_split(row: np.ndarray, split: SplitKey, height: int, width: int) -> bool:
    """True if a board, uint8 (height * (width + 1) - 1,), belongs to ``ragen_gym.games.grid.GridGame.split_key``."""
    codes, basis, salt, index = split
    return index < 0 or split_index(canonical_hash(row, codes, basis, height, width), salt) == index
