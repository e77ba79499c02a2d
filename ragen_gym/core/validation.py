"""Checks of arguments: errors that name the argument, the value and what is allowed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from numbers import Real
from pkgutil import resolve_name
from typing import Any

__all__ = ["check_choice", "check_number", "did_you_mean", "load_object"]


def check_number(
    owner: str, name: str, value: Any, low: float = -inf, high: float = inf, *, whole: bool = False
) -> None:
    """Raise a ValueError unless a value is a finite number, or a whole one, from ``low`` to ``high``."""
    kind: Any = int if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high or abs(value) == inf:
        ends = f"from {low}" * (low > -inf) + (f" to {high}" if high < inf else " on" * (low > -inf))
        kind, given = "an integer" if whole else "a number", reprlib.repr(value)
        raise ValueError(f"{owner}: {name}={given} must be {kind} {ends}".rstrip() + ".")


def check_choice(what: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise a ValueError unless the value is one of those allowed."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{what}={value!r} is not known: choose one of {', '.join(map(repr, allowed))}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean X?`` where a known name is close but for case, ``_`` and ``-``, or the empty text."""
    plain = {_plain(each): each for each in known}
    near = get_close_matches(_plain(name), plain, n=1)
    return f" Did you mean {plain[near[0]]}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def load_object(path: str) -> Any:
    """The object that ``module:name`` names; the module is imported.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    return resolve_name(path)
