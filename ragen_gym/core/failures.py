"""Reasons why an episode did not finish: one vocabulary for environments, engines and agents.

A malformed reply is not a failure but a ``ragen_gym.envs.reply.Problem``.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any


class Failure(StrEnum):
    """The kinds of failure. A record with details is ``"kind: details"``; see ``failure_kind``."""

    MODEL_ERROR = "model_error"
    """The model's server refused, broke or answered nonsense, after all retries."""
    TIMEOUT = "timeout"
    """A request or the episode took too long."""
    AGENT_ERROR = "agent_error"
    """The agent's own code raised, or its program ended."""
    ENVIRONMENT_ERROR = "environment_error"
    """The game raised."""
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    """The game took too long to answer."""
    ENGINE_ERROR = "engine_error"
    """The generation engine raised."""
    ENGINE_NAN = "engine_nan"
    """The generation engine returned log-probs that are not finite."""
    GENERATION_TIMEOUT = "generation_timeout"
    """The generation engine took too long to answer."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context: the model's own limit, so it counts as not solved."""


INFRASTRUCTURE = frozenset(Failure) - {Failure.CONTEXT_OVERFLOW}
"""Failures not caused by the agent: excluded from score and loss, shown beside the score, replayed on resume."""


def failure_from(kind: Any) -> Failure:
    """The failure of this name, or ``Failure.AGENT_ERROR`` for any other value that an agent gives."""
    return Failure(kind) if isinstance(kind, str) and kind in set(Failure) else Failure.AGENT_ERROR


def failure_kind(failure: str) -> Failure:
    """The kind of a recorded failure such as ``"engine_error: out of memory"``.

    Raises:
        ValueError: the text before the colon is not a kind of failure.
    """
    return Failure(failure.partition(":")[0])


def memory_was_full(said: str) -> bool:
    """True if an error's text says that torch got no memory, of a GPU or of the processor.

    Not by the word "memory" alone, which stands in errors of programming too ("an illegal memory access").
    """
    return re.search(r"out of memory|not enough memory|can't allocate memory", said) is not None


def describe_error(error: BaseException) -> str:
    """An exception in one line, with the place where it was raised (a syntax error's text already names it)."""
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(shown_safely(error, str).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def shown_safely(value: Any, how: Callable[[Any], str] = repr) -> str:
    """``str`` or ``repr`` of an agent's object, even if that raises."""
    try:
        return str.__str__(how(value))
    except Exception as error:
        return f"<{type(value).__name__} whose text raises {type(error).__name__}>"
