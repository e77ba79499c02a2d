"""The one place that knows numba: the compiler's settings, and the compiled forms of what every kernel needs.

Importing this module imports numba (about a third of a second), so the packages import it inside the functions that
use it. Compiled code is cached on disk beside the sources, or in the user's cache folder where those cannot be written.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np

from ragen_gym.levels import FNV_PRIME, SPLIT_SALT, SPLIT_TENTHS, fnv
from ragen_gym.seeding import GOLDEN

__all__ = ["canonical_hash", "compiled", "compiled_with", "mix", "next_word", "row_hash", "row_hashes", "split_index"]

F = TypeVar("F", bound=Callable[..., object])

_GOLDEN = np.uint64(GOLDEN)
_PRIME = np.uint64(FNV_PRIME)
_SALT = np.uint64(SPLIT_SALT)
_TRAIN, _VALIDATION = SPLIT_TENTHS[0], SPLIT_TENTHS[0] + SPLIT_TENTHS[1]
_C1, _C2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _TEN = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(10)


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays on its first call; the result is cached on disk."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def compiled_with(template: F, **rules: Callable[..., Any]) -> F:
    """Compile a copy of ``template`` in which each global name of ``rules`` is that function, compiled.

    The copy is cached under a name that holds the content of the rules' modules: a rule that changes is compiled anew,
    and the kernels of two games do not displace each other. (A closure over the rule would never be found in the cache,
    since numba names closures by objects of the process.) Rules that were typed into an interpreter have no file to
    name, so their kernels are not cached.
    """
    inner = {name: numba.njit(nogil=True, error_model="numpy")(rule) for name, rule in rules.items()}
    copy = FunctionType(template.__code__, {**template.__globals__, **inner}, template.__name__)
    copy.__module__, copy.__doc__ = template.__module__, template.__doc__
    name, sources = template.__name__, []
    for rule in rules.values():
        name += f"_{rule.__module__}_{rule.__qualname__}"
        try:
            sources.append(inspect.getsource(sys.modules[rule.__module__]))
        except (KeyError, OSError, TypeError):
            return cast(F, numba.njit(nogil=True, error_model="numpy")(copy))
    name = "".join(c if c.isalnum() else "_" for c in name)
    copy.__qualname__ = f"{name}_{fnv(chr(0).join(sources)):016x}"
    return compiled(cast(F, copy))


@compiled
def mix(x: np.uint64) -> np.uint64:
    """`ragen_gym.seeding.mix`, compiled."""
    x = (x ^ (x >> _30)) * _C1
    x = (x ^ (x >> _27)) * _C2
    return x ^ (x >> _31)


@compiled
def next_word(key: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Advance a SplitMix64 generator: (its next state, 64 random bits)."""
    key = key + _GOLDEN
    return key, mix(key)


@compiled
def row_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.uint64:
    """`ragen_gym.levels.text_hash` of a board, uint8 (cells,); ``codes`` are the tiles' code points, uint64 (256,)."""
    h = basis
    for j in range(row.shape[0]):
        h = (h ^ codes[row[j]]) * _PRIME
    return mix(h)


@compiled
def row_hashes(rows: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.ndarray:
    """`row_hash` of each board: uint8 (n, cells) -> uint64 (n,)."""
    hashes = np.empty(rows.shape[0], np.uint64)
    for i in range(rows.shape[0]):
        hashes[i] = row_hash(rows[i], codes, basis)
    return hashes


@compiled
def canonical_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64, height: int, width: int) -> np.uint64:
    """The smallest hash among the eight rotations and reflections of a board: uint8 (height * (width + 1) - 1,)."""
    newline = np.uint64(10)
    stride = width + 1
    best = np.uint64(0xFFFFFFFFFFFFFFFF)
    for symmetry in range(8):
        flip_row, flip_column, transpose = symmetry & 1, symmetry & 2, symmetry & 4
        rows, columns = (width, height) if transpose else (height, width)
        h = basis
        for r in range(rows):
            if r:
                h = (h ^ newline) * _PRIME
            for c in range(columns):
                y, x = (c, r) if transpose else (r, c)
                if flip_row:
                    y = height - 1 - y
                if flip_column:
                    x = width - 1 - x
                h = (h ^ codes[row[y * stride + x]]) * _PRIME
        best = min(best, mix(h))
    return best


@compiled
def split_index(canonical: np.uint64) -> int:
    """`ragen_gym.levels.split_of_hash`, as the split's index in `ragen_gym.levels.SPLITS`."""
    tenth = mix(canonical ^ _SALT) % _TEN
    return 0 if tenth < _TRAIN else (1 if tenth < _VALIDATION else 2)
