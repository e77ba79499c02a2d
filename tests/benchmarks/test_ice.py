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
    assert figures({"policy": [0.01, 0.02], "ice": [0.03, 0.06]})["half"] == pytest.approx(0.0)


def test_a_few_episodes_keep_levels_by_chance() -> None:
    """A level of variance 0 is never kept; of two with equal chances each is kept alike often, so half of 3 + 1."""
    found = figures({"policy": [0.15, 0.05], "ice": [0.05, 0.15]})
    assert found["sampled"] == pytest.approx(50, abs=2)
    assert figures({"policy": [0.2, 0.0], "ice": [0.0, 0.0]})["sampled"] == pytest.approx(
        100 * (1 - 0.7236**8 - 0.2764**8), abs=2
    )
