"""The grammar of a model's reply.

A reply may be asked to hold, inside its thinking, the state as it sees it, ``<observation> … </observation>``, and the
state that it expects after its moves, ``<prediction> … </prediction>`` (grounding and world modelling of VAGEN, arXiv
2510.16907). It may be asked to state a budget, ``<budget>[low, high]</budget>`` or ``<budget>impossible</budget>``,
between its thinking and its answer; see ``ragen_gym.envs.budget``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.budget import Budget, read_budget, written

SEPARATOR = "||"

_REMEMBERED = 4096  # characters of the longest reply whose reading is kept

_PARTS = r"\s*<think>(?P<think>.*?)</think>", r"\s*<budget>(?P<budget>.*?)</budget>"
#: By whether a reply thinks, and whether it states a budget.
_FORMS = {
    (think, budget): re.compile(
        _PARTS[0] * think + _PARTS[1] * budget + r"\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL
    )
    for think in (False, True)
    for budget in (False, True)
}
_TAG = re.compile(r"<(/?(?:think|answer))>")
_THINK, _END_THINK = "<think>", "</think>"


class Problem(StrEnum):
    """Fault of a reply."""

    NO_ANSWER = "no_answer"
    """It is not of the form that was asked for: a tag is missing, or there is text outside the tags."""
    SEVERAL_ANSWERS = "several_answers"
    """A tag occurs more than once, so that it is not clear which answer is meant."""
    NO_STATE = "no_state"
    """The thinking lacks the observation or the prediction that was asked for, or holds several."""
    NO_BUDGET = "no_budget"
    """The text in the budget's tags is neither an interval such as ``[2, 4]`` nor ``impossible``."""
    NO_ACTION = "no_action"
    """The answer is empty."""
    UNKNOWN_ACTION = "unknown_action"
    """The answer names something that is not an action."""
    FORBIDDEN_TEXT = "forbidden_text"
    """It holds a text that no reply may hold, such as the spelling of a special token (``TurnEnv.forbidden_texts``)."""


_PROBLEMS = {
    Problem.NO_ANSWER: "Malformed: not of the form that was asked for",
    Problem.SEVERAL_ANSWERS: "Malformed: a tag occurs more than once",
    Problem.NO_STATE: "Malformed: the thinking lacks the observation or the prediction that was asked for",
    Problem.NO_BUDGET: "Malformed: the budget is neither an interval such as [2, 4] nor impossible",
    Problem.NO_ACTION: "Malformed: the answer is empty",
    Problem.UNKNOWN_ACTION: "Names an unknown action",
    Problem.FORBIDDEN_TEXT: "Malformed: holds a text that no reply may hold",
}


def explain_problem(problem: Problem) -> str:
    """A problem in words."""
    return _PROBLEMS[problem]


@dataclass(frozen=True)
class Reply:
    """Content of a reply.

    Attributes:
        text: the reply as it came.
        thinking: the text between the thinking tags, or None.
        names: what the answer names, split on ``||`` and trimmed.
        actions: ids of the known actions among the names, in order; empty where the reply is malformed.
        problem: what is wrong, or None.
        observation, prediction: the parts of the thinking that were asked for, without their tags, or None.
        budget: the fewest and the most actions that it states to need, ``budget.IMPOSSIBLE``, or None.
    """

    text: str
    thinking: str | None = None
    names: tuple[str, ...] = ()
    actions: tuple[int, ...] = ()
    problem: Problem | None = None
    observation: str | None = None
    prediction: str | None = None
    budget: Budget | None = None


def parse_reply(
    text: str, action_names: Sequence[str], *, think: bool = True, parts: Sequence[str] = (), budget: bool = False
) -> Reply:
    """Read a reply; never raises, and never guesses which of several answers is meant.

    Args:
        text: the reply.
        action_names: the names of the actions by id; case and surrounding space do not matter.
        think: whether the reply must think first; if not, it must be an answer alone.
        parts: what the thinking must hold, of "observation" and "prediction"; each once, wherever it stands.
        budget: whether the reply must state one before its answer.
    """
    parse = _parse if len(text) <= _REMEMBERED else _parse.__wrapped__
    return parse(text, tuple(action_names), think, tuple(parts), budget)


def parse(text: str, action_names: Sequence[str], config: TurnConfig) -> Reply:
    """``parse_reply`` with the options of a turn."""
    return parse_reply(text, action_names, think=config.think, parts=config.state_parts, budget=config.budget)


def reply_form(think: bool, budget: bool = False) -> re.Pattern[str]:
    """The pattern that the whole of a well-formed reply matches, whatever its answer names; see ``parse_reply``."""
    return _FORMS[think, budget]


def write_reply(names: Sequence[str], thought: str | None = None, budget: Budget | None = None) -> str:
    """A reply that names these actions, with a thought and a budget in their tags unless they are None.

    ``parse_reply`` reads it.
    """
    thinking = "" if thought is None else f"<think>{thought}</think>"
    stated = "" if budget is None else f"<budget>{written(budget)}</budget>"
    return f"{thinking}{stated}<answer>{f' {SEPARATOR} '.join(names)}</answer>"


def open_thinking(prompt: str, last_message: str = "") -> str:
    """The end of a rendered prompt from a ``<think>`` on that is not closed; the empty text without one.

    Args:
        prompt: the prompt, or its end.
        last_message: its last message, whose own tags do not count.
    """
    message = last_message.strip()
    opening = prompt.rpartition(message)[2] if message else prompt
    begun = opening.rfind(_THINK)
    return opening[begun:] if begun > opening.rfind(_END_THINK) else ""


def whole_reply(text: str, reasoning: str | None = None, *, begun: str | None = None, think: bool = True) -> str:
    """A reply with the thinking that a model's output lacks: begun by its prompt, or kept apart by its server.

    Args:
        text: the output.
        reasoning: what a server returned apart from the output as its reasoning: the thinking of an output without
            ``<think>``. Tags that it quotes lose their brackets, since it is clear which answer is meant.
        begun: the end of the prompt that the output completes, see ``open_thinking``; left out before an output that
            writes ``<think>`` again, as models do that are asked for it. None where the prompt is not known, as behind
            a server: then an output with one ``</think>`` and no ``<think>`` completes an open ``<think>``.
        think: whether replies are to think. If not, nothing is added to an output whose prompt is not known.
    """
    if begun is not None:
        return text if text.lstrip().startswith(_THINK) else begun + text
    if not think or _THINK in text:
        return text
    closed = text.count(_END_THINK) == 1
    if reasoning:
        plain = _TAG.sub(r"\1", reasoning)
        return f"{_THINK}{plain}{'' if closed else _END_THINK}{text}"
    return f"{_THINK}{text}" if closed else text


@lru_cache(1024)  # the rollouts of a group often say the same
def _parse(text: str, action_names: tuple[str, ...], think: bool, parts: tuple[str, ...], budget: bool) -> Reply:
    tags = _TAG.findall(text)
    if len(tags) != len(set(tags)):
        return Reply(text, problem=Problem.SEVERAL_ANSWERS)
    # Only now, with each tag at most once: on many tags this match would take quadratic time.
    match = reply_form(think, budget).fullmatch(text)
    if match is None or len(tags) != (4 if think else 2):
        return Reply(text, problem=Problem.NO_ANSWER)
    thinking = match["think"].strip() if think else None
    found = {part: _between(thinking or "", f"<{part}>", f"</{part}>") for part in parts}
    if any(len(texts) != 1 for texts in found.values()):
        return Reply(text, thinking, problem=Problem.NO_STATE)
    said: dict[str, Any] = {part: texts[0] for part, texts in found.items()}
    if budget:
        said["budget"] = read_budget(match["budget"])
        if said["budget"] is None:
            return Reply(text, thinking, problem=Problem.NO_BUDGET, **said)
    names = tuple(name.strip() for name in match["answer"].split(SEPARATOR))
    if not any(names):
        return Reply(text, thinking, problem=Problem.NO_ACTION, **said)
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    actions = tuple(ids[name.casefold()] for name in names if name.casefold() in ids)
    problem = None if len(actions) == len(names) else Problem.UNKNOWN_ACTION
    return Reply(text, thinking, names, actions, problem, **said)


def _between(text: str, opening: str, closing: str) -> list[str]:
    """The texts between the tags, from left to right; ``re.findall`` would take quadratic time on many openings."""
    found, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        found.append(text[start + len(opening) : end])
        at = end + len(closing)
    return found
