"""One level as a decision process over whole replies: its states, their prompts, and the transitions between them.

A state is what the next prompt and the rest of the episode depend on when a prompt shows the current turn alone: the
board, the turn, the moves played, and the message. Prompts and replies go through ``TurnEnv`` and the chat format,
moves through the game's rule, with each interval of its transition noise weighted by its probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragen_agent.config import Turns
from ragen_agent.exact.reply_tree import Outcome
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.history import History, Message
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.game import PLAYING, SUCCESS, listed
from ragen_gym.games.values import level_values

QUANTITIES = ("success", "return", "moves")
"""The rows of every array of values: the chance of success, the sum of the rewards to come, the moves to come."""


class State(NamedTuple):
    """The moment before a turn."""

    board: bytes
    integers: tuple[int, ...]
    turn: int
    """Turns taken."""
    played: int
    """Moves played."""
    message: str
    """The user message, with the reward of the last turn in it."""


class Transition(NamedTuple):
    """A result of a reply."""

    chance: float
    reward: float
    """Of the whole turn, the penalty of a malformed reply included."""
    success: bool
    moves: int
    after: State | None
    """The next state; None where the episode is over."""


def check_exact(env: ReplyEnv, turns: Turns) -> None:
    """Raise a ValueError if the value of a policy in this environment cannot be computed, with the reason.

    Args:
        env: the environment.
        turns: the settings of its conversation.
    """
    otherwise = " Estimate the score from episodes instead: ragen-agent eval."
    if not isinstance(env, TurnEnv):
        raise ValueError(
            f"{env.name} is a text task: it has no states that can be restored, and its answers are not a bounded set "
            f"of actions, so its value cannot be computed.{otherwise}"
        )
    if turns.think:
        raise ValueError(
            "turns.think is true: thoughts are too many to be summed over. The value is computed for replies without "
            f"them, turns.think=false.{otherwise}"
        )
    if turns.history:
        raise ValueError(
            f"turns.history is {turns.history}: with earlier turns in the prompt a state is a whole conversation, and "
            f"these are too many. The value is computed for prompts of the current turn alone, turns.history=0."
            f"{otherwise}"
        )
    if turns.summary:
        raise ValueError(
            f"turns.summary is {turns.summary}: a message that retells earlier turns makes a state of a whole "
            f"conversation. The value is computed for turns.summary=0.{otherwise}"
        )
    if env.config.sees:
        raise ValueError(
            f"turns.observation is {env.config.observation!r}: pictures cannot be read along a tree of replies; use "
            f"turns.observation=text.{otherwise}"
        )
    if not env.game.has_values:
        raise ValueError(
            f"{env.game.name} draws its transition noise by numbers that do not stand in its params, so the chances of "
            f"a move are unknown (Game.noise_in_params).{otherwise}"
        )


class ExactLevel:
    """A level that an environment can begin an episode on.

    Args:
        env: the environment; left as it is.
        chat: the chat format of the model.
        turns: the settings of the conversation.
        instance: the level by its seed; the noise seed has no effect, as values are means over all noise.

    Attributes:
        start: the first state.
        level_id: of the level.
        env: an environment on this level, to parse replies with.

    Raises:
        ValueError: see ``check_exact``; a game with too many states to bound what is left out of a tree; a prompt
            that leaves no room for a reply.
    """

    def __init__(self, env: TurnEnv, chat: ChatFormat, turns: Turns, instance: Instance) -> None:
        check_exact(env, turns)
        self.env, self.chat, self.turns, self.instance = env.twin(), chat, turns, instance
        self.process = TokenMDP.from_settings(self.env, chat, turns)
        self.level_id = str(self.process.begin(seed=instance.seed)["level_id"])
        board, integers = self.env.env.state
        self.start = State(board, integers, 0, 0, self.env.message_text)
        game = self.env.game
        self._noise, self._params = game.noise_intervals(), listed(game.params)
        self.values = level_values(game, board, self.env.action_budget, may_stop=True)
        self._worst = self.values.reward_range[0]
        if isnan(self._worst):
            raise ValueError(
                f"level {self.level_id} of {game.name} has more states than can be looked at, so what a reply tree "
                "leaves out cannot be bounded; use smaller levels or fewer moves (turns.max_actions)."
            )

    def prompt(self, state: State) -> list[int]:
        """The token ids before a reply, as ``TokenMDP`` gives them to the model."""
        message = Message(state.message, ())
        return History(self.chat, self.env.instructions, 0, message).prompt().ids

    def room(self, prompt: Sequence[int]) -> int:
        """Tokens that a reply to this prompt may have; 0 or less ends the episode there."""
        return min(self.turns.max_tokens_per_turn, self.turns.max_tokens_per_episode - len(prompt))

    def most_actions(self, state: State) -> int:
        """Actions that are played of a reply."""
        return min(self.env.max_actions_per_turn, self.env.max_actions - state.played)

    def bounds(self, state: State) -> NDArray[np.float64]:
        """Bounds of each of ``QUANTITIES`` under any policy, float64 (quantities, 2): the lowest, the highest."""
        turns = self.env.max_turns - state.turn
        moves = min(self.env.max_actions - state.played, turns * self.env.max_actions_per_turn)
        best, penalty = self.values.value(state.board, state.integers, moves), self.env.config.format_penalty
        lowest = moves * min(0.0, self._worst) + turns * min(0.0, penalty)
        return np.array([[0.0, best.success], [lowest, best.total + turns * max(0.0, penalty)], [0.0, moves]])

    def transitions(self, state: State, outcome: Outcome) -> list[Transition]:
        """The results of a reply with this outcome; their chances add up to 1."""
        rule, found = self.env.game.rule, dict[tuple[float, bool, int, State | None], float]()
        here = {(state.board, state.integers, 0.0): 1.0}
        penalty = self.env.config.format_penalty if outcome.malformed else 0.0

        def add(chance: float, earned: float, success: bool, moves: int, after: State | None) -> None:
            key = earned + penalty, success, moves, after
            found[key] = found.get(key, 0.0) + chance

        for moves, action in enumerate(outcome.actions, 1):
            there: dict[tuple[bytes, tuple[int, ...], float], float] = {}
            for (board, integers, earned), weight in here.items():
                for chance, u in self._noise:
                    cells, numbers = bytearray(board), list(integers)
                    reward, result = rule(cells, numbers, action, u, self._params)
                    if result != PLAYING:
                        add(weight * chance, earned + reward, result == SUCCESS, moves, None)
                        continue
                    key = bytes(cells), tuple(numbers), earned + reward
                    there[key] = there.get(key, 0.0) + weight * chance
            here = there
        played, moves = state.played + len(outcome.actions), len(outcome.actions)
        for (board, integers, earned), weight in here.items():
            add(weight, earned, False, moves, self._next(board, integers, state.turn + 1, played, earned, penalty))
        return [Transition(chance, *key) for key, chance in found.items()]

    def _next(
        self, board: bytes, integers: tuple[int, ...], turn: int, played: int, earned: float, penalty: float
    ) -> State | None:
        """The state after a turn with which the game is not over; None where the budgets or the prompt end it."""
        if turn == self.env.max_turns or played == self.env.max_actions:
            return None
        said = self.env.stand_at(board, integers, turn=turn, played=played, earned=earned, total=earned + penalty)
        state = State(board, integers, turn, played, said)
        return state if self.room(self.prompt(state)) > 0 else None
