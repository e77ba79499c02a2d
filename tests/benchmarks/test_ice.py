"""The page on the ice's part of the variance: its shares by hand, and held to its records."""

from __future__ import annotations

import pytest

from benchmarks.ice import figures


def test_shares_by_hand() -> None:
    """Of four levels the filter keeps the third and the fourth: 1 + 5 of the policy's 1 + 2 + 1 + 5."""
    found = figures({"policy": [1.0, 2.0, 1.0, 5.0], "ice": [1.0, 0.0, 7.0, 3.0]})
    assert found["ice"] == pytest.approx(100 * 11 / 20)
    assert found["chosen"] == pytest.approx(100 * 10 / 16)
    assert found["filter"] == pytest.approx(100 * 6 / 9)
    assert found["best"] == pytest.approx(100 * 7 / 9)
    assert figures({"policy": [1.0, 2.0], "ice": [3.0, 6.0]})["half"] == pytest.approx(0.0)
