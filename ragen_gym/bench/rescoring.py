"""Other ways to read and to pay recorded replies: a kinder parser, anybody's parser, another reward."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragen_gym.bench.agents.python import find
from ragen_gym.bench.replay import Parser, Reading, TurnReward
from ragen_gym.bench.suite import Split
from ragen_gym.envs.reply import Problem, Reply
from ragen_gym.games.game import check_number

__all__ = ["Rescoring", "lenient_reply"]

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)(?:</answer>|\Z)", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")


def lenient_reply(text: str, action_names: Sequence[str]) -> Reply:
    """Read a reply as kindly as can be: every name of an action, in order, wherever it stands in the answer.

    The answer is the text of the last ``<answer>``, closed or not; without one it is the last line that is not empty.
    Thoughts are left out, case and all other words do not matter, and the only problem is to name no action.
    """
    thoughts = "\n".join(_TAG.sub("", thought) for thought in _THOUGHT.findall(text)).strip()
    said = _THOUGHT.sub("", text)
    answers: list[str] = _ANSWER.findall(said)
    lines = [line for line in _TAG.sub("", said).splitlines() if line.strip()]
    answer = answers[-1] if answers else lines[-1] if lines else ""
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    longest_first = sorted(map(re.escape, action_names), key=len, reverse=True)
    names = tuple(re.findall(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", answer, re.IGNORECASE))
    actions = tuple(ids[name.casefold()] for name in names)
    problem = None if actions else Problem.NO_ACTION if answers else Problem.NO_ANSWER
    return Reply(text, thoughts or None, names, actions, problem)


@dataclass(frozen=True)
class Rescoring:
    """What is to be changed of how replies are read and paid. None is the suite's own.

    Attributes:
        parser: None, ``"lenient"`` (see `lenient_reply`), or ``"module:callable"``, a `Parser`.
        think: whether a reply must think before it answers; of the suite's own parser alone.
        format_penalty: added to the reward of a turn whose reply has a problem.
        reward: None, or ``"module:callable"``, a `TurnReward`.

    Raises:
        ValueError: two of them contradict each other, or a module or its callable cannot be found.
    """

    parser: str | None = None
    think: bool | None = None
    format_penalty: float | None = None
    reward: str | None = None

    def __post_init__(self) -> None:
        if self.parser is not None and self.think is not None:
            raise ValueError(f"parser={self.parser!r} reads thoughts in its own way: leave out think={self.think!r}.")
        if self.reward is not None and self.format_penalty is not None:
            raise ValueError(f"reward={self.reward!r} pays in its own way: leave out format_penalty.")
        if self.format_penalty is not None:
            check_number("rescore", "format_penalty", self.format_penalty)
        for name in (self.parser, self.reward):
            if name not in (None, "lenient"):
                _load(str(name))

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Rescoring:
        """What a run's ``run.json`` says that it was rescored by; nothing for a run as it was played."""
        return cls(**info.get("settings", {}).get("rescored", {}).get("by", {}))

    @property
    def changes_nothing(self) -> bool:
        """Whether all is the suite's own."""
        return self == Rescoring()

    def reading(self, split: Split) -> Reading:
        """How replies of a split are read and paid."""
        budgets = split.budgets
        own = Reading.of(replace(split, budgets=replace(budgets, **self._budgets())))
        parser: Parser = own.parser
        if self.parser is not None:
            parser = lenient_reply if self.parser == "lenient" else _load(self.parser)
        reward: TurnReward = own.reward if self.reward is None else _load(self.reward)
        return Reading(_checked(parser), reward)

    def _budgets(self) -> dict[str, Any]:
        changed = {"think": self.think, "format_penalty": self.format_penalty}
        return {name: value for name, value in changed.items() if value is not None}


def _checked(parser: Parser) -> Parser:
    """The parser; a ValueError if it returns something else than a reply."""

    def parse(text: str, names: Sequence[str]) -> Reply:
        reply = parser(text, names)
        if not isinstance(reply, Reply):
            raise ValueError(f"the parser must return a ragen_gym.envs.reply.Reply, not {reply!r}.")
        return reply

    return parse


def _load(name: str) -> Any:
    """The callable of ``"module:callable"``."""
    found = find(name)
    if not callable(found):
        raise ValueError(f"{name!r} is not a function but {found!r}.")
    return found
