"""Agents that need no model: random, blind, optimal and greedy moves, and a person in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen_gym.bench.agent import Message, StopRun, Task
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.core.seeding import mix
from ragen_gym.core.threads import in_thread
from ragen_gym.core.validation import check_number
from ragen_gym.envs.policies import Draw, blind_policy, greedy_policy, hashed_draw, oracle_policy, random_policy
from ragen_gym.envs.reply import SEPARATOR

__all__ = ["BlindAgent", "GreedyAgent", "HumanAgent", "OracleAgent", "RandomAgent"]

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

    def task_reply(self, messages: Sequence[Message], task: Task) -> str:
        """A reply of a text task, drawn by the agent's seed, the episode's and the turn."""
        reply: str = task.env.random_reply(np.random.default_rng([self._seed, task.seed, task.env.turn]))
        return reply


class GreedyAgent(RandomAgent):
    """The move with the highest expected reward at once; among several, one that changes the state, drawn uniformly.

    It knows the rules and the probabilities of the transition noise, and looks one move ahead.

    Args:
        seed: another one breaks ties in another way.
    """

    name = "greedy"
    _policy = staticmethod(greedy_policy)
    _offset = 1
    task_reply = None  # type: ignore[assignment]  # a text task has no moves to look ahead


_QUIT = ("q", "quit")


class HumanAgent:
    """Asks for each move by name or by number; several, with ``||`` between them, are played one after the other."""

    name = "human"
    concurrency = 1
    at_terminal = True

    def __init__(self) -> None:
        self._planned: list[int] = []

    def begin(self, task: Task) -> None:
        """Show where the person is."""
        self._planned = []
        rules, _, _ = task.env.instructions.rpartition("\n")  # the last line counts turns, which a person has none of
        self._say(f"\n== {task.split}, level {task.index + 1} ==\n{rules}")

    def end(self, task: Task, record: EpisodeRecord) -> None:
        """Show how the level ended."""
        self._say(f"\n{record.last_board}\n{'Success!' if record.success else 'Not solved.'}")

    async def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        """The next move; asks until it understands one.

        Raises:
            StopRun: the person quits, or the input ends.
        """
        if not self._planned:
            names: tuple[str, ...] = info["action_names"]
            menu = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
            left = info["actions_left"]
            self._say(f"\n{task.env.board}\n{left} move{'s' * (left > 1)} left: {menu}; q quits")
            while not self._planned:
                self._planned = self._read(await in_thread(sys.stdin.readline), names)
        return self._planned.pop(0)

    def _read(self, line: str, names: tuple[str, ...]) -> list[int]:
        words = [word.strip().casefold() for word in line.split(SEPARATOR)]
        if not line or words[0] in _QUIT:
            raise StopRun("the player has left")
        known = {name.casefold(): action for action, name in enumerate(names)}
        known |= {str(action + 1): action for action in range(len(names))}
        if unknown := [word for word in words if word not in known]:
            self._say(f"{unknown[0]!r} is not a move: {', '.join(names)}")
            return []
        return [known[word] for word in words]

    def _say(self, text: str) -> None:
        print(text, flush=True)
