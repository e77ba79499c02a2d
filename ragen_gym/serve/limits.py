"""What a client may ask for: numbers of sessions and environments, sizes, rates, and the knobs that cost the most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragen_gym.serve.errors import refuse

__all__ = [
    "KNOB_LIMITS",
    "LARGEST_NUMBER",
    "LEVEL_LINE",
    "LEVEL_LINES",
    "TURN_LIMITS",
    "Limits",
    "check_board_text",
    "check_knobs",
]

#: The most that each of these knobs may be; the games themselves allow more.
KNOB_LIMITS = {
    "size": 32,
    "height": 32,
    "width": 32,
    "boxes": 16,
    "search_depth": 300,
    "walk_steps": 10_000,
    "pulls": 1_000,
}
#: The most that each of these options of a turn may be.
TURN_LIMITS = {"max_turns": 100, "max_actions_per_turn": 100, "max_actions": 1_000, "max_tokens_per_turn": 2**31 - 1}
#: The bound of every other number.
LARGEST_NUMBER = 1_000_000
#: Characters of a text in a knob.
_TEXT = 100
_NAMES = 100

#: Lines of a board that is given as text, and characters of a line: filling up a ragged board takes their product.
LEVEL_LINES, LEVEL_LINE = 64, 128


@dataclass(frozen=True)
class Limits:
    """What the server allows.

    Attributes:
        max_sessions: open sessions of all clients together.
        max_per_client: open sessions of one client (one address); None is ``max_sessions``.
        max_envs: environments of all batches together.
        max_batch: environments of one batch.
        session_ttl: seconds without a request after which a session is closed.
        rate: requests a second that one client may make on average; 0 is no limit. A client that was quiet may make
            the requests of two seconds at once.
        max_body: bytes of a request's body.
        max_reply: characters of all replies of one episode.
        max_seconds: about the most seconds that the levels of one request may take to generate; a session whose knobs
            make dearer levels is refused.

    Raises:
        ValueError: a number out of range.
    """

    max_sessions: int = 4096
    max_per_client: int | None = None
    max_envs: int = 65_536
    max_batch: int = 1_024
    session_ttl: float = 900.0
    rate: float = 1_000.0
    max_body: int = 2**18
    max_reply: int = 2**18
    max_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_envs", "max_batch", "max_body", "max_reply"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be 1 or more.")
        if self.max_per_client is not None and self.max_per_client < 1:
            raise ValueError(f"max_per_client={self.max_per_client!r} must be 1 or more, or None.")
        for name in ("session_ttl", "max_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a number of seconds above 0.")
        if not 0 <= self.rate < float("inf"):
            raise ValueError(f"rate={self.rate!r} must be a number of requests a second, or 0 for no limit.")


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that are settings of other things, or larger than a server takes.

    Raises:
        Refusal: which knob, and what is allowed.
    """
    for name, value in knobs.items():
        limit = KNOB_LIMITS.get(name, LARGEST_NUMBER)
        if isinstance(value, list):
            _check_names(name, value)
        elif isinstance(value, dict):
            refuse("bad_value", f"knob {name!r} cannot be an object.")
        elif isinstance(value, str) and len(value) > _TEXT:
            refuse("too_large", f"knob {name!r} is a text of {len(value)} characters; this server takes {_TEXT}.")
        elif isinstance(value, int | float) and not abs(value) <= limit:
            refuse("too_large", f"{name}={value} is above {limit}, the most that this server takes.")


def _check_names(name: str, value: list[Any]) -> None:
    for entry in value:
        words = entry if isinstance(entry, list) else [entry]
        if len(value) > _NAMES or len(words) > 2 or not all(isinstance(w, str) and len(w) <= _TEXT for w in words):
            refuse(
                "too_large", f"knob {name!r} must be up to {_NAMES} texts or pairs of up to {_TEXT} characters each."
            )


def check_board_text(text: str) -> None:
    """Refuse the text of a board that has more lines, or longer ones, than any game's."""
    lines = text.split("\n")
    if len(lines) > LEVEL_LINES or max(map(len, lines)) > LEVEL_LINE:
        refuse("too_large", f"a board may have {LEVEL_LINES} lines of {LEVEL_LINE} characters.")
