"""Tables of settings: frozen pydantic dataclasses, TOML files, merging, and errors in words."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from ragen_gym.core.settings import NAMES, declared
from ragen_gym.core.validation import did_you_mean, shown

Settings = dict[str, Any]
"""Settings as nested tables: a setting's dotted name, such as ``training.groups``, gives the nesting."""

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


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Merge nested tables of settings; ``over`` wins."""
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = merged(result[key], value)
        result[key] = value
    return result


def read_toml(path: Path) -> Settings:
    """The settings of a TOML file; raises a ValueError if it is missing or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
        raise ValueError(f"cannot read {path}: {reason}.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def to_toml(config: Any) -> str:
    """A whole configuration as TOML; ``with_settings(Config(), tomllib.loads(...))`` reads it back."""
    import tomli_w  # from the extra `agent`, which listing settings does not need

    return tomli_w.dumps(asdict(config))


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
