"""Settings as frozen dataclasses: each field declares its type, default, range, unit and meaning.

A settings class is a frozen dataclass whose fields are made by ``setting``. ``check_settings``, called by
``__post_init__``, checks them. pydantic reads them too: their metadata are arguments of its ``Field``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field
from math import inf, isfinite
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from ragen_gym.core.validation import plain_number, shown

OPENS = {
    "nothing": "words and numbers to compare, print or compute with",
    "data": "a file or folder that is read as data",
    "module": "one or more modules that are imported",
    "command": "a program that is started",
    "address": "an address to connect to",
    "kernel": "code of the Hugging Face Hub, where the value names a repository",
    "upload": "a place that files are sent to, with the user's token",
    "flags": "flags of another program, which may name code",
}
"""Effects of a setting's value (``Setting.opens``)."""

NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "a table"}
"""The types of settings in messages."""

_KEY = "json_schema_extra"  # pydantic's name of a function that completes a field's schema
_DECLARED: dict[type, Mapping[str, Setting]] = {}


@dataclass(frozen=True)
class Setting:
    """The allowed values and the meaning of a field.

    Attributes:
        doc: one sentence; the same text in ``--help``, listings and schemas.
        low, high: the range, ends included, or None. An infinite end is itself allowed.
        above, below: the range, ends excluded, or None.
        choices: the values allowed, or () for any. A mapping is read anew at each check; its values, or their
            ``doc``, describe the choices.
        empty: meaning of the empty text, if it is allowed, such as ``"left to another setting"``.
        unit: such as ``"seconds"``.
        needs: the field of the same class that must be on (not 0, false or empty) for this one to have an effect. While
            it is off, any value but the default is refused.
        opens: effect of a value outside the computation, one of ``OPENS``. Required for a text, list or table without
            choices; it decides what a foreign file or folder may do without consent.
        type: of the field, filled in by ``declared``.
        default: of the field, filled in by ``declared``.
    """

    doc: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Collection[Any] = ()
    empty: str = ""
    unit: str = ""
    needs: str = ""
    opens: str = ""
    type: Any = None
    default: Any = None

    @property
    def range(self) -> str:
        """The range in words, such as ``from 0 to 1``; empty if every value of the type is allowed."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.low is not None and self.high is not None and isfinite(self.high):
            return f"from {self.low:g} to {self.high:g}"
        ends = [
            f"{words} {end:g}"
            for words, end in (
                ("above", self.above),
                ("at least", self.low),
                ("below", self.below),
                ("at most", self.high),
            )
            if end is not None and isfinite(end)
        ]
        return " and ".join(ends)

    @property
    def meanings(self) -> dict[Any, str]:
        """The meaning of each choice that is described."""
        if not isinstance(self.choices, Mapping):
            return {}
        return {name: row if isinstance(row, str) else row.doc for name, row in self.choices.items()}

    def __call__(self, schema: dict[str, Any]) -> None:
        """Complete the JSON schema that pydantic makes of the field."""
        schema["description"] = f"{self.doc}{f' [{self.unit}]' if self.unit else ''}"
        schema["description"] += f"; empty: {self.empty}" if self.empty else ""
        if self.choices:
            schema["enum"] = [*([""] if self.empty else []), *self.choices]

    def allows(self, value: Any) -> bool:
        """True if a value of the right type lies in the range."""
        if value is None:
            return NoneType in _alternatives(self.type)
        if self.choices:
            return value in self.choices or (value == "" and bool(self.empty))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (
            (isinstance(value, int) or isfinite(value) or value in (self.low, self.high))
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def setting(default: Any, doc: str, **about: Any) -> Any:
    """A dataclass field with its declaration, a ``Setting`` of ``about``.

    A list or a dict as default is copied for each object.
    """
    each = Setting(doc, **about)
    ends = {"ge": each.low, "le": each.high, "gt": each.above, "lt": each.below}
    metadata: dict[str, Any] = {name: end for name, end in ends.items() if end is not None and isfinite(end)}
    metadata |= {_KEY: each} | ({"allow_inf_nan": True} if each.high == inf else {})
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
    """Check all declared fields: types and ranges.

    NumPy numbers become Python numbers, and whole numbers for float fields become floats.

    Args:
        settings: an object of a settings class.
        where: prefix of field names in messages, such as ``training.``.

    Raises:
        ValueError: a value of another type or out of range; the message names the field and the value.
    """
    for name, each in declared(type(settings)).items():
        value, types = plain_number(getattr(settings, name)), _alternatives(each.type)
        if float in types and isinstance(value, int) and not isinstance(value, bool):
            try:
                value = float(value)
            except OverflowError:
                raise ValueError(
                    f"{where}{name} is {shown(value)}; it must be a number that fits into a float."
                ) from None
        object.__setattr__(settings, name, value)
        if type(value) not in types:
            kind = " or ".join("none" if t is NoneType else NAMES.get(t, t.__name__) for t in types)
            raise ValueError(f"{where}{name} is {shown(value)}; it must be {kind}, such as {each.default!r}.")
        if not each.allows(value):
            if each.choices:
                raise ValueError(f"{where}{name} is {shown(value)}; choose {each.range}.")
            raise ValueError(f"{where}{name} is {shown(value)}; it must be {each.range or 'finite'}.")


def _alternatives(hint: Any) -> tuple[type, ...]:
    """The plain types that a field's type allows."""
    alternatives = (hint,) if get_origin(hint) in (None, list, dict) else get_args(hint)
    return tuple(get_origin(each) or each for each in alternatives)
