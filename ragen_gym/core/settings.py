"""Settings declared once: type, default, range, unit and meaning beside each field of a frozen dataclass.

A settings class is a frozen dataclass whose fields are made by `setting`, and whose ``__post_init__`` calls
`check_settings`. Everything else is derived from the fields: error messages, command-line help, listings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["Setting", "check_settings", "declared", "setting"]

_KEY = "setting"
_DECLARED: dict[type, Mapping[str, Setting]] = {}
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "a table"}


@dataclass(frozen=True)
class Setting:
    """What a field may hold and what it means.

    Attributes:
        doc: one sentence; the same text in ``--help``, listings and schemas.
        low, high: the range, ends included, or None.
        above, below: the range, ends excluded, or None.
        choices: the values allowed, or () for any; the empty text among them means "left to another setting".
        unit: such as ``"seconds"``.
        type: of the field, filled in by `declared`.
        default: of the field, filled in by `declared`.
    """

    doc: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    unit: str = ""
    type: Any = None
    default: Any = None

    @property
    def range(self) -> str:
        """The range in words, such as ``from 0 to 1``; empty where every value of the type is allowed."""
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices if choice != "")
        if self.low is not None and self.high is not None:
            return f"from {self.low:g} to {self.high:g}"
        ends = [
            f"{words} {end:g}"
            for words, end in (
                ("above", self.above),
                ("at least", self.low),
                ("below", self.below),
                ("at most", self.high),
            )
            if end is not None
        ]
        return " and ".join(ends)

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type lies in the range."""
        if value is None:
            return NoneType in _alternatives(self.type)
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] = (),
    unit: str = "",
) -> Any:
    """A dataclass field with its declaration; see `Setting`. A list or a dict as default is copied for each object."""
    metadata = {_KEY: Setting(doc, low, high, above, below, tuple(choices), unit)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(cls: type) -> Mapping[str, Setting]:
    """The declarations of a settings class by field name, types and defaults filled in.

    Fields that are settings classes themselves, and fields without a declaration, are left out.
    """
    if cls in _DECLARED:
        return _DECLARED[cls]
    types, found = get_type_hints(cls), {}
    for each in dataclasses.fields(cls):
        if _KEY in each.metadata:
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            found[each.name] = dataclasses.replace(each.metadata[_KEY], type=types[each.name], default=default)
    _DECLARED[cls] = found
    return found


def check_settings(settings: Any, where: str = "") -> None:
    """Check the types and ranges of all declared fields, and turn whole numbers given for floats into floats.

    Args:
        settings: an object of a settings class.
        where: what messages put before a field's name, such as ``training.``.

    Raises:
        ValueError: a value of another type or out of range; the message names the field, the value and the range.
    """
    for name, each in declared(type(settings)).items():
        value, types = getattr(settings, name), _alternatives(each.type)
        if float in types and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
            object.__setattr__(settings, name, value)
        if type(value) not in types:
            kind = " or ".join("none" if t is NoneType else _NAMES.get(t, t.__name__) for t in types)
            raise ValueError(f"{where}{name} is {value!r}; it must be {kind}, such as {each.default!r}.")
        if not each.allows(value):
            if each.choices:
                allowed = ", ".join(str(choice) for choice in each.choices if choice != "")
                raise ValueError(f"{where}{name} is {value!r}; choose one of {allowed}.")
            raise ValueError(f"{where}{name} is {value}; it must be {each.range or 'finite'}.")


def _alternatives(hint: Any) -> tuple[type, ...]:
    """The plain types that a field's type allows."""
    alternatives = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return tuple(get_origin(each) or each for each in alternatives)
