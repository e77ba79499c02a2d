"""Base of the tables of settings: frozen pydantic dataclasses, and their errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from ragen_gym.core.settings import NAMES, declared
from ragen_gym.core.validation import did_you_mean, shown

__all__ = ["Table", "parts", "with_settings"]

T = TypeVar("T")


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Table:
    """Base of the tables; each field that ``ragen_gym.core.settings.setting`` declares is checked by it."""

    @field_validator("*")
    @classmethod
    def _check(cls, value: Any, info: ValidationInfo) -> Any:
        """Check what pydantic's ``Field`` cannot say: choices, and a setting that needs another one."""
        each = declared(cls).get(str(info.field_name))
        if each and not each.allows(value):
            raise PydanticCustomError("choice", "choose {range}", {"range": each.range})
        if each and each.needs and value != each.default and not info.data.get(each.needs, True):
            raise PydanticCustomError("unread", "no effect without {needs}", {"needs": each.needs})
        return value


def parts(cls: type) -> dict[str, type]:
    """The fields of a table that are tables themselves, and their classes."""
    return {name: type(value) for name, value in vars(cls()).items() if is_dataclass(value)}


def with_settings(base: T, settings: Mapping[str, Any], where: str = "") -> T:
    """``base``, a table such as ``Config()``, with settings replaced; nested tables replace settings of nested ones.

    ``where`` is the dotted name of ``base`` with a trailing dot, such as ``training.``.

    Raises:
        ValueError: an unknown name (with the known ones), a value of another type or out of range, or settings that
            contradict each other.
    """
    changes = {}
    for name, value in settings.items():
        old = getattr(base, name, None)
        nested = is_dataclass(old) and isinstance(value, Mapping)
        changes[name] = with_settings(old, value, f"{where}{name}.") if nested else value
    try:
        return replace(base, **changes)  # type: ignore[type-var]
    except ValidationError as error:
        raise ValueError(_in_words(error, base, changes, where)) from None


def _in_words(error: ValidationError, base: Any, changes: Mapping[str, Any], where: str) -> str:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:  # settings that contradict each other
        return str(first["ctx"]["error"])
    name, names = str(first["loc"][0]), [*vars(base)]
    if name not in names:
        known = ", ".join(names)
        return f"unknown setting {where + name!r}.{did_you_mean(name, names)} Known here are {known}."
    value, each = changes.get(name, getattr(base, name)), declared(type(base)).get(name)
    if each is None:
        allowed = f"; it must be a table, such as [{where}{name}] in TOML."
    elif first["type"] == "choice":
        allowed = f"; choose {each.range}."
    elif first["type"] == "unread":
        other = f"{where}{each.needs}"
        allowed = f", which has no effect without {other}; give that too, or leave {where}{name} at {each.default!r}."
    elif first["type"].endswith("_type") or len(first["loc"]) > 1:
        inner = get_args(each.type)[: len(first["loc"]) - 1]
        kinds = [NAMES[get_origin(kind) or kind] for kind in (each.type, *inner)]
        allowed = f"; it must be {', each item '.join(kinds)}, such as {each.default!r}."
    else:
        allowed = f"; it must be {each.range or 'finite'}."
    return f"{where}{name} is {shown(value)}{allowed}"
