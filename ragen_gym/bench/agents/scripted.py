"""Agents that need no model: random moves, optimal moves, and the move with the highest expected reward."""

from __future__ import annotations

from typing import Any

from ragen_gym.bench.agent import Task
from ragen_gym.core.seeding import mix
from ragen_gym.core.validation import check_number
from ragen_gym.envs.policies import Draw, greedy_policy, hashed_draw, oracle_policy, random_policy

__all__ = ["GreedyAgent", "OracleAgent", "RandomAgent"]

_WORD = 0xFFFFFFFFFFFFFFFF


class OracleAgent:
    """Optimal play: the highest chance of success within the moves that are left. It looks into the environment."""

    name = "oracle"

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """A best action."""
        return oracle_policy(task.env.env, info["actions_left"])


class RandomAgent:
    """Every move is drawn uniformly from all actions.

    Args:
        seed: another one gives other moves on the same levels.
    """

    name = "random"
    _policy = staticmethod(random_policy)
    _offset = 0  # agents with one seed draw independently

    def __init__(self, seed: int = 0) -> None:
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"seed": seed}
        self._seed = mix((seed + self._offset) & _WORD)

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """An action, drawn by the agent's seed, the episode's and the actions left."""
        draw: Draw = hashed_draw(mix((self._seed + task.seed) & _WORD))
        return self._policy(draw)(task.env.env, info["actions_left"])


class GreedyAgent(RandomAgent):
    """The move with the highest expected reward at once; among several, one that changes the state, drawn uniformly.

    It knows the rules and the probabilities of the transition noise, and looks one move ahead.

    Args:
        seed: another one breaks ties in another way.
    """

    name = "greedy"
    _policy = staticmethod(greedy_policy)
    _offset = 1
