"""The episodes that a seed gives, prepared in blocks so that fresh levels cost little."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ragen_gym.games.game import Game
from ragen_gym.seeding import Stream, episode_keys, stream_key, uniforms

__all__ = ["Episode", "Episodes"]

_LARGEST_BLOCK = 256
_DRAWS = 16


class Episode(NamedTuple):
    """The start of an episode."""

    board: bytes
    state: list[int]
    level_id: str
    noise_key: int
    draws: list[float]


class Episodes:
    """Episode 0, 1, 2, … of one seed: their levels, and the keys of their noise.

    Args:
        game: the game.
        seed: any integer from 0 on.
        split: the split that the levels come from, or None.
        levels: boards to draw from instead of generating.
    """

    def __init__(self, game: Game, seed: int, split: str | None, levels: list[bytes] | None) -> None:
        self._game, self._split, self._levels = game, split, levels
        self._level_key = stream_key(seed, Stream.LEVEL)
        self._noise_key = stream_key(seed, game.noise)
        self._block: list[Episode] = []
        self._next, self._size = 0, 1

    def take(self) -> Episode:
        """The next episode."""
        if not self._block:
            self._block = self._prepare(self._size)
            self._next += self._size
            self._size = min(4 * self._size, _LARGEST_BLOCK)
        return self._block.pop()

    def take_with(self, board: bytes | None, noise_seed: int | None) -> Episode:
        """The next episode, on another level or with another seed's noise (that seed's first) where they are given."""
        episode = self.take()
        if board is not None:
            episode = start(self._game, board, episode.noise_key)
        if noise_seed is None:
            return episode
        key = int(episode_keys(stream_key(noise_seed, self._game.noise), 0, 1)[0])
        return episode._replace(noise_key=key, draws=draws(self._game, key, 0))

    def _prepare(self, count: int) -> list[Episode]:
        game = self._game
        keys = episode_keys(self._level_key, self._next, count)
        if self._levels is None:
            boards = game.generate(keys, self._split)
        else:
            picks = (uniforms(keys, 0, 1)[:, 0] * len(self._levels)).astype(np.intp)
            boards = np.frombuffer(b"".join(self._levels), np.uint8).reshape(len(self._levels), -1)[picks]
        noise = episode_keys(self._noise_key, self._next, count)
        rows: list[Any] = (
            uniforms(noise, 0, _DRAWS)[:, ::-1].tolist() if game.stochastic else [[] for _ in noise]
        )
        block = zip(
            map(bytes, boards),
            game.starts(boards).tolist(),
            game.ids(boards),
            noise.tolist(),
            rows,
            strict=True,
        )
        return [Episode(*parts) for parts in block][::-1]


def start(game: Game, board: bytes, noise_key: int) -> Episode:
    """The start of an episode on this board."""
    boards = np.frombuffer(board, np.uint8)[None]
    return Episode(
        board, game.starts(boards)[0].tolist(), game.ids(boards)[0], noise_key, draws(game, noise_key, 0)
    )


def draws(game: Game, noise_key: int, first: int) -> list[float]:
    """The random numbers of the steps from ``first`` on, the last of them first, so that ``pop`` takes them in order."""
    if not game.stochastic:
        return []
    row: list[float] = uniforms(np.array([noise_key], np.uint64), first, _DRAWS)[0, ::-1].tolist()
    return row
