"""Every setting by its dotted name, such as ``training.groups``: for listings, flags, schemas and KEY=VALUE pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ragen_agent.config.io import ALIASES, Settings, merged
from ragen_agent.config.settings import Config
from ragen_agent.config.trainers import OpenRLHF
from ragen_gym.core.settings import Setting, declared, json_schema, parts
from ragen_gym.core.validation import did_you_mean

__all__ = ["OPENRLHF", "Group", "catalog", "check_name", "file_schema", "groups", "settings_of_pairs"]

OPENRLHF = "openrlhf"
"""The table of the distributed trainer's own settings in a file that serves both trainers."""


@dataclass(frozen=True)
class Group:
    """The settings of one table; those of no table have the empty name."""

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
    """Raise a ValueError with the nearest known names unless there is a setting of this dotted name."""
    if name not in catalog() and name not in ALIASES:
        table = name.rpartition(".")[0]
        near = [each for each in catalog() if each.rpartition(".")[0] == table] or [*catalog()]
        hint = did_you_mean(name, near) or did_you_mean(name, catalog())
        raise ValueError(f"unknown setting {name!r}.{hint} See ragen-agent settings.")


def settings_of_pairs(flag: str, pairs: Sequence[str], table: str = "") -> Settings:
    """KEY=VALUE pairs as nested tables.

    A value is read as JSON (3, 1e-3, true, [0.7, 0.3]), or else is the text itself; that of a setting that is a text
    stays as it is.

    Args:
        flag: what the message names, such as ``--set``.
        pairs: what was given.
        table: where the keys belong, such as ``env_options``.

    Raises:
        ValueError: a pair without a value.
    """
    settings: Settings = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair} needs a value: KEY=VALUE.")
        name = f"{table}.{key}" if table else key
        each = catalog().get(ALIASES.get(name, name))
        value: Any = _json(text)
        if each is not None and each.type is str and not isinstance(value, str):
            value = text
        for part in reversed(name.split(".")):
            value = {part: value}
        settings = merged(settings, value)
    return settings


def file_schema() -> dict[str, Any]:
    """A JSON schema of the TOML files that ``--config`` takes; old names are there, marked as deprecated."""
    schema = json_schema(Config)
    properties = schema["properties"]
    properties[OPENRLHF] = json_schema(OpenRLHF)
    properties["recipe"] = {"type": "object", "description": "about a recipe; base names one that this file changes"}
    for old, new in ALIASES.items():
        *tables, name = old.split(".")
        inside = properties
        for table in tables:
            inside = inside[table].get("properties", {})
        today = inside.get(new.rpartition(".")[2])
        if today:
            inside[name] = {**today, "deprecated": True, "description": f"the old name of {new}"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of ragen-agent",
        **schema,
    }


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
