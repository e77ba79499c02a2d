"""Agents that need no model: random moves, optimal moves, and the best move for the next reward."""

from __future__ import annotations

from typing import Any

from ragen_gym.bench.agent import Task
from ragen_gym.core.seeding import GOLDEN, mix
from ragen_gym.core.validation import check_number
from ragen_gym.envs.step import StepEnv

__all__ = ["GreedyAgent", "OracleAgent", "RandomAgent"]

_WORD = 0xFFFFFFFFFFFFFFFF
_DRAWS = 60  # points of [0, 1) at which a rule is asked: every multiple of 1/3, 1/4 and 1/5 is met exactly


class RandomAgent:
    """Every move is drawn uniformly from all actions.

    Args:
        seed: another one gives other moves on the same levels.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"seed": seed}
        self._seed = mix(seed & _WORD)

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """An action."""
        return _draw(self._seed, task, info, len(info["action_names"]))


class OracleAgent:
    """Optimal play: the highest chance of success within the moves that are left. It looks into the environment."""

    name = "oracle"

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """A best action."""
        return task.env.env.oracle_action(info["actions_left"])


class GreedyAgent:
    """The move with the highest expected reward at once; among several, one that changes the state, drawn uniformly.

    It knows the rules and the luck's probabilities, and looks one move ahead.

    Args:
        seed: another one breaks ties in another way.
    """

    name = "greedy"

    def __init__(self, seed: int = 0) -> None:
        check_number(self.name, "seed", seed, 0, whole=True)
        self.settings = {"seed": seed}
        self._seed = mix((seed + 1) & _WORD)

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """A best action for the next reward."""
        worth = _next_rewards(task.env.env)
        best = [action for action, reward in enumerate(worth) if reward > max(worth) - 1e-9]
        moving = [action for action in best if info["action_mask"][action]] or best
        return moving[_draw(self._seed, task, info, len(moving))]


def _draw(seed: int, task: Task, info: dict[str, Any], choices: int) -> int:
    """An integer below ``choices``, uniform, decided by the agent's seed, the episode's and the move's number."""
    key = mix((seed + task.seed) & _WORD)
    return (mix((key + info["actions_left"] * GOLDEN) & _WORD) * choices) >> 64


def _next_rewards(env: StepEnv) -> list[float]:
    """The expected reward of each action here."""
    game = env.game
    board, state = env.state
    points = [(i + 0.5) / _DRAWS for i in range(_DRAWS)] if game.stochastic else [0.5]
    return [
        sum(game.rule(bytearray(board), list(state), int(action), u, game.params)[0] for u in points) / len(points)
        for action in game.Action
    ]
