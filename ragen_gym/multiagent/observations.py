"""What a player sees: a board as text, tile codes or pixels, and the space of that; symbols for the other players."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ragen_gym.core.text import TextFormat, Vocabulary
from ragen_gym.games.game import Board, Game

__all__ = ["Viewer", "with_others"]


class Viewer:
    """Turns boards of a game into observations.

    Args:
        game: the game.
        observation: ``"text"``, ``"grid"`` or ``"rgb"``.
        vocabulary, text_format: of the texts.
        tile_size: side of a tile of the pictures in pixels.
    """

    def __init__(
        self, game: Game, observation: str, vocabulary: Vocabulary, text_format: TextFormat, tile_size: int
    ) -> None:
        self.text = game.formatter(vocabulary, text_format)
        self.observe = {"text": self.text, "grid": self.grid, "rgb": self.pixels}[observation]
        self._game, self._observation, self._tile_size = game, observation, tile_size
        self._charset = game.charset(vocabulary, text_format)

    def grid(self, board: Board) -> npt.NDArray[np.uint8]:
        """The tile codes, uint8 (height, width)."""
        height, width = self._game.height, self._game.width
        return np.frombuffer(bytes(board) + b"\xff", np.uint8).reshape(height, -1)[:, :width].copy()

    def pixels(self, board: Board) -> npt.NDArray[np.uint8]:
        """The picture without a caption, uint8 (height, width, 3)."""
        from ragen_gym.multiagent.frames import frame

        return frame(self._game, board, self._tile_size)

    def grid_space(self) -> spaces.Box:
        """The space of ``grid``."""
        return spaces.Box(0, self._game.codes - 1, (self._game.height, self._game.width), np.uint8)

    def space(self) -> spaces.Space[Any]:
        """The space of the observations, a new object."""
        if self._observation == "grid":
            return self.grid_space()
        if self._observation == "rgb":
            from ragen_gym.render.frames import frame_shape

            return spaces.Box(0, 255, frame_shape(self._game, self._tile_size), np.uint8)
        charset, shortest, longest = self._charset
        return spaces.Text(longest, min_length=shortest, charset=charset)


_LETTERS = ascii_uppercase[16:] + ascii_lowercase[16:]


def with_others(vocabularies: Mapping[str, Vocabulary], tiles: type[IntEnum]) -> dict[str, Vocabulary]:
    """The vocabularies, lengthened to the tiles by the first letters of Q to Z and q to z that each leaves free."""
    longer = {}
    for name, vocabulary in vocabularies.items():
        free = [letter for letter in _LETTERS if letter not in vocabulary.symbols]
        missing = len(tiles) - len(vocabulary.symbols)
        longer[name] = Vocabulary(name, (*vocabulary.symbols, *free[:missing]))
    return longer
