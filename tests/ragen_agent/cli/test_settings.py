"""The listing of settings, and NAME=VALUE pairs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from ragen_agent.cli.settings import catalog, check_name, groups, settings_of_pairs
from ragen_agent.config import Config
from ragen_agent.config.trainers import OPENRLHF, OpenRLHF


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
    pairs = ["training.group_size=4", "model=7", "training.starpo_s=false", "demonstrations.moves=[1, 2]"]
    settings = settings_of_pairs(pairs)
    assert settings["training"] == {"group_size": 4, "starpo_s": False}
    assert (settings["model"], settings["demonstrations"]) == ("7", {"moves": [1, 2]})
    with pytest.raises(ValueError, match="--set seed: write it as name=value"):
        settings_of_pairs(["seed"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("training.gruops", "training.groups"), ("trainnig.groups", "training.groups"), ("sede", "seed")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown setting '{name}'. Did you mean {near}?"):
        check_name(name)
