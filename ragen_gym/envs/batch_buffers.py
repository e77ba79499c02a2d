"""The episodes that a batch has in play: arrays that share one block of memory.

A compiled function asks some 50 ns for every array that it is given, and numpy 200 ns for every array that it copies.
So the kernels are given the block and take the arrays out of it themselves, and one copy keeps what infos need.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ragen_gym.games.game import Boards

__all__ = ["BatchBuffers", "buffers_of", "kept_of", "part_of", "size_of"]

Integers = npt.NDArray[np.int64]


class BatchBuffers(NamedTuple):
    """Arrays in one block, of n environments.

    Attributes:
        filled: int64 (n,), episodes prepared since the seed.
        elapsed: int64 (n,), steps in the episode in play.
        ended: int64 (n,), the first of them the environments whose episode is over; see ``kernel.advance``.
        noise: uint64 (n,), state of the generator of the noise.
        noise_keys: uint64 (n,), stream of the noise.
        draws: float64 (n,), a step's random numbers; zeros where the rule does not use them.
        taken: int64 (n,), episodes begun since the seed.
        states: int32 (n, integers), the integers of the states.
        boards: uint8 (n, cells).
        outcomes: uint8 (n,), what the rule said of the last step.
        done: bool (n,), whether the episode is over.
    """

    filled: Integers
    elapsed: Integers
    ended: Integers
    noise: npt.NDArray[np.uint64]
    noise_keys: npt.NDArray[np.uint64]
    draws: npt.NDArray[np.float64]
    taken: Integers
    states: npt.NDArray[np.int32]
    boards: Boards
    outcomes: npt.NDArray[np.uint8]
    done: npt.NDArray[np.bool_]


def size_of(n: int, integers: int, cells: int) -> int:
    """Bytes of the block of n environments."""
    return n * (7 * 8 + 4 * integers + cells + 2)


def buffers_of(block: np.ndarray, n: int, integers: int, cells: int) -> BatchBuffers:
    """The arrays in a block, uint8 (size_of(n, integers, cells),); runs as Python, and compiled in the kernels."""
    words = block[: 56 * n].view(np.int64).reshape(7, n)
    unsigned, first = block[: 56 * n].view(np.uint64).reshape(7, n), 56 * n
    second = first + 4 * n * integers
    third = second + n * cells
    return BatchBuffers(
        words[0],
        words[1],
        words[2],
        unsigned[3],
        unsigned[4],
        block[40 * n : 48 * n].view(np.float64),
        words[6],
        block[first:second].view(np.int32).reshape(n, integers),
        block[second:third].reshape(n, cells),
        block[third : third + n],
        block[third + n : third + 2 * n].view(np.bool_),
    )


def part_of(block: np.ndarray, n: int, integers: int, cells: int) -> np.ndarray:
    """The part of a block that holds ``taken``, ``states`` and ``boards``; infos keep a copy of it."""
    return block[48 * n : 56 * n + 4 * n * integers + n * cells]


def kept_of(part: np.ndarray, n: int, integers: int, cells: int) -> tuple[Integers, npt.NDArray[np.int32], Boards]:
    """(taken, states, boards) of a ``part_of`` a block."""
    first, second = 8 * n, 8 * n + 4 * n * integers
    return (
        part[:first].view(np.int64),
        part[first:second].view(np.int32).reshape(n, integers),
        part[second:].reshape(n, cells),
    )
