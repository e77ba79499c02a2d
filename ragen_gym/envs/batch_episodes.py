"""The episodes of a batch: those in play, in one block of memory, and a short ring of prepared ones.

A compiled function asks some 50 ns for every array that it is given, and numpy 200 ns for every array that it copies.
So the kernels are given the block and take the arrays out of it themselves, and one copy keeps what infos need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import GOLDEN, Stream, stream_key
from ragen_gym.envs.episode_stream import level_boards, stacked
from ragen_gym.games._jit import compiled, compiling
from ragen_gym.games.game import Boards, Game
from ragen_gym.games.kernels import mix

#: Episodes kept for each environment, the one in play included; fewer where all boards would exceed ``RING_BYTES``.
RING = 16
RING_BYTES = 2**28

_GOLDEN = np.uint64(GOLDEN)
_0, _1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(9))

Integers = npt.NDArray[np.int64]


class BatchBuffers(NamedTuple):
    """Arrays in one block, of n environments."""

    filled: Integers  # (n,), episodes prepared since the seed
    elapsed: Integers  # (n,), steps in the episode in play
    ended: Integers  # (n,), the first of them the environments whose episode is over; see ``kernel.advance``
    noise: npt.NDArray[np.uint64]  # (n,), state of the generator of the noise
    noise_keys: npt.NDArray[np.uint64]  # (n,), stream of the noise
    draws: npt.NDArray[np.float64]  # (n,), a step's random numbers; zeros where the rule does not use them
    taken: Integers  # (n,), episodes begun since the seed
    states: npt.NDArray[np.int32]  # (n, integers), the integers of the states
    boards: Boards  # (n, cells)
    outcomes: npt.NDArray[np.uint8]  # (n,), what the rule said of the last step
    done: npt.NDArray[np.bool_]  # (n,), whether the episode is over


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


class LevelPrefetch:
    """Episode 0, 1, 2, … of each environment's seed, generated for all environments at once.

    Memory for each environment: up to ``RING`` boards and states, and 32 bytes. After a seed only the first episode is
    prepared, then 1, 2, 4 and at most ``RING - 1`` ahead of the one in play, so that a batch that plays little
    generates little. A refill puts its episodes into copies of the two arrays: whoever holds the old ones, as infos
    do, can still look up the level of an episode that is over.

    Attributes:
        boards: uint8 (num_envs, ring, cells). Episode e of an environment lies in its slot ``e % ring``.
        states: int32 (num_envs, ring, integers).
        block: the episodes in play, uint8; see ``BatchBuffers``.
        buffers: the arrays in the block. An environment's episode in play is number ``taken - 1``.
        part: what infos keep of the block.
    """

    @compiling()
    def __init__(self, game: Game, num_envs: int, split: str | None, levels: list[bytes] | None) -> None:
        self._game, self._split, self._levels = game, split, None if levels is None else stacked(levels)
        cells = game.height * (game.width + 1) - 1
        ring = RING
        while ring > 2 and num_envs * ring * cells > RING_BYTES:
            ring //= 2
        self.boards: Boards = np.zeros((num_envs, ring, cells), np.uint8)
        integers = game.starts(np.zeros((0, cells), np.uint8)).shape[1]
        self.states = np.zeros((num_envs, ring, integers), np.int32)
        self.sizes = num_envs, integers, cells
        self.block = np.zeros(size_of(*self.sizes), np.uint8)
        self._take_apart()
        self._level_keys = np.zeros(num_envs, np.uint64)
        self._ahead = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("buffers", "part")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take_apart()  # a copy's arrays must lie in the copy's block

    def _take_apart(self) -> None:
        self.buffers, self.part = buffers_of(self.block, *self.sizes), part_of(self.block, *self.sizes)

    def seed(self, which: list[int], seeds: list[int]) -> None:
        """Go to episode 0 of these seeds.

        Raises:
            ValueError: a seed is negative or not an integer.
        """
        level_keys = np.array([stream_key(seed, Stream.LEVEL) for seed in seeds], np.uint64)
        noise_keys = np.array([stream_key(seed, self._game.noise) for seed in seeds], np.uint64)
        self._level_keys[which], self.buffers.noise_keys[which] = level_keys, noise_keys
        self.buffers.taken[which] = self.buffers.filled[which] = self._ahead = 0

    @compiling()
    def refill(self) -> None:
        """Prepare episodes for every environment; to be called when one has none left.

        Raises:
            ValueError: the game cannot generate such a level with these options.
        """
        self._ahead = min(max(1, 2 * self._ahead), self.boards.shape[1] - 1)
        wanted = self.buffers.taken + self._ahead
        ring, filled = self.boards.shape[1], self.buffers.filled
        keys, slots = _missing(self._level_keys, filled, wanted, ring)
        if not len(keys):
            return
        boards = level_boards(self._game, keys, self._split, self._levels)
        self.boards, self.states = self.boards.copy(), self.states.copy()
        _place(np.ascontiguousarray(boards), self._game.starts(boards), slots, self.boards, self.states)
        np.maximum(filled, wanted, out=filled)

    @compiling()
    def put(self, which: npt.NDArray[np.intp], boards: Boards) -> None:
        """Put these levels in the place of the next ones of the environments ``which``."""
        self.boards, self.states = self.boards.copy(), self.states.copy()
        slots = self.buffers.taken[which] % self.boards.shape[1]
        self.boards[which, slots] = boards
        self.states[which, slots] = self._game.starts(boards)


@compiled
def copy_bytes(source: np.ndarray, p: np.uint64, target: np.ndarray, q: np.uint64, count: np.uint64) -> None:
    """Copy ``count`` bytes from ``source[p:]`` to ``target[q:]``.

    Eight bytes are read before the first is written, so that the compiler makes one move of them; the last eight may
    overlap those before. It is several times as fast as a loop over so few bytes.
    """
    if count < _8:
        for j in range(count):
            target[q + j] = source[p + j]
        return
    at = _0
    while True:
        f, t = p + at, q + at
        b0, b1, b2, b3 = source[f], source[f + _1], source[f + _2], source[f + _3]
        b4, b5, b6, b7 = source[f + _4], source[f + _5], source[f + _6], source[f + _7]
        target[t], target[t + _1], target[t + _2], target[t + _3] = b0, b1, b2, b3
        target[t + _4], target[t + _5], target[t + _6], target[t + _7] = b4, b5, b6, b7
        if at == count - _8:
            return
        at = min(at + _8, count - _8)


@compiled
def _missing(
    level_keys: np.ndarray, filled: np.ndarray, wanted: np.ndarray, ring: int
) -> tuple[np.ndarray, np.ndarray]:
    """Generator keys of the episodes from ``filled`` to ``wanted - 1`` of each environment, and their slots."""
    count = 0
    for i in range(filled.shape[0]):
        count += max(0, wanted[i] - filled[i])
    keys, slots = np.empty(count, np.uint64), np.empty(count, np.int64)
    k = 0
    for i in range(filled.shape[0]):
        for episode in range(filled[i], wanted[i]):
            keys[k] = level_keys[i] + np.uint64(episode + 1) * _GOLDEN
            slots[k] = i * ring + episode % ring
            k += 1
    for k in range(count):  # in a loop of its own, which compiles to vector instructions
        keys[k] = mix(keys[k])
    return keys, slots


@compiled
def _place(
    boards: np.ndarray, states: np.ndarray, slots: np.ndarray, ring_boards: np.ndarray, ring_states: np.ndarray
) -> None:
    cells, integers = np.uint64(boards.shape[1]), states.shape[1]
    flat, flat_ring, flat_states = boards.reshape(-1), ring_boards.reshape(-1), ring_states.reshape(-1, integers)
    for k in range(slots.shape[0]):
        copy_bytes(flat, np.uint64(k) * cells, flat_ring, np.uint64(slots[k]) * cells, cells)
        for j in range(integers):
            flat_states[slots[k], j] = states[k, j]
