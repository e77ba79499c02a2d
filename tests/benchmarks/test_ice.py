"""The page on the ice's part of the variance: its shares by hand, and held to its records."""

from __future__ import annotations

import pytest

from benchmarks.ice import figures


def test_shares_by_hand() -> None:
    """Of four levels the filter keeps the third and the fourth: 1 + 5 of the policy's 1 + 2 + 1 + 5."""
    found = figures({"policy": [0.01, 0.02, 0.01, 0.05], "ice": [0.01, 0.0, 0.07, 0.03]})
    assert found["ice"] == pytest.approx(100 * 11 / 20)
    assert found["chosen"] == pytest.approx(100 * 10 / 16)
    assert found["filter"] == pytest.approx(100 * 6 / 9)
    assert found["best"] == pytest.approx(100 * 7 / 9)
    assert found["least_ice"] == pytest.approx(100 * 11 / 24), "0.01 more is the policy's on each level"
    assert found["least_filter"] == pytest.approx(100 * 6 / 11), "and on the two that are not kept"
    assert figures({"policy": [0.01, 0.02], "ice": [0.03, 0.06]})["half"] == pytest.approx(0.0)


def test_a_few_episodes_keep_levels_by_chance() -> None:
    """A level of variance 0 is never kept; of two with equal chances each is kept alike often, so half of 3 + 1."""
    found = figures({"policy": [0.15, 0.05], "ice": [0.05, 0.15]})
    assert found["sampled"] == pytest.approx(50, abs=2)
    assert found["levels"] == pytest.approx(1, abs=0.02)
    assert found["as_many"] == pytest.approx(75, abs=2), "both have the same std, and the first stands first"
    found, differ = figures({"policy": [0.2, 0.0], "ice": [0.0, 0.0]}), 1 - 0.7236**8 - 0.2764**8
    assert found["sampled"] == found["as_many"] == pytest.approx(100 * differ, abs=2)
    assert found["levels"] == pytest.approx(differ, abs=0.02), "groups whose episodes end alike keep no level"
