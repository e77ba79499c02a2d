"""Agents that need no model: random, blind and optimal moves, alone or with a stated budget in each reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragen_gym.bench.agent import Message, Task
from ragen_gym.core.seeding import mix
from ragen_gym.core.validation import check_number, shown
from ragen_gym.envs.budget import IMPOSSIBLE, Budget, honest_budget
from ragen_gym.envs.policies import (
    POLICIES,
    Draw,
    blind_policy,
    hashed_draw,
    moves_to_go,
    oracle_policy,
    random_policy,
    reply_for,
)
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv


class OracleAgent:
    """Optimal play: the highest chance of success within the moves that are left. It looks into the environment."""

    name = "oracle"

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """A best action."""
        return oracle_policy(task.env.env, info["actions_left"])

    def task_reply(self, messages: Sequence[Message], task: Task) -> str:
        """A best reply of a text task."""
        reply: str = task.env.optimal_reply()
        return reply

    def refuses(self, env: ReplyEnv) -> str:
        """The reason why it cannot play this, or ""."""
        return "" if env.has_oracle else env.missing_rates


class BlindAgent:
    """The game's blind script (``ragen_gym.games.game.Game.blind``), asked anew before each move."""

    name = "blind"

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The script's move."""
        return blind_policy(task.env.env, info["actions_left"])

    def refuses(self, env: ReplyEnv) -> str:
        """See ``OracleAgent``."""
        return "The game has no blind script." if isinstance(env, TurnEnv) and not env.has_blind else ""


class RandomAgent:
    """Every move is drawn uniformly from all actions.

    Args:
        seed: another one gives other moves on the same levels.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"seed": seed}
        self._seed = seed

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """An action, drawn by the agent's seed, the episode's and the actions left."""
        return random_policy(_draw(self._seed, task))(task.env.env, info["actions_left"])

    def task_reply(self, messages: Sequence[Message], task: Task) -> str:
        """A reply of a text task, drawn by the agent's seed, the episode's and the turn."""
        rng = np.random.default_rng([_mixed(self._seed), task.seed, task.env.turn])
        reply: str = task.env.random_reply(rng)
        return reply

    def refuses(self, env: ReplyEnv) -> str:
        """See ``OracleAgent``."""
        return "" if env.has_random_replies else env.missing_rates


#: Budgets that are stated, by name: a function of the environment and of the policy's name.
_STATEMENTS: dict[str, Callable[[TurnEnv, str], Budget]] = {
    "own": lambda env, policy: honest_budget(moves_to_go(env.env, env.actions_left, policy)),
    "wide": lambda env, policy: (1, 20),
    "possible": lambda env, policy: (1, env.actions_left),
    "impossible": lambda env, policy: IMPOSSIBLE,
}


class BudgetAgent:
    """One move a reply, and a budget if the split asks for one. It looks into the environment.

    Such agents are the scale on which stated budgets are read.

    Args:
        policy: ``"random"``, ``"blind"`` or ``"oracle"``.
        states: its budgets: ``"own"``, the exact quantiles of its own play; or whatever the board, ``"wide"`` [1, 20],
            ``"possible"`` [1, actions left], ``"impossible"``.
        seed: another one gives other random moves.

    Raises:
        ValueError: an unknown policy or statement.
    """

    def __init__(self, policy: str, *, states: str = "own", seed: int = 0) -> None:
        known = ("random", "blind", "oracle")
        if policy not in known:
            raise ValueError(f"budget:{policy} has no such policy: choose one of {', '.join(known)}.")
        if states not in _STATEMENTS:
            raise ValueError(f"budget:{policy}: states={shown(states)} must be one of {', '.join(_STATEMENTS)}.")
        self.name = f"budget:{policy}"
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"states": states, "seed": seed}
        self._policy, self._states, self._seed = policy, _STATEMENTS[states], seed

    def refuses(self, env: ReplyEnv) -> str:
        """See ``OracleAgent``."""
        if not isinstance(env, TurnEnv) or env.max_actions_per_turn != 1:
            return f"{self.name} plays games of one action a turn: use --suite budget-v1, or a split like it."
        return "The game has no blind script." if self._policy == "blind" and not env.has_blind else ""

    async def reply(self, messages: Sequence[Message], task: Task) -> str:
        """The next move and the budget."""
        env = task.env
        choose = POLICIES[self._policy](_draw(self._seed, task))
        stated = self._states(env, self._policy) if env.config.budget else None
        return reply_for(env, [choose(env.env, env.actions_left)], budget=stated)


def _mixed(seed: int) -> int:
    return mix(seed & 0xFFFFFFFFFFFFFFFF)


def _draw(seed: int, task: Task) -> Draw:
    return hashed_draw(_mixed(_mixed(seed) + task.seed))
