"""Common base of games and text tasks at the grain of turns: an action is a model's whole reply."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from ragen_gym.core.text import replace_surrogates
from ragen_gym.core.turn_config import TurnConfig


class ReplyEnv(gymnasium.Env[Any, str]):
    """An environment whose actions are replies and whose observations are messages.

    A ``TurnEnv`` plays a game so, a ``TaskEnv`` a text task. Training, evaluation and the benchmark ask no more than
    this of what they play; what needs boards and moves asks for a ``TurnEnv``. ``info`` always holds ``messages``,
    ``reply``, ``actions``, ``rewards``, ``success``, ``level_id`` and ``turn``, as ``TurnEnv`` describes them.
    """

    #: The options of a turn.
    config: TurnConfig
    #: The system message.
    instructions: str
    #: The newest user message as one text, ``<image>`` where its picture stands.
    message_text: str = ""
    #: The most turns of an episode.
    max_turns: int
    #: Texts that make a reply malformed wherever they stand in it, in capitals or not: a tokenizer's special tokens.
    forbidden_texts: tuple[str, ...] = ()
    #: Whether it can draw a reply at random, and knows a best one (a text task may lack either); and ``risky_returns``.
    has_random_replies: bool = True
    has_oracle: bool = True
    risky_returns: bool = False
    #: Whether it is a game with a blind script (``ragen_gym.games.game.Game.blind``).
    has_blind: bool = False
    _turn: int = 0
    _over: bool = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the game or the task."""

    @property
    def missing_rates(self) -> str:
        """A sentence on which of the random and the optimal rate a task cannot tell, or the empty text."""
        needs = {
            "random": ("random_reply(rng)", self.has_random_replies),
            "optimal": ("optimal_reply()", self.has_oracle),
        }
        lacks = {rate: method for rate, (method, known) in needs.items() if not known}
        needed = " and ".join(lacks.values())
        return f"No rate of {' and '.join(lacks)} replies: the task {self.name} has no {needed}." if lacks else ""

    @property
    def turn(self) -> int:
        """Turns taken."""
        return self._turn

    @property
    def over(self) -> bool:
        """True if the episode has ended, or none was started."""
        return self._over

    @property
    def images(self) -> tuple[Any, ...]:
        """The pictures of the conversation so far."""
        return ()

    def spells_forbidden(self, text: str) -> bool:
        """True if one of ``forbidden_texts`` stands in a text."""
        if not self.forbidden_texts:
            return False
        plain = text.casefold()
        return any(forbidden.casefold() in plain for forbidden in self.forbidden_texts)

    def _checked_reply(self, action: str) -> str:
        """The reply that ``step`` was given, as it is read; an error where none is taken, or it is no text."""
        if self._over:
            raise ResetNeeded("the episode is over, or none was started: call reset() before step().")
        return text_of_action(action)

    @abstractmethod
    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a reply."""

    @abstractmethod
    def level_families(self, seeds: Iterable[int]) -> list[int]:
        """Hash of the problem that ``reset(seed=…)`` begins with, for each seed; problems of one hash are one problem.

        The episode in play goes on as if nothing had been asked.
        """


def text_of_action(action: Any) -> str:
    """A turn's action as it is read, without lone surrogates; raises a ValueError where it is no text."""
    if not isinstance(action, str):
        raise ValueError(f"a turn's action is the reply's text, not {type(action).__name__}: {action!r}.")
    return replace_surrogates(action)
