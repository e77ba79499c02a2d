"""Early stopping by worked examples."""

from __future__ import annotations

import pytest

from ragen_agent.training.alarm import return_std_stop, validation_stop


def test_return_std_stop_by_hand() -> None:
    """The first ten average 1, so what counts is five in a row below 0.1."""
    start = [2.0, 0.0] * 5
    assert not return_std_stop([*start, *[0.09] * 4])
    assert return_std_stop([*start, *[0.09] * 5])
    assert not return_std_stop([*start, *[0.09] * 4, 0.1])
    assert return_std_stop([*start, 5.0, 0.1, *[0.09] * 5])
    assert not return_std_stop([0.0] * 40), "it never had any"
    assert return_std_stop([1.0, 0.4, 0.4], first=1, share=0.5, patience=2)


def test_validation_stop_by_hand() -> None:
    assert not validation_stop([0.0] * 4)
    assert validation_stop([0.3, *[0.009] * 5])
    assert not validation_stop([0.0, 0.0, 0.01, 0.0, 0.0])
    assert validation_stop([0.2, 0.04], floor=0.05, times=1)


def test_stops_refuse_what_they_cannot_decide() -> None:
    with pytest.raises(ValueError, match="need first >= 1"):
        return_std_stop([], patience=0)
    with pytest.raises(ValueError, match="need 0 < floor"):
        validation_stop([], floor=0.0)
