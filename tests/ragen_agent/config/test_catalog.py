"""The listing, the pairs and the schema that are read off the declarations."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config
from ragen_agent.config.catalog import OPENRLHF, catalog, check_name, file_schema, groups, settings_of_pairs
from ragen_agent.config.recipes import FOLDER, names, read
from ragen_agent.config.trainers import OpenRLHF

HERE = Path(__file__).parent
KINDS: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "string": str,
    "array": list,
    "object": dict,
}


def test_the_groups_hold_every_field_of_a_run() -> None:
    def flat(table: dict[str, Any], prefix: str = "") -> set[str]:
        nested = {
            name for name, value in table.items() if isinstance(value, dict) and f"{prefix}{name}" not in catalog()
        }
        here = {f"{prefix}{name}" for name in table if name not in nested}
        return here.union(*(flat(table[name], f"{name}.") for name in nested))

    assert flat({**asdict(Config()), OPENRLHF: asdict(OpenRLHF())}) == set(catalog())
    assert all(group.about for group in groups())


def test_pairs_are_read_by_the_type_of_their_setting() -> None:
    pairs = ["training.group_size=4", "model=7", "wandb=x", "training.starpo_s=false", "demonstrations.moves=[1, 2]"]
    settings = settings_of_pairs("--set", pairs)
    assert settings["training"] == {"group_size": 4, "starpo_s": False}
    assert (settings["model"], settings["demonstrations"]) == ("7", {"moves": [1, 2]})
    assert settings_of_pairs("--env-option", ["size=5"], "env_options") == {"env_options": {"size": 5}}
    with pytest.raises(ValueError, match="--set seed needs a value"):
        settings_of_pairs("--set", ["seed"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("training.gruops", "training.groups"), ("trainnig.groups", "training.groups"), ("sede", "seed")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown setting '{name}'. Did you mean {near}?"):
        check_name(name)


def test_the_schema_takes_what_runs_and_recipes_hold() -> None:
    schema = file_schema()
    json.dumps(schema)
    files = [asdict(Config()), tomllib.loads((HERE / "old_names.toml").read_text(encoding="utf-8"))]
    files += [tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")) for name in names()]
    files += [read(name).settings for name in names()]
    for file in files:
        assert_fits(file, schema)
    with pytest.raises(AssertionError):
        assert_fits({"training": {"groups": 0}}, schema)
    with pytest.raises(AssertionError):
        assert_fits({"training": {"gruops": 3}}, schema)
    assert schema["properties"]["training"]["properties"]["members"]["deprecated"]


def assert_fits(value: Any, schema: dict[str, Any]) -> None:
    """The part of JSON schema that these schemas use."""
    assert isinstance(value, KINDS[schema["type"]])
    if "enum" in schema:
        assert value in schema["enum"]
    if isinstance(value, int | float):
        assert value >= schema.get("minimum", -inf)
        assert value <= schema.get("maximum", inf)
        assert value > schema.get("exclusiveMinimum", -inf)
        assert value < schema.get("exclusiveMaximum", nan) or "exclusiveMaximum" not in schema
    for name, inner in value.items() if isinstance(value, dict) and "properties" in schema else ():
        assert name in schema["properties"]
        assert_fits(inner, schema["properties"][name])
