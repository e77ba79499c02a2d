"""Other views of the observations, for single environments and for batches.

| single | batch | observation |
|---|---|---|
| ``TextToGrid`` | ``BatchTextToGrid`` | the text, parsed back into uint8 (height, width) |
| ``OneHotPlanes`` | ``BatchOneHotPlanes`` | uint8 (codes, height, width): a plane for each tile, 1 where it lies |
| ``FlatSymbols`` | ``BatchFlatSymbols`` | float32 (height * width * codes,): the one-hot code of each cell in turn |

The last two take ``observation="grid"``, or text by way of the first. A batch's observations have one axis more, and
``final_obs`` is viewed like the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from ragen_gym.core.text import EDGE, TextFormat, Vocabulary
from ragen_gym.games.game import Game

__all__ = [
    "BatchFlatSymbols",
    "BatchOneHotPlanes",
    "BatchTextToGrid",
    "FlatSymbols",
    "OneHotPlanes",
    "TextToGrid",
]

Grids = npt.NDArray[np.uint8]


class _SingleView(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Single environments: the observation as a batch of one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._view, self.observation_space = self._views(env.unwrapped, env.observation_space)

    def observation(self, observation: Any) -> Any:
        """The view of one observation."""
        return self._view([observation])[0]

    def _views(self, base: Any, space: spaces.Space[Any]) -> tuple[Callable[[Any], Any], spaces.Space[Any]]:
        raise NotImplementedError


class _BatchView(VectorWrapper[Any, Any, Any, Any, Any]):
    """Batches, in every autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._view, self.single_observation_space = self._views(env.unwrapped, env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and view the observations."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._view(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step, and view the observations and the final ones."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            final, which = infos["final_obs"], np.flatnonzero(infos["_final_obs"])
            for i, view in zip(which, self._view([final[i] for i in which]), strict=True):
                final[i] = view
        return self._view(observations), rewards, terminated, truncated, infos

    def _views(self, base: Any, space: spaces.Space[Any]) -> tuple[Callable[[Any], Any], spaces.Space[Any]]:
        raise NotImplementedError


class _TextToGrid:
    def _views(self, base: Any, space: spaces.Space[Any]) -> tuple[Callable[[Any], Any], spaces.Space[Any]]:
        if not isinstance(space, spaces.Text):
            raise ValueError(f"observations are {space}, not text: make the environment with observation='text'.")
        game: Game = base.game
        grid = spaces.Box(0, game.codes - 1, (game.height, game.width), np.uint8)
        return _reader(game, base.vocabulary, base.text_format), grid


class _OneHotPlanes:
    def _views(self, base: Any, space: spaces.Space[Any]) -> tuple[Callable[[Any], Any], spaces.Space[Any]]:
        codes, height, width = _shape(space)
        eye = np.eye(codes, dtype=np.uint8)

        def planes(grids: Any) -> Any:
            return np.ascontiguousarray(np.moveaxis(eye[np.asarray(grids)], -1, 1))

        return planes, spaces.Box(0, 1, (codes, height, width), np.uint8)


class _FlatSymbols:
    def _views(self, base: Any, space: spaces.Space[Any]) -> tuple[Callable[[Any], Any], spaces.Space[Any]]:
        codes, height, width = _shape(space)
        eye = np.eye(codes, dtype=np.float32)

        def flat(grids: Any) -> Any:
            return eye[np.asarray(grids)].reshape(len(grids), -1)

        return flat, spaces.Box(0, 1, (height * width * codes,), np.float32)


class TextToGrid(_TextToGrid, _SingleView):
    """Text as uint8 (height, width), the codes of the game's ``Tile`` enum."""


class BatchTextToGrid(_TextToGrid, _BatchView):
    """Texts as uint8 (num_envs, height, width)."""


class OneHotPlanes(_OneHotPlanes, _SingleView):
    """A grid as uint8 (codes, height, width), one plane for each code that the observation space allows."""


class BatchOneHotPlanes(_OneHotPlanes, _BatchView):
    """Grids as uint8 (num_envs, codes, height, width)."""


class FlatSymbols(_FlatSymbols, _SingleView):
    """A grid as float32 (height * width * codes,), the one-hot codes of the cells one after another."""


class BatchFlatSymbols(_FlatSymbols, _BatchView):
    """Grids as float32 (num_envs, height * width * codes)."""


def _shape(space: spaces.Space[Any]) -> tuple[int, int, int]:
    """(codes, height, width) of a grid's space, or a ValueError."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 2:
        raise ValueError(f"observations are {space}, not grids: make the environment with observation='grid'.")
    return int(space.high.max()) + 1, *space.shape


def _reader(game: Game, vocabulary: Vocabulary, text_format: TextFormat) -> Callable[[Any], Grids]:
    """A function from texts to grids: by table where texts are rows of symbols, else one by one."""
    height, width = game.height, game.width

    def parsed(texts: Any) -> Grids:
        rows = b"".join(game.parse(text, vocabulary, text_format) + b"\xff" for text in texts)
        return np.frombuffer(rows, np.uint8).reshape(len(texts), height, width + 1)[:, :, :width].copy()

    if (text_format, game.layout) != ("grid", "grid"):
        return parsed
    points = [ord(symbol) for symbol in vocabulary.symbols]
    codes = np.full(max(points) + 1, EDGE, np.uint8)
    codes[points] = np.arange(len(points))
    cells = height * (width + 1) - 1

    def looked_up(texts: Any) -> Grids:
        characters = np.array([text + " " for text in texts], f"U{cells + 1}").view(np.uint32)
        return codes[characters.reshape(len(texts), height, width + 1)[:, :, :width]]

    return looked_up
