"""Every setting that could name code, a file or an address says so, and what it names needs the user's consent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from ragen_agent.cli.settings import catalog
from ragen_agent.config import Config, with_settings
from ragen_agent.config.consent import effects
from ragen_agent.config.table import parts
from ragen_agent.config.trainers import OPENRLHF, FineTuning, OpenRLHF
from ragen_gym.core.settings import OPENS, Setting, declared

NEED_CONSENT = ("module", "command", "address", "kernel", "upload", "flags")

#: A value that needs consent, for each setting whose kind does.
VALUES: dict[str, Any] = {
    "game": "theirs:Sum",
    "games": [{"game": "theirs:Sum"}],
    "program.command": "touch started",
    "hub.model": "somebody/model",
    "hub.dataset": "somebody/data",
    "openrlhf.ray_address": "ray://elsewhere:10001",
    "openrlhf.attention": "somebody/attention",
    "openrlhf.flags": "--train.agent_func_path theirs.py",
}


def everything() -> dict[str, Setting]:
    tables = {"fine_tuning": FineTuning, **{f"fine_tuning.{name}": each for name, each in parts(FineTuning).items()}}
    fine_tuning = {f"{table}.{name}": each for table, cls in tables.items() for name, each in declared(cls).items()}
    return {**catalog(), **fine_tuning}


@pytest.mark.parametrize("name", everything())
def test_a_setting_of_free_text_says_what_its_value_opens(name: str) -> None:
    each = everything()[name]
    assert each.opens in OPENS if free(each) else not each.opens, f"{name}: give opens=..., of {', '.join(OPENS)}"


def free(each: Setting) -> bool:
    """True if a value may hold arbitrary text, alone or within a list or table."""
    kinds = get_args(each.type) or (each.type,)
    return not each.choices and not {*kinds} <= {int, float, bool}


def test_each_setting_of_such_a_kind_has_its_effect() -> None:
    assert {name for name, each in catalog().items() if each.opens in NEED_CONSENT} == set(VALUES)
    for name, value in VALUES.items():
        table, _, key = name.rpartition(".")
        nested: Mapping[str, Any] = {table: {key: value}} if table else {key: value}
        if table == OPENRLHF:
            found = [*effects(with_settings(OpenRLHF(), nested[table]), table=table)]
            typed = [*effects(with_settings(OpenRLHF(), nested[table]), nested[table], table)]
        else:
            found = [*effects(with_settings(Config(), nested))]
            typed = [*effects(with_settings(Config(), nested), nested)]
        assert [kind for kind, _ in found] == [catalog()[name].opens]
        assert str(value if name != "games" else value[0]["game"]) in found[0][1]
        assert not typed, "the user's own flag is the consent"
    assert not [*effects(Config())]
    for address in ("", "auto"):
        assert not [*effects(OpenRLHF(ray_address=address), table=OPENRLHF)], "a cluster on this machine"
