"""Boards of a batch as observations: all texts, grids or pictures at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ragen_gym.core.text import EDGE
from ragen_gym.envs import kernel
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.game import Boards, Game

__all__ = ["batched", "grid_maker", "picture_maker", "text_writer"]


def text_writer(single: StepEnv) -> Callable[[Boards], tuple[str, ...]]:
    """A function from boards to the texts that ``single`` writes of them.

    Grids are looked up symbol by symbol as UCS-4 characters, which numpy makes strings of; any vocabulary costs the
    same. Other texts are written one by one.
    """
    write = single.game.formatter(single.vocabulary, single.text_format)

    def one_by_one(boards: Boards) -> tuple[str, ...]:
        flat, cells = boards.tobytes(), boards.shape[1]
        return tuple([write(flat[i : i + cells]) for i in range(0, len(flat), cells)])

    if (single.text_format, single.game.layout) != ("grid", "grid"):
        return one_by_one
    table = np.zeros(256, np.uint32)
    table[: len(single.vocabulary.symbols)] = [ord(symbol) for symbol in single.vocabulary.symbols]
    table[EDGE] = ord("\n")

    def all_at_once(boards: Boards) -> tuple[str, ...]:
        points = np.empty(boards.shape, np.uint32)
        kernel.characters(boards, table, points)
        return tuple(points.view(f"U{boards.shape[1]}")[:, 0].tolist())

    return all_at_once


def grid_maker(game: Game) -> Callable[[Boards], npt.NDArray[np.uint8]]:
    """A function from boards to uint8 (n, height, width)."""
    height, width = game.height, game.width

    def grids(boards: Boards) -> npt.NDArray[np.uint8]:
        out = np.empty((len(boards), height, width), np.uint8)
        kernel.grids(boards, out)
        return out

    return grids


def picture_maker(game: Game, tile_size: int) -> Callable[[Boards], npt.NDArray[np.uint8]]:
    """A function from boards to pictures, uint8 (n, height in pixels, width in pixels, 3)."""
    grids = grid_maker(game)

    def pictures(boards: Boards) -> npt.NDArray[np.uint8]:
        from ragen_gym.render.frames import frames

        pixels: npt.NDArray[np.uint8] = frames(game, grids(boards), tile_size)
        return pixels

    return pictures


def batched(space: spaces.Space[Any], n: int) -> spaces.Space[Any]:
    """``batch_space``, but with one text space for all: a copy for each would take seconds for large batches."""
    return spaces.Tuple((space,) * n) if isinstance(space, spaces.Text) else batch_space(space, n)
