"""The rows of the rules against the functions that they name."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

from ragen_agent.config.algorithms import ADVANTAGE_RULES, FILTER_RULES, POLICY_LOSSES, TOKEN_PARTS
from ragen_agent.update.metrics import PARTS


def test_the_rows_of_the_rules_name_what_the_algorithms_have() -> None:
    for rule in FILTER_RULES.values():
        assert callable(resolve_name(rule.function))
    for row in POLICY_LOSSES.values():
        known = inspect.signature(resolve_name(row.function)).parameters
        assert [name for name in known if name.startswith("clip_")] == [*row.clips]
        assert row.random is ("generator" in known)
    for each in ADVANTAGE_RULES.values():
        assert bool(each.function) is bool(each.across)
        assert not each.function or callable(resolve_name(each.function))
    assert {each.across for each in ADVANTAGE_RULES.values()} == {"", "group", "game", "batch"}
    assert set(TOKEN_PARTS) == {"all", *PARTS}


def test_how_many_groups_a_rule_keeps_at_most() -> None:
    assert FILTER_RULES["top"].planned_groups(8, 0.25) == 2
    assert FILTER_RULES["top"].planned_groups(3, 0.25) == 1
    assert FILTER_RULES["random"].planned_groups(100, 0.29) == 29
    assert FILTER_RULES["top_p"].planned_groups(8, 0.25) == 8
    assert FILTER_RULES["top_k"].planned_groups(8, 3) == 3
