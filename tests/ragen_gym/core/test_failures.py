"""The vocabulary of failures."""

from __future__ import annotations

import pytest

from ragen_gym.core.failures import INFRASTRUCTURE, Failure, failure_kind, memory_was_full


@pytest.mark.parametrize("failure", Failure)
def test_the_kind_of_a_recorded_failure(failure: Failure) -> None:
    assert failure_kind(failure) is failure_kind(f"{failure}: details: more") is failure
    assert (failure in INFRASTRUCTURE) == (failure is not Failure.CONTEXT_OVERFLOW)


def test_other_texts_are_no_failures() -> None:
    with pytest.raises(ValueError, match="no_answer"):
        failure_kind("no_answer")


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("CUDA error: out of memory", True),
        ("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory", True),
        ("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("unsupported memory format option ChannelsLast", False),
    ],
)
def test_a_full_memory_is_no_error_of_programming(said: str, full: bool) -> None:
    assert memory_was_full(said) is full
