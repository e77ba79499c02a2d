"""The vocabulary of failures."""

from __future__ import annotations

import pytest

from ragen_gym.core.failures import INFRASTRUCTURE, Failure, failure_kind


@pytest.mark.parametrize("failure", Failure)
def test_the_kind_of_a_recorded_failure(failure: Failure) -> None:
    assert failure_kind(failure) is failure_kind(f"{failure}: details: more") is failure
    assert (failure in INFRASTRUCTURE) == (failure is not Failure.CONTEXT_OVERFLOW)


def test_other_texts_are_no_failures() -> None:
    with pytest.raises(ValueError, match="no_answer"):
        failure_kind("no_answer")
