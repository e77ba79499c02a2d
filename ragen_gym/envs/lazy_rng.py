"""``np_random`` made only when somebody reads it: the games draw from ``ragen_gym.core.seeding``, so few do."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.utils import seeding

__all__ = ["InnerGenerator", "LazyGenerator"]


class LazyGenerator:
    """For an environment that is seeded often: making numpy's generator takes longer than a move."""

    _generator: np.random.Generator | None = None
    _np_random_seed: int | None = None

    def _seed_generator(self, seed: int) -> None:
        self._generator, self._np_random_seed = None, seed

    @property
    def _np_random(self) -> np.random.Generator | None:
        if self._generator is None and self._np_random_seed not in (None, -1):  # -1: it was set, not seeded
            self._generator, _ = seeding.np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator) -> None:
        self._generator = generator


class _Outer(Protocol):
    @property
    def env(self) -> gymnasium.Env[Any, Any]: ...


class InnerGenerator:
    """For an environment around another, ``env``: its generator is the inner one's, as a wrapper's is."""

    @property
    def np_random(self: _Outer) -> np.random.Generator:
        """The inner environment's generator."""
        return self.env.np_random

    @np_random.setter
    def np_random(self: _Outer, generator: np.random.Generator) -> None:
        self.env.np_random = generator

    @property
    def np_random_seed(self: _Outer) -> int:
        """The seed of the inner environment's generator."""
        return self.env.np_random_seed

    @property
    def _np_random(self: _Outer) -> np.random.Generator | None:
        return self.env.np_random

    @_np_random.setter
    def _np_random(self: _Outer, generator: np.random.Generator) -> None:
        self.env.np_random = generator
