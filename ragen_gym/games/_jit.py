"""The one place that knows numba: the compiler's settings, and the compiled forms of what every kernel needs.

Importing this module imports numba (about a third of a second), so the packages import it inside the functions that
use it. Compiled code is cached on disk next to the sources, or in the user's cache folder where those cannot be
written.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from enum import EnumType
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np

from ragen_gym.core.levels import FNV_PRIME, SPLIT_SALT, SPLIT_TENTHS
from ragen_gym.core.seeding import GOLDEN

__all__ = [
    "below",
    "canonical_hash",
    "compiled",
    "compiled_params",
    "compiled_with",
    "content_of",
    "mix",
    "next_word",
    "row_hash",
    "row_hashes",
    "split_index",
]

F = TypeVar("F", bound=Callable[..., object])

_GOLDEN = np.uint64(GOLDEN)
_PRIME = np.uint64(FNV_PRIME)
_SALT = np.uint64(SPLIT_SALT)
_TRAIN, _VALIDATION = SPLIT_TENTHS[0], SPLIT_TENTHS[0] + SPLIT_TENTHS[1]
_C1, _C2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE, _TEN, _27, _30, _31, _32 = (np.uint64(i) for i in (1, 10, 27, 30, 31, 32))


def compiled(function: F) -> F:
    """Compile a function of numbers and arrays on its first call; the result is cached on disk.

    The cache is numba's own, which looks no further than the function's file: after an edit of a function in another
    file that it calls, it would go on with machine code that holds the old one. So the name under which the function is
    cached says what the machine code follows from; see ``content_of``.
    """
    return cast(F, _cached(_named(function, function.__qualname__)))


def compiled_with(template: F, **rules: Callable[..., Any]) -> F:
    """Compile a copy of ``template`` in which each global name of ``rules`` is that function, compiled.

    The copy is cached under a name of its own, so that the kernels of two games do not displace each other. (A closure
    over the rule would never be found in the cache, since numba names closures by objects of the process.)
    """
    inner = {name: numba.njit(nogil=True, error_model="numpy")(rule) for name, rule in rules.items()}
    copy = FunctionType(template.__code__, {**template.__globals__, **inner}, template.__name__)
    copy.__module__, copy.__doc__ = template.__module__, template.__doc__
    names = [template.__name__, *(f"{rule.__module__}_{rule.__qualname__}" for rule in rules.values())]
    name = "".join(c if c.isalnum() else "_" for c in "_".join(names))
    return cast(F, _cached(_named(copy, name)))


def _cached(function: FunctionType) -> Any:
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # there is nowhere to write, or the function was typed in and has no file
        return numba.njit(nogil=True, error_model="numpy")(function)


@cache
def content_of(function: Callable[..., object]) -> str:
    """16 hexadecimal digits that change with the code of a function, of those that it calls, and with its constants.

    They do not follow what the function takes by an attribute of another module, nor what its own module has yet to
    define: what compiled code calls is imported by name and stands above it.
    """
    made = cast(FunctionType, function)
    parts = [repr(made.__defaults__)]
    names = [*zip(made.__code__.co_freevars, (cell.cell_contents for cell in made.__closure__ or ()), strict=True)]
    for code in _codes(made.__code__):
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames)))
        names += [(name, made.__globals__.get(name)) for name in code.co_names]  # some are attributes' names
    for name, value in names:
        value = getattr(value, "py_func", value)
        if value is not None and value is not made:
            parts.append(f"{name}={content_of(value) if isinstance(value, FunctionType) else _said(value)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _said(value: Any) -> str:
    """What compiled code takes over of a value that is no function."""
    if isinstance(value, ModuleType):
        return f"{value.__name__} {getattr(value, '__version__', '')}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, EnumType):
        return repr((value, *value.__members__.items()))
    return repr((value, *getattr(value, "_fields", ())))


def _named(function: Callable[..., object], name: str) -> FunctionType:
    """A copy of the function under a name that holds its content."""
    made = cast(FunctionType, function)
    copy = FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
    copy.__module__, copy.__doc__, copy.__annotations__ = made.__module__, made.__doc__, made.__annotations__
    copy.__qualname__ = f"{name}_{content_of(made)}"
    return copy


def compiled_params(params: Any) -> Any:
    """``ragen_gym.games.game.Game.params`` as a compiled rule takes it soonest: ``array.array`` as numpy's arrays."""
    if isinstance(params, array):
        return np.asarray(params)
    return tuple(np.asarray(each) if isinstance(each, array) else each for each in params)


@compiled
def mix(x: np.uint64) -> np.uint64:
    """``ragen_gym.core.seeding.mix``, compiled."""
    x = (x ^ (x >> _30)) * _C1
    x = (x ^ (x >> _27)) * _C2
    return x ^ (x >> _31)


@compiled
def next_word(key: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Advance a SplitMix64 generator: (its next state, 64 random bits)."""
    key = key + _GOLDEN
    return key, mix(key)


@compiled
def below(word: np.uint64, n: int) -> int:
    """A number from 0 to n - 1 from the upper half of a random word."""
    return int(np.int64(((word >> _32) * np.uint64(n)) >> _32))


@compiled
def row_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.uint64:
    """``ragen_gym.core.levels.text_hash`` of a board, uint8 (cells,).

    ``codes`` are the tiles' code points, uint64 (256,).
    """
    h = basis
    for j in range(row.shape[0]):
        h = (h ^ codes[row[j]]) * _PRIME
    return mix(h)


@compiled
def row_hashes(rows: np.ndarray, codes: np.ndarray, basis: np.uint64) -> np.ndarray:
    """``row_hash`` of each board: uint8 (n, cells) -> uint64 (n,)."""
    hashes = np.empty(rows.shape[0], np.uint64)
    for i in range(rows.shape[0]):
        hashes[i] = row_hash(rows[i], codes, basis)
    return hashes


@compiled
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


@compiled
def canonical_hash(row: np.ndarray, codes: np.ndarray, basis: np.uint64, height: int, width: int) -> np.uint64:
    """The smallest hash among the eight rotations and reflections of a board: uint8 (height * (width + 1) - 1,)."""
    lines, columns = np.uint64(height), np.uint64(width)
    upright = _least_of_four(row, codes, basis, lines, columns, columns + _ONE, _ONE)
    return min(upright, _least_of_four(row, codes, basis, columns, lines, _ONE, columns + _ONE))


@compiled
def split_index(canonical: np.uint64) -> int:
    """``ragen_gym.core.levels.split_of_hash``, as the split's index in ``ragen_gym.core.levels.SPLITS``."""
    tenth = mix(canonical ^ _SALT) % _TEN
    return 0 if tenth < _TRAIN else (1 if tenth < _VALIDATION else 2)
