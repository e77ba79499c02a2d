"""The grammar of a reply: ``<think> … </think><answer> Up || Left </answer>``, and its one typed result.

A reply may be asked to hold, inside its thinking, the state as it sees it, ``<observation> … </observation>``, and the
state that it expects after its moves, ``<prediction> … </prediction>`` (grounding and world modelling of VAGEN, arXiv
2510.16907).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

__all__ = ["SEPARATOR", "Problem", "Reply", "parse_reply", "write_reply"]

SEPARATOR = "||"

_REMEMBERED = 4096  # characters of the longest reply whose reading is kept

_ANSWER = re.compile(r"\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL)
_THINK_ANSWER = re.compile(r"\s*<think>(?P<think>.*?)</think>" + _ANSWER.pattern, re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")
_PARTS = {part: re.compile(f"<{part}>(.*?)</{part}>", re.DOTALL) for part in ("observation", "prediction")}


class Problem(StrEnum):
    """What is wrong with a reply."""

    NO_ANSWER = "no_answer"
    """It is not of the form that was asked for: a tag is missing, or there is text outside the tags."""
    SEVERAL_ANSWERS = "several_answers"
    """A tag occurs more than once, so that it is not clear which answer is meant."""
    NO_STATE = "no_state"
    """The thinking lacks the observation or the prediction that was asked for, or holds several."""
    NO_ACTION = "no_action"
    """The answer is empty."""
    UNKNOWN_ACTION = "unknown_action"
    """The answer names something that is not an action."""


@dataclass(frozen=True)
class Reply:
    """What a reply says.

    Attributes:
        text: the reply as it came.
        thinking: the text between the thinking tags, or None.
        names: what the answer names, split on ``||`` and trimmed.
        actions: ids of the known actions among the names, in order; empty where the reply is malformed.
        problem: what is wrong, or None.
        observation, prediction: the parts of the thinking that were asked for, without their tags, or None.
    """

    text: str
    thinking: str | None = None
    names: tuple[str, ...] = ()
    actions: tuple[int, ...] = ()
    problem: Problem | None = None
    observation: str | None = None
    prediction: str | None = None


def parse_reply(text: str, action_names: Sequence[str], *, think: bool = True, parts: Sequence[str] = ()) -> Reply:
    """Read a reply; never raises, and never guesses which of several answers is meant.

    Args:
        text: the reply.
        action_names: the names of the actions by id; case and surrounding space do not matter.
        think: whether the reply must think first; if not, it must be an answer alone.
        parts: what the thinking must hold, of "observation" and "prediction"; each once, wherever it stands.
    """
    parse = _parse if len(text) <= _REMEMBERED else _parse.__wrapped__
    return parse(text, tuple(action_names), think, tuple(parts))


def write_reply(names: Sequence[str], thought: str | None = None) -> str:
    """A reply that names these actions, with a thought in its tags unless it is None; ``parse_reply`` reads it."""
    thinking = "" if thought is None else f"<think>{thought}</think>"
    return f"{thinking}<answer>{f' {SEPARATOR} '.join(names)}</answer>"


@lru_cache(1024)  # the rollouts of a group often say the same
def _parse(text: str, action_names: tuple[str, ...], think: bool, parts: tuple[str, ...]) -> Reply:
    tags = _TAG.findall(text)
    if len(tags) != len(set(tags)):
        return Reply(text, problem=Problem.SEVERAL_ANSWERS)
    # Only now, with each tag at most once: on many tags this match would take quadratic time.
    match = (_THINK_ANSWER if think else _ANSWER).fullmatch(text)
    if match is None or len(tags) != (4 if think else 2):
        return Reply(text, problem=Problem.NO_ANSWER)
    thinking = match["think"].strip() if think else None
    found = {part: _PARTS[part].findall(thinking or "") for part in parts}
    if any(len(texts) != 1 for texts in found.values()):
        return Reply(text, thinking, problem=Problem.NO_STATE)
    said = {part: texts[0] for part, texts in found.items()}
    names = tuple(name.strip() for name in match["answer"].split(SEPARATOR))
    if not any(names):
        return Reply(text, thinking, problem=Problem.NO_ACTION, **said)
    ids = {name.casefold(): action for action, name in enumerate(action_names)}
    actions = tuple(ids[name.casefold()] for name in names if name.casefold() in ids)
    problem = None if len(actions) == len(names) else Problem.UNKNOWN_ACTION
    return Reply(text, thinking, names, actions, problem, **said)
