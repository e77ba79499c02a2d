"""Wrappers: other views of the observations, and a curriculum.

| single | batch | observation |
|---|---|---|
| ``OneHotPlanes`` | ``BatchOneHotPlanes`` | uint8 (codes, height, width): a plane for each tile, 1 where it lies |
| ``FlatSymbols`` | ``BatchFlatSymbols`` | float32 (height * width * codes,): the one-hot code of each cell in turn |

They take ``observation="grid"``. A batch's observations have one axis more, and ``final_obs`` is viewed like the rest.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from ragen_gym.core.validation import BatchType, check_number, plain_number


class _View:
    """Common part of the views: ``_view`` of many grids, by the identity matrix of their codes."""

    def _of(self, space: spaces.Space[Any]) -> spaces.Box:
        """The space of the view of a grid of that space."""
        raise NotImplementedError

    def _view(self, grids: Any) -> Any:
        raise NotImplementedError


class _SingleView(_View, gymnasium.ObservationWrapper[Any, Any, Any]):
    """Single environments: the observation as a batch of one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = self._of(env.observation_space)

    def observation(self, observation: Any) -> Any:
        """The view of one observation."""
        return self._view([observation])[0]


class _BatchView(_View, VectorWrapper[Any, Any, Any, Any, Any], metaclass=BatchType):
    """Batches, in every autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = self._of(env.single_observation_space)
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


class _OneHotPlanes(_View):
    def _of(self, space: spaces.Space[Any]) -> spaces.Box:
        codes, height, width = _shape(space)
        self._eye = np.eye(codes, dtype=np.uint8)
        return spaces.Box(0, 1, (codes, height, width), np.uint8)

    def _view(self, grids: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(self._eye[np.asarray(grids)], -1, 1))


class _FlatSymbols(_View):
    def _of(self, space: spaces.Space[Any]) -> spaces.Box:
        codes, height, width = _shape(space)
        self._eye = np.eye(codes, dtype=np.float32)
        return spaces.Box(0, 1, (height * width * codes,), np.float32)

    def _view(self, grids: Any) -> Any:
        return self._eye[np.asarray(grids)].reshape(len(grids), -1)


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


class Curriculum(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Play one of several environments, chosen at each reset by the successes of the last episodes.

    It starts with the first environment. When ``window`` episodes were played since the last change and at least
    ``up`` of the last ``window`` succeeded, it moves to the next one; when at most ``down`` did, back to the one
    before. An episode that was left by a reset before its end does not count. ``info["stage"]`` is the index of the
    environment in play.

    Args:
        envs: environments from easy to hard, with equal spaces and ``info["success"]`` at each step, such as
            ``[gymnasium.make("ragen/FrozenLake-v0", preset=p, split="train") for p in ("easy", "medium", "hard")]``.
        window: number of episodes looked back on, an integer from 1 to ``sys.maxsize``.
        up: share of successes, in [0, 1], from which it moves on.
        down: share of successes, below ``up``, at which it moves back; a negative one never moves back.

    Raises:
        ValueError: fewer than two environments, something that is no environment, spaces that differ, or shares out of
            order.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], *, window: int = 64, up: float = 0.7, down: float = 0.2
    ) -> None:
        stages: list[Any] = list(envs)
        if len(stages) < 2 or not all(isinstance(env, gymnasium.Env) for env in stages):
            raise ValueError(
                "a curriculum is made of two environments or more, from easy to hard, such as "
                f'[ragen_gym.StepEnv("FrozenLake", preset=p) for p in ("easy", "hard")]; got {envs!r}. Of batches '
                "make one for each preset, and go from one to the next in a loop of your own."
            )
        check_number("Curriculum", "window", window := plain_number(window), 1, sys.maxsize, whole=True)
        check_number("Curriculum", "up", up, 0, 1)
        check_number("Curriculum", "down", down)
        if not down < up:
            raise ValueError(f"Curriculum: down={down!r} must be below up={up!r}.")
        first = stages[0]
        for stage, env in enumerate(stages):
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise ValueError(
                    f"environment {stage} has other spaces than the first: "
                    f"{env.observation_space}, {env.action_space}; give them boards of one size."
                )
        super().__init__(first)
        self._envs, self._up, self._down = stages, up, down
        self._successes: deque[bool] = deque(maxlen=window)
        self.stage = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of the stage that recent success calls for; a seed goes to all environments."""
        self._move()
        if seed is not None:
            for env in self._envs:
                env.reset(seed=seed)
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "stage": self.stage}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play one move of the environment in play."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            if "success" not in info:
                raise ValueError(
                    f"{self.env} says nothing of success: a curriculum needs info['success'] at the end of an episode."
                )
            self._successes.append(bool(info["success"]))
        return observation, reward, terminated, truncated, {**info, "stage": self.stage}

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()

    def _move(self) -> None:
        if len(self._successes) < (self._successes.maxlen or 0):
            return
        share = sum(self._successes) / len(self._successes)
        target = self.stage + (share >= self._up) - (share <= self._down)
        if 0 <= target < len(self._envs) and target != self.stage:
            self.stage, self.env = target, self._envs[target]
            self._successes.clear()
