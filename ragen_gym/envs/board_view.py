"""One board as an observation: text, tile codes or pixels, and the spaces of these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory

from ragen_gym.core.text import TEXT_FORMATS, TextFormat, Vocabulary
from ragen_gym.core.turn_config import check_tile_size
from ragen_gym.core.validation import check_choice
from ragen_gym.games.game import Board, Game

OBSERVATIONS = ("text", "grid", "rgb")


class TextSpace(spaces.Text):
    """``Text`` that refuses the shared memory of ``gymnasium.vector.AsyncVectorEnv``, and Stable-Baselines3.

    The first reads its texts once, before there are any, so every observation would be the same meaningless text.
    """

    @property
    def spaces(self) -> NoReturn:
        """Refused: Stable-Baselines3 looks for this attribute first, and fails with a riddle on any text."""
        raise ValueError(
            "the observations are text, from which Stable-Baselines3 cannot learn: make single moves with "
            "gymnasium.make(id, observation='grid') and wrap it in ragen_gym.wrappers.FlatSymbols or OneHotPlanes."
        )


@create_shared_memory.register(TextSpace)
def _refuse(space: TextSpace, n: int = 1, ctx: Any = None) -> NoReturn:
    raise ValueError(
        "Gymnasium's AsyncVectorEnv cannot hand on texts by shared memory; every board would be blank: give "
        'vector_kwargs={"shared_memory": False} to make_vec (shared_memory=False to AsyncVectorEnv), or leave '
        "vectorization_mode out, which makes the native batch and is far faster."
    )


#: (the characters of texts, their least length, their greatest)
Charset = tuple[frozenset[str], int, int]


def text_space(charset: Charset) -> TextSpace:
    """The space of these texts."""
    characters, shortest, longest = charset
    return TextSpace(longest, min_length=shortest, charset=characters)


def merged_charset(charsets: Iterable[Charset]) -> Charset:
    """The characters and lengths of texts of any of these kinds."""
    characters, shortest, longest = zip(*charsets, strict=True)
    return frozenset().union(*characters), min(shortest), max(longest)


class BoardView:
    """Turns boards of a game into observations; arguments and errors as of ``ragen_gym.StepEnv``."""

    def __init__(
        self, game: Game, observation: str, vocabulary: Vocabulary, text_format: TextFormat, tile_size: int
    ) -> None:
        check_choice("observation", observation, OBSERVATIONS)
        check_choice("text_format", text_format, TEXT_FORMATS)
        self.game, self.observation, self.tile_size = game, observation, check_tile_size(tile_size)
        self.text = game.formatter(vocabulary, text_format)
        self.observe = {"text": self.text, "grid": self.grid, "rgb": self.pixels}[observation]
        self._charset = game.charset(vocabulary, text_format)
        self._arguments = game, observation, vocabulary, text_format, tile_size

    def __reduce__(self) -> tuple[type[BoardView], tuple[Any, ...]]:
        return type(self), self._arguments

    def grid(self, board: Board) -> npt.NDArray[np.uint8]:
        """The tile codes, uint8 (height, width)."""
        height, width = self.game.height, self.game.width
        return np.frombuffer(bytes(board) + b"\xff", np.uint8).reshape(height, -1)[:, :width].copy()

    def pixels(self, board: Board) -> npt.NDArray[np.uint8]:
        """The picture without a caption, uint8 (height, width, 3)."""
        from ragen_gym.render.frames import frames

        pixels: npt.NDArray[np.uint8] = frames(self.game, self.grid(board)[None], self.tile_size)[0]
        return pixels

    def grid_space(self) -> spaces.Box:
        """The space of ``grid``."""
        return spaces.Box(0, self.game.codes - 1, (self.game.height, self.game.width), np.uint8)

    def space(self) -> spaces.Space[Any]:
        """The space of the observations, a new object."""
        if self.observation == "grid":
            return self.grid_space()
        if self.observation == "rgb":
            from ragen_gym.render.frames import frame_shape

            return spaces.Box(0, 255, frame_shape(self.game, self.tile_size), np.uint8)
        return text_space(self._charset)
