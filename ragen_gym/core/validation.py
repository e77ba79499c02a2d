"""Checks of arguments: errors that name the argument, the value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from difflib import get_close_matches
from math import inf, isfinite
from numbers import Real
from types import NoneType
from typing import Any

import numpy as np


class BatchType(type):
    """The metaclass of batches. Its repr names the adapter, because Stable-Baselines3 prints it in an error."""

    def __repr__(cls) -> str:
        """The class and the adapter for Stable-Baselines3."""
        return f"{super().__repr__()} (for Stable-Baselines3: ragen_gym.integrations.sb3.BatchVecEnv(env))"


def check_number(
    owner: str, name: str, value: Any, low: float = -inf, high: float = inf, *, whole: bool = False, none: bool = False
) -> None:
    """Raise a ValueError unless a value is a finite number, or a whole one, from ``low`` to ``high``.

    A number must fit into a float unless it is a ``whole`` one. With ``none``, None is allowed too.
    """
    if not (none and value is None) and not _is_number(value, low, high, whole):
        ends = f"from {low}" * (low > -inf) + (f" to {high}" if high < inf else " on" * (low > -inf))
        kind = "None or " * none + ("an integer" if whole else "a number")
        raise ValueError(f"{owner}: {name}={shown(value)} must be {kind} {ends}".rstrip() + ".")


def _is_number(value: Any, low: float, high: float, whole: bool) -> bool:
    kind: Any = int if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    try:
        return bool(low <= value <= high and (whole or isfinite(value)))
    except OverflowError:  # an integer beyond all floats
        return False


def plain_number(value: Any) -> Any:
    """A NumPy number or bool as a Python one; anything else unchanged."""
    return value.item() if isinstance(value, np.number | np.bool_) else value


def json_or_text(text: str) -> Any:
    """A value as JSON reads it (3, 1e-3, true, {"a": 1}), or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return text


def items_of(value: Any) -> list[Any]:
    """The items of an ordered iterable; empty for texts, bytes, tables, sets and anything else."""
    if isinstance(value, str | bytes | bytearray | Set | Mapping):
        return []
    try:
        return list(value)
    except TypeError:
        return []


def shown(value: Any) -> str:
    """A value in a message: its ``repr``, cut to 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # it holds an integer of more digits than Python writes
        text = f"{type(value).__name__} of very many digits"
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_choice(what: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise a ValueError unless the value is allowed."""
    allowed = list(allowed)
    if not isinstance(value, str | int | NoneType) or value not in allowed:
        raise ValueError(f"{what}={shown(value)} is not known: choose one of {', '.join(map(repr, allowed))}.")


def checked_options(options: Any, known: Iterable[str]) -> dict[str, Any]:
    """The options of a reset, {} for None; a ValueError if they are not a dict or one is unknown."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError(f"options={shown(options)} is not a dict: give for example {{'noise_seed': 3}}.")
    for option in options:
        check_choice("option", option, known)
    return options


def joined(one: Mapping[str, Any], other: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Two tables of options merged recursively; ``where`` is the dotted name of both, with a trailing dot.

    Raises:
        ValueError: an option has two different values.
    """
    result = dict(one)
    for key, value in other.items():
        old = result.get(key, value)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = joined(old, value, f"{where}{key}.")
        elif old != value:
            raise ValueError(f"{where}{key} is given as {shown(old)} and as {shown(value)}: give one of them.")
        result[key] = value
    return result


def named_values(
    flag: str, pairs: Sequence[str], read_as: Callable[[str, str], Any] = lambda name, text: json_or_text(text)
) -> dict[str, Any]:
    """Arguments given as ``name=value``, by default each value as JSON where it is that, else as text; ``-`` is ``_``.

    Raises:
        ValueError: a pair without ``=``, or two values of one name.
    """
    read: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair}: write it as name=value.")
        name = name.strip().replace("-", "_")
        read = joined(read, {name: read_as(name, text)})
    return read


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean X?`` if a known name is close up to case, ``_`` and ``-``; else the empty text."""
    plain = {_plain(each): each for each in known}
    near = get_close_matches(_plain(name), plain, n=1)
    return f" Did you mean {plain[near[0]]}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
