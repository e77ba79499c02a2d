"""The episodes that a batch has prepared: a short ring of them for each environment, refilled together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import GOLDEN, Stream, stream_key
from ragen_gym.envs.batch_buffers import buffers_of, part_of, size_of
from ragen_gym.envs.episode_stream import level_boards, stacked
from ragen_gym.envs.kernel import copy_bytes
from ragen_gym.games._jit import compiled, mix
from ragen_gym.games.game import Boards, Game

__all__ = ["RING", "RING_BYTES", "LevelPrefetch"]

#: Episodes kept for each environment, the one in play included; fewer where all boards would exceed ``RING_BYTES``.
RING = 16
RING_BYTES = 2**28

_GOLDEN = np.uint64(GOLDEN)


class LevelPrefetch:
    """Episode 0, 1, 2, … of each environment's seed, generated for all environments at once.

    Memory for each environment: up to ``RING`` boards and states, and 32 bytes. After a seed only the first episode is
    prepared, then 1, 2, 4 and at most ``RING - 1`` ahead of the one in play, so that a batch that plays little
    generates little. A refill puts its episodes into copies of the two arrays: whoever holds the old ones, as infos
    do, can still look up the level of an episode that is over.

    Attributes:
        boards: uint8 (num_envs, ring, cells). Episode e of an environment lies in its slot ``e % ring``.
        states: int32 (num_envs, ring, integers).
        block: the episodes in play; see ``ragen_gym.envs.batch_buffers``.
        buffers: the arrays in the block. An environment's episode in play is number ``taken - 1``.
        part: what infos keep of the block.
    """

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

    def refill(self) -> None:
        """Prepare episodes for every environment; to be called when one has none left.

        Raises:
            ValueError: the game cannot generate levels with these options.
        """
        ring, taken, filled = self.boards.shape[1], self.buffers.taken, self.buffers.filled
        self._ahead = min(max(1, 2 * self._ahead), ring - 1)
        keys, slots = _missing(self._level_keys, filled, taken + self._ahead, ring)
        boards = level_boards(self._game, keys, self._split, self._levels)
        self.boards, self.states = self.boards.copy(), self.states.copy()
        _place(np.ascontiguousarray(boards), self._game.starts(boards), slots, self.boards, self.states)
        np.maximum(filled, taken + self._ahead, out=filled)

    def put(self, which: npt.NDArray[np.intp], boards: Boards) -> None:
        """Put these levels in the place of the next ones of the environments ``which``."""
        self.boards, self.states = self.boards.copy(), self.states.copy()
        slots = self.buffers.taken[which] % self.boards.shape[1]
        self.boards[which, slots] = boards
        self.states[which, slots] = self._game.starts(boards)


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
    """Write boards and states into their slots of the ring."""
    cells, integers = np.uint64(boards.shape[1]), states.shape[1]
    flat, flat_ring, flat_states = boards.reshape(-1), ring_boards.reshape(-1), ring_states.reshape(-1, integers)
    for k in range(slots.shape[0]):
        copy_bytes(flat, np.uint64(k) * cells, flat_ring, np.uint64(slots[k]) * cells, cells)
        for j in range(integers):
            flat_states[slots[k], j] = states[k, j]
