"""The episodes that a seed gives, prepared in blocks so that fresh levels cost little."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import Keys, Stream, episode_key, episode_keys, stream_key, uniforms
from ragen_gym.games.game import Boards, Game

#: Random numbers prepared at a time for each episode: as many as the paper's episodes have actions.
DRAWS = 10

#: Episodes prepared at a time, and the seconds that this takes beyond which there will not be more.
_LARGEST_BLOCK, _BLOCK_SECONDS = 256, 0.02
#: Draws without a new level after which there are taken to be no more: for each level found, and besides.
_DRAWS_PER_LEVEL, _MORE_DRAWS = 100, 10_000


#: The start of an episode: (board, state, level id, key of its noise, its first ``DRAWS`` random numbers, the last one
#: first, or none as yet). A plain tuple, since a named one takes six times as long to make and resets are frequent.
Episode = tuple[bytes, list[int], str, int, list[float]]


class Episodes:
    """Episode 0, 1, 2, … of one seed: their levels, drawn from ``levels`` or generated, and the keys of their noise."""

    def __init__(self, game: Game, seed: int, split: str | None, levels: list[bytes] | None) -> None:
        self._game, self._split, self._levels = game, split, levels
        self._level_key = stream_key(seed, Stream.LEVEL)
        self._noise_key = stream_key(seed, game.noise)
        self._block: list[Episode] = []
        self._next, self._size, self._largest = 0, 1, _LARGEST_BLOCK

    def take(self) -> Episode:
        """The next episode."""
        if not self._block:
            began = time.perf_counter()
            try:
                self._block = self._prepare(self._size)
            except ValueError:  # one of these levels cannot be made: those before it can
                if self._size == 1:
                    raise
                self._size = self._largest = 1
                self._block = self._prepare(1)
            self._next += self._size
            if time.perf_counter() - began < _BLOCK_SECONDS:
                self._size = min(4 * self._size, self._largest)
        return self._block.pop()

    def take_with(self, board: bytes | None, noise_seed: int | None) -> Episode:
        """The next episode, on another level or with the noise of another seed's first episode where they are given."""
        game = self._game
        # first of all, since a bad seed takes no episode
        noise_key = None if noise_seed is None else stream_key(noise_seed, game.noise, "noise_seed")
        start, state, level_id, key, noise = self.take()
        if board is not None:
            start, state, level_id = _levels_of(game, np.frombuffer(board, np.uint8)[None])[0]
        if noise_key is not None:
            key, noise = episode_key(noise_key, 0), []
        return start, state, level_id, key, noise

    def _prepare(self, count: int) -> list[Episode]:
        game = self._game
        if count == 1 and self._levels is None:
            key = self._level_key, self._next, self._split
            try:
                board, state, level_id = _only_level(game, *key)
            except TypeError:  # an option that cannot be hashed, such as a list
                board, state, level_id = _only_level.__wrapped__(game, *key)
            return [(board, list(state), level_id, episode_key(self._noise_key, self._next), [])]
        keys = episode_keys(self._level_key, self._next, count)
        noise_keys = episode_keys(self._noise_key, self._next, count)
        if self._levels is None:
            levels = _levels_of(game, game.generate(keys, self._split))
        else:
            boards = board_list(game, keys, self._split, self._levels)
            alike = [boards] if len(set(map(len, boards))) == 1 else [[board] for board in boards]
            levels = [level for some in alike for level in _levels_of(game, stacked(some))]
        rest = zip(levels, noise_keys.tolist(), draws(game, noise_keys, 0), strict=True)
        return [(*level, key, drawn) for level, key, drawn in rest][::-1]


@lru_cache(1024)
def _only_level(game: Game, level_key: int, episode: int, split: str | None) -> tuple[bytes, tuple[int, ...], str]:
    """One level. It is remembered, since the rollouts of a group begin with the same one."""
    [(board, state, level_id)] = _levels_of(game, game.generate(episode_keys(level_key, episode, 1), split))
    return board, tuple(state), level_id


def level_boards(game: Game, keys: Keys, split: str | None, levels: Boards | None) -> Boards:
    """The first board of the episode of each level key, generated or from ``levels``: uint8 (len(keys), cells)."""
    return game.generate(keys, split) if levels is None else levels[_picks(keys, len(levels))]


def board_list(game: Game, keys: Keys, split: str | None, levels: list[bytes] | None) -> list[bytes]:
    """``level_boards`` as a list, whose boards may be of several sizes."""
    if levels is None:
        return list(map(bytes, game.generate(keys, split)))
    return [levels[pick] for pick in _picks(keys, len(levels)).tolist()]


def _picks(keys: Keys, count: int) -> npt.NDArray[np.intp]:
    return (uniforms(keys, 0, 1)[:, 0] * count).astype(np.intp)


def distinct_boards(game: Game, seed: int, split: str | None, levels: list[bytes] | None = None) -> Iterator[bytes]:
    """The different first boards of a seed's episodes, in their order, until thousands of episodes bring no new one."""
    key, found, drawn, last = stream_key(seed, Stream.LEVEL), set[bytes](), 0, 0
    while drawn - last <= _DRAWS_PER_LEVEL * len(found) + _MORE_DRAWS:
        for board in board_list(game, episode_keys(key, drawn, _LARGEST_BLOCK), split, levels):
            drawn += 1
            if board not in found:
                found.add(board)
                last = drawn
                yield board


def stacked(boards: list[bytes]) -> Boards:
    """Boards as rows of an array, uint8 (n, cells)."""
    return np.frombuffer(bytearray().join(boards), np.uint8).reshape(len(boards), -1)


def draws(game: Game, noise_keys: Keys, first: int) -> list[list[float]]:
    """``DRAWS`` random numbers of each episode from its step ``first`` on, the last one first, ready for ``pop``."""
    if not game.stochastic:
        return [[] for _ in noise_keys]
    rows: list[list[float]] = uniforms(noise_keys, first, DRAWS)[:, ::-1].tolist()
    return rows


def _levels_of(game: Game, boards: Boards) -> list[tuple[bytes, list[int], str]]:
    flat, cells = boards.tobytes(), boards.shape[1]
    texts = [flat[i : i + cells] for i in range(0, len(flat), cells)]
    return list(zip(texts, game.starts(boards).tolist(), game.ids(boards), strict=True))
