"""Rates and figures in words: no zero has a sign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent.report.rates import points
from ragen_agent.training.metrics import format_metric
from ragen_gym.bench.report.tables import number


@given(st.floats(-1e-4, 1e-4))
def test_no_zero_has_a_sign(value: float) -> None:
    assert number(value) == "0.00"
    assert points(value) == "0.0"


@pytest.mark.parametrize(
    ("value", "text"), [(-0.0, "0"), (0.0, "0"), (-0.25, "\N{MINUS SIGN}0.25"), (-3.0, "\N{MINUS SIGN}3")]
)
def test_figures(value: float, text: str) -> None:
    assert format_metric("return", value) == text


def test_differences_have_a_sign() -> None:
    assert [points(share) for share in (0.125, -0.02, 0.0004)] == ["+12.5", "\N{MINUS SIGN}2.0", "0.0"]
