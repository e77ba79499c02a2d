"""What a client may ask for: sessions, environments, sizes, requests a second, and the costliest options of games."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gymnasium.spaces import Dict

from ragen_gym.core.settings import check_settings, setting
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.serve.errors import RequestError

__all__ = [
    "LARGEST_NUMBER",
    "REGRET_ENTRIES",
    "TURN_LIMITS",
    "Limits",
    "check_boards",
    "check_options",
    "session_bytes",
]

#: The most that each of these options of games may be; the games themselves allow more.
OPTION_LIMITS = {
    "size": 32,
    "height": 32,
    "width": 32,
    "boxes": 16,
    "search_depth": 300,
    "walk_steps": 10_000,
    "pulls": 1_000,
}
#: The most that each of these options of a turn may be.
TURN_LIMITS = {
    "max_turns": 100,
    "max_actions_per_turn": 100,
    "max_actions": 1_000,
    "max_tokens_per_turn": 2**31 - 1,
    "image_tile_size": 64,
}
#: Values in the tables of ``regret`` that a session keeps, states x actions x moves: some 25 bytes each.
REGRET_ENTRIES = 2**18
#: The bound of every other number.
LARGEST_NUMBER = 1_000_000
#: Characters of a text in an option.
_TEXT = 100
_NAMES = 100

#: Lines of a board that is given as text, and characters of a line: filling up a ragged board takes their product.
_LEVEL_LINES, _LEVEL_LINE = 64, 128


@dataclass(frozen=True)
class Limits:
    """What the server allows.

    Raises:
        ValueError: a number out of range.
    """

    max_memory: int = setting(
        2**31, "bytes that the open sessions of all clients may come to hold, an upper estimate", low=1, unit="bytes"
    )
    max_memory_per_client: int | None = setting(
        None, "likewise of one client, which is one address; default: half of max_memory", low=1, unit="bytes"
    )
    max_batch: int = setting(1_024, "environments of one batch", low=1)
    session_ttl: float = setting(
        900.0, "seconds without a request after which a session is closed", above=0, unit="seconds"
    )
    rate: float = setting(
        1_000.0, "requests a second of one client (up to two seconds' worth at once); 0 for no limit", low=0
    )
    max_connections: int = setting(10_000, "open connections of all clients together", low=1)
    max_connections_per_client: int | None = setting(
        None, "open connections of one client, which is one address; default: half of max_connections", low=1
    )
    header_timeout: float = setting(
        10.0,
        "seconds in which the header of a request must arrive, from the opening of the connection or its first byte on",
        above=0,
        unit="seconds",
    )
    max_body: int = setting(2**18, "bytes of a request's body", low=1, unit="bytes")
    max_reply: int = setting(2**18, "characters of all replies of an episode", low=1)
    max_seconds: float = setting(
        2.0, "approximate seconds that the levels of one request may take to generate", above=0, unit="seconds"
    )

    def __post_init__(self) -> None:
        check_settings(self)


def check_options(options: Mapping[str, Any]) -> None:
    """Check a game's options: none may be a setting of something else, or larger than the server allows.

    Raises:
        RequestError: which option, and what is allowed.
    """
    for name, value in options.items():
        limit = OPTION_LIMITS.get(name, LARGEST_NUMBER)
        if isinstance(value, list):
            _check_names(name, value)
        elif isinstance(value, dict):
            raise RequestError("bad_value", f"option {name!r} cannot be an object.")
        elif isinstance(value, str) and len(value) > _TEXT:
            raise RequestError(
                "too_large", f"option {name!r} is a text of {len(value)} characters; this server takes {_TEXT}."
            )
        elif isinstance(value, float) and not isfinite(value):
            raise RequestError("bad_value", f"{name}={value} is no finite number: give one up to {limit}.")
        elif isinstance(value, int | float) and value > limit:
            raise RequestError("too_large", f"{name}={value} is above {limit}, the most that this server takes.")
        elif isinstance(value, int | float) and value < -limit:
            raise RequestError("too_large", f"{name}={value} is below -{limit}, the least that this server takes.")


def _check_names(name: str, value: list[Any]) -> None:
    for entry in value:
        words = entry if isinstance(entry, list) else [entry]
        if len(value) > _NAMES or len(words) > 2 or not all(isinstance(w, str) and len(w) <= _TEXT for w in words):
            raise RequestError(
                "too_large", f"option {name!r} must be up to {_NAMES} texts or pairs of up to {_TEXT} characters each."
            )


def session_bytes(env: Any, num_envs: int | None, levels: Sequence[str] | str | None, max_reply: int) -> int:
    """An upper estimate of the bytes that a session comes to hold; measured for every game at its largest."""
    played = env.env if isinstance(env, TurnEnv) else env.unwrapped
    board = max(game.height * game.width for game in played.games)
    texts = [levels] if isinstance(levels, str) else levels or []
    boards = sum(1_024 + 16 * len(text) for text in texts)
    boards += 4 * board * 256 if num_envs is None else (1_024 + 32 * board) * num_envs
    regret = 25 * REGRET_ENTRIES if env.unwrapped._regret is not None else 0
    conversation = 0
    if isinstance(env, TurnEnv):
        pictures = isinstance(env.observation_space, Dict)
        pixels = math.prod(env.observation_space["image"].shape) if pictures else 0  # type: ignore[index]
        conversation = (env.max_turns + 1) * (pixels + 8 * board) + 4 * max_reply
        conversation += 5 * pixels  # of the space: its bounds, and whether there are any; and of the painter
    return 2**16 + boards + regret + conversation


def check_boards(texts: str | list[str] | None) -> None:
    """Check that the texts of boards have no more lines, and no longer ones, than any game's."""
    for text in [texts] if isinstance(texts, str) else texts or []:
        lines = text.split("\n")
        if len(lines) > _LEVEL_LINES or max(map(len, lines)) > _LEVEL_LINE:
            raise RequestError("too_large", f"a board may have {_LEVEL_LINES} lines of {_LEVEL_LINE} characters.")
