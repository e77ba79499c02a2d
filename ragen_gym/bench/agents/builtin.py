"""Agents that need no model: random, blind and optimal moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen_gym.bench.agent import Message, Task
from ragen_gym.core.seeding import mix
from ragen_gym.core.validation import check_number
from ragen_gym.envs.policies import blind_policy, hashed_draw, oracle_policy, random_policy

__all__ = ["BlindAgent", "OracleAgent", "RandomAgent"]

_WORD = 0xFFFFFFFFFFFFFFFF


class OracleAgent:
    """Optimal play: the highest chance of success within the moves that are left. It looks into the environment."""

    name = "oracle"
    task_needs = "has_oracle"  # of a ``TaskEnv``

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """A best action."""
        return oracle_policy(task.env.env, info["actions_left"])

    def task_reply(self, messages: Sequence[Message], task: Task) -> str:
        """A best reply of a text task."""
        reply: str = task.env.optimal_reply()
        return reply


class BlindAgent:
    """The game's blind script (``ragen_gym.games.game.Game.blind``), asked anew before each move."""

    name = "blind"
    game_needs = "has_blind"  # of a ``TurnEnv``

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The script's move.

        Raises:
            ValueError: the game has no such script.
        """
        return blind_policy(task.env.env, info["actions_left"])


class RandomAgent:
    """Every move is drawn uniformly from all actions.

    Args:
        seed: another one gives other moves on the same levels.
    """

    name = "random"
    task_needs = "has_random_replies"  # of a ``TaskEnv``

    def __init__(self, seed: int = 0) -> None:
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"seed": seed}
        self._seed = mix(seed & _WORD)

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """An action, drawn by the agent's seed, the episode's and the actions left."""
        draw = hashed_draw(mix((self._seed + task.seed) & _WORD))
        return random_policy(draw)(task.env.env, info["actions_left"])

    def task_reply(self, messages: Sequence[Message], task: Task) -> str:
        """A reply of a text task, drawn by the agent's seed, the episode's and the turn."""
        reply: str = task.env.random_reply(np.random.default_rng([self._seed, task.seed, task.env.turn]))
        return reply
