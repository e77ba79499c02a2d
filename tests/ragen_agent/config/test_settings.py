"""What holds for every declared setting, and for old files."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, merged, read_toml, to_toml, with_settings
from ragen_agent.config.catalog import OPENRLHF, catalog, check_name, file_schema, groups, settings_of_pairs
from ragen_agent.config.io import ALIASES
from ragen_agent.config.openrlhf import OpenRLHF
from ragen_agent.config.recipes import FOLDER, names, read
from ragen_gym.core.settings import Setting
from ragen_gym.core.turn_config import TurnConfig

HERE = Path(__file__).parent


def given(name: str, value: Any) -> object:
    """The settings with one of them changed."""
    table, _, field = name.rpartition(".")
    if table == OPENRLHF:
        return with_settings(OpenRLHF(), {field: value}, "openrlhf.")
    return with_settings(Config(), {table: {field: value}} if table else {field: value})


def outside(each: Setting) -> list[Any]:
    """Values of the right type just out of range."""
    if each.choices:
        return [-7 if isinstance(each.default, int) else "no such choice"]
    whole = each.type is int or each.type == int | None
    ends = [
        *([each.low - (1 if whole else 1e-6)] if each.low is not None else []),
        *([each.high + 1e-3] if each.high not in (None, inf) else []),
        *(end for end in (each.above, each.below) if end is not None),
    ]
    found = [int(end) if whole else float(end) for end in ends]
    return found if whole or each.type is not float else [*found, nan, *([] if each.high == inf else [inf])]


NUMBERED = [(name, value) for name, each in catalog().items() for value in outside(each)]
WRONG = {int: "3", float: "3", bool: 1, str: 3, list: "a", dict: [1]}


@pytest.mark.parametrize(("name", "value"), NUMBERED, ids=str)
def test_a_value_out_of_range_is_refused_by_its_full_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)} is "):
        given(name, value)


@pytest.mark.parametrize("name", catalog())
def test_a_setting_says_what_it_is_and_refuses_another_type(name: str) -> None:
    each = catalog()[name]
    assert each.doc
    assert each.allows(each.default) or (each.default == "" and each.empty)
    with pytest.raises(ValueError, match=f"^{re.escape(name)} is "):
        given(name, WRONG[type(each.default)])
    if each.meanings:
        assert all(each.meanings.values())


def test_the_groups_hold_every_field_of_a_run() -> None:
    def flat(table: dict[str, Any], prefix: str = "") -> set[str]:
        nested = {
            name for name, value in table.items() if isinstance(value, dict) and f"{prefix}{name}" not in catalog()
        }
        here = {f"{prefix}{name}" for name in table if name not in nested}
        return here.union(*(flat(table[name], f"{name}.") for name in nested))

    assert flat({**asdict(Config()), OPENRLHF: asdict(OpenRLHF())}) == set(catalog())
    assert all(group.about for group in groups())


def test_an_option_of_a_turn_is_a_setting_by_itself() -> None:
    assert {f"turns.{name}" for name in TurnConfig.__dataclass_fields__} <= set(catalog())
    turns = with_settings(Config(), {"turns": {"grounding": True, "state_reward": 0.5}}).turns
    assert turns.of_environment(states_limit=False) == TurnConfig(grounding=True, state_reward=0.5)
    assert turns.of_environment(states_limit=True).max_tokens_per_turn == 40
    with pytest.raises(ValueError, match=r"turns\.state_reward=0\.5 rewards nothing"):
        given("turns.state_reward", 0.5)


def test_a_file_with_old_names_gives_the_same_run() -> None:
    config = with_settings(Config(), read_toml(HERE / "old_names.toml"))
    assert config == with_settings(Config(), tomllib.loads((HERE / "old_names.toml").read_text(encoding="utf-8")))
    assert (config.env_options, config.curriculum[0]["env_options"]) == ({"size": 7, "boxes": 2}, {"size": 8})
    assert (config.training.group_size, config.training.filter, config.training.max_grad_norm) == (4, "top_p", inf)
    stops = config.stops
    assert (stops.return_std_patience, stops.return_std_share, stops.return_std_baseline) == (7, 0.2, 12)
    assert (stops.validation_patience, config.turns.history, config.turns.state_reward) == (3, 2, 0.5)
    assert with_settings(Config(), tomllib.loads(to_toml(config))) == config


def test_old_names_are_laid_over_new_ones_and_not_given_twice() -> None:
    assert merged({"training": {"group_size": 8}}, {"training": {"members": 2}}) == {"training": {"group_size": 2}}
    assert merged({"env_options": {"size": 4}}, {"knobs": {"holes": 1}}) == {"env_options": {"size": 4, "holes": 1}}
    mixed = with_settings(Config(), {"games": [{"game": "Bandit", "knobs": {"high_prob": 0.1}}]})
    assert mixed.games[0]["env_options"] == {"high_prob": 0.1}
    with pytest.raises(ValueError, match=r"training\.members is the old name of training\.group_size"):
        with_settings(Config(), {"training": {"members": 2, "group_size": 4}})
    for old, new in ALIASES.items():
        assert new in catalog() or new.partition(".")[0] in catalog()
        assert old not in catalog()


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


KINDS: dict[str, Any] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "string": str,
    "array": list,
    "object": dict,
}


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
