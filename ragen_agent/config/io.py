"""Settings as tables: read from and written to TOML, laid over each other, and old names."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ragen_gym.core.validation import did_you_mean

__all__ = ["ALIASES", "Settings", "merged", "read_toml", "to_toml", "with_settings"]

Settings = dict[str, Any]
T = TypeVar("T")

#: Old names of settings, which files and command lines may still use. A table in a list goes by the list's name.
ALIASES = {
    "knobs": "env_options",
    "games.knobs": "games.env_options",
    "curriculum.knobs": "curriculum.env_options",
    "training.members": "training.group_size",
    "stops.spread_patience": "stops.return_std_patience",
    "stops.spread_share": "stops.return_std_share",
    "stops.spread_first": "stops.return_std_baseline",
    "stops.validation_times": "stops.validation_patience",
}


def with_settings(base: T, settings: Mapping[str, Any], where: str = "") -> T:
    """``base`` (a dataclass) with some fields replaced; nested tables replace single fields of nested dataclasses.

    Args:
        base: such as ``Config()``.
        settings: values by name; old names are taken as well.
        where: the dotted name of ``base`` among all settings, with a dot at its end, such as ``training.``.

    Raises:
        ValueError: an unknown name, with those that are known, or a value of another type or out of range.
    """
    names = [each.name for each in dataclasses.fields(base)]  # type: ignore[arg-type]
    changes = {}
    for key, value in _renamed(settings, where).items():
        name = f"{where}{key}"
        if key not in names:
            raise ValueError(f"unknown setting {name!r}.{did_you_mean(key, names)} Known here are {', '.join(names)}.")
        old = getattr(base, key)
        if dataclasses.is_dataclass(old):
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} is {value!r}; it must be a table, such as [{name}] in TOML.")
            value = with_settings(old, value, f"{name}.")
        changes[key] = value
    replaced: T = dataclasses.replace(base, **changes)  # type: ignore[type-var]
    return replaced


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Nested tables of settings laid one over the other, key by key; old names become new ones."""
    return _merged(_renamed(under), _renamed(over))


def read_toml(path: Path) -> Settings:
    """The settings of a TOML file, old names made new; raises a ValueError if it is missing or is not TOML."""
    try:
        return _renamed(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def to_toml(config: Any) -> str:
    """A whole configuration as TOML; ``with_settings(Config(), tomllib.loads(...))`` gives it back."""
    import tomli_w  # of the extra `agent`: listing settings needs none of it

    return tomli_w.dumps(dataclasses.asdict(config))


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = _merged(result[key], value)
        result[key] = value
    return result


def _renamed(settings: Mapping[str, Any], where: str = "") -> Settings:
    """The settings by their names of today."""
    result: Settings = {}
    for key, value in settings.items():
        name = f"{where}{key}"
        new = ALIASES.get(name, name).removeprefix(where)
        if new != key and new in settings:
            raise ValueError(f"{name} is the old name of {where}{new}; give one of the two.")
        if isinstance(value, Mapping):
            value = _renamed(value, f"{name}.")
        elif isinstance(value, list):
            value = [_renamed(row, f"{name}.") if isinstance(row, Mapping) else row for row in value]
        result[new] = value
    return result
