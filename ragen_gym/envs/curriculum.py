"""A wrapper that makes the game harder as the player gets better."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium

__all__ = ["Curriculum"]


class Curriculum(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Play one of several environments, chosen at each reset by the successes of the last episodes.

    It starts with the first environment. When ``window`` episodes were played since the last change and at least
    ``up`` of the last ``window`` succeeded, it moves to the next one; when at most ``down`` did, back to the one
    before. An episode that was left by a reset before its end does not count. ``info["stage"]`` is the index of the
    environment in play.

    Args:
        envs: environments from easy to hard, with equal spaces and ``info["success"]`` at each step, such as
            ``[gymnasium.make("ragen/FrozenLake-v0", preset=p) for p in ("easy", "medium", "hard")]``.
        window: number of episodes looked back on, from 1 on.
        up: share of successes, in [0, 1], from which it moves on.
        down: share of successes, below ``up``, at which it moves back; a negative one never moves back.

    Raises:
        ValueError: fewer than two environments, spaces that differ, or shares out of order.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], *, window: int = 64, up: float = 0.7, down: float = 0.2
    ) -> None:
        if len(envs) < 2:
            raise ValueError(f"a curriculum needs two environments or more, from easy to hard; got {len(envs)}.")
        if window < 1 or not down < up <= 1:
            raise ValueError(f"window={window!r} must be at least 1, and down={down!r} below up={up!r}, up at most 1.")
        first = envs[0]
        for stage, env in enumerate(envs):
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise ValueError(
                    f"environment {stage} has other spaces than the first: "
                    f"{env.observation_space}, {env.action_space}; give them boards of one size."
                )
        super().__init__(first)
        self._envs, self._up, self._down = list(envs), up, down
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
