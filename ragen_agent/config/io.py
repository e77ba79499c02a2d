"""Settings as nested tables: TOML files, NAME=VALUE pairs, merging and a listing.

A setting's name is dotted, such as ``training.groups``, and gives the nesting.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from ragen_agent.config.settings import Config
from ragen_agent.config.table import parts, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_gym.core.settings import Setting, declared
from ragen_gym.core.validation import did_you_mean, joined, json_or_text

__all__ = [
    "OPENRLHF",
    "Group",
    "Settings",
    "catalog",
    "check_name",
    "groups",
    "merged",
    "read_openrlhf",
    "read_toml",
    "settings_of_pairs",
    "to_toml",
]

Settings = dict[str, Any]

OPENRLHF = "openrlhf"
"""The table of the distributed trainer's own settings in a configuration file."""


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

    return tomli_w.dumps(dataclasses.asdict(config))


def read_openrlhf(folder: Path) -> OpenRLHF | None:
    """The settings of a distributed run; None if the folder has none."""
    path = folder / "openrlhf.toml"
    return with_settings(OpenRLHF(), read_toml(path)) if path.is_file() else None


@dataclass(frozen=True)
class Group:
    """The settings of one table; top-level settings have the empty name."""

    name: str
    about: str
    settings: Mapping[str, Setting]


def groups() -> Iterator[Group]:
    """All settings, table by table, by their dotted names."""
    for table, cls in {"": Config, **parts(Config), OPENRLHF: OpenRLHF}.items():
        prefix = f"{table}." if table else ""
        about = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
        yield Group(table, about, {f"{prefix}{name}": each for name, each in declared(cls).items()})


@cache
def catalog() -> Mapping[str, Setting]:
    """All settings by their dotted names."""
    return {name: each for group in groups() for name, each in group.settings.items()}


def check_name(name: str) -> None:
    """Raise a ValueError with the nearest known names unless this dotted name is a setting."""
    if name not in catalog():
        table = name.rpartition(".")[0]
        near = [each for each in catalog() if each.rpartition(".")[0] == table] or [*catalog()]
        ends = {each.rpartition(".")[2]: each for each in catalog()}
        close = get_close_matches(name.rpartition(".")[2], ends, 1)  # in another table
        hint = did_you_mean(name, near) or "".join(f" Did you mean {ends[end]}?" for end in close)
        raise ValueError(f"unknown setting {name!r}.{hint} ragen-agent settings lists all.")


def settings_of_pairs(pairs: Sequence[str]) -> Settings:
    """NAME=VALUE pairs, of ``--set``, as nested tables.

    A value is read as JSON (3, 1e-3, true, [0.7, 0.3]), or else as text; values of text settings are always text.

    Raises:
        ValueError: a pair without a value, a name that is neither a setting nor an entry of a table setting, or two
            values of one setting.
    """
    settings: Settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair} needs a value: NAME=VALUE.")
        places = [*accumulate(name.split("."), lambda table, key: f"{table}.{key}")]
        if not {*places} & {*catalog()} and name not in {group.name for group in groups()}:
            check_name(name)
        value: Any = json_or_text(text)
        if name in catalog() and catalog()[name].type is str and not isinstance(value, str):
            value = text
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = joined(settings, value)
    return settings
