"""A blocking call neither blocks the event loop nor outlives its timeout."""

from __future__ import annotations

import asyncio
import time

import pytest

from ragen_gym.core.threads import in_thread


def test_results_and_errors_are_passed_on() -> None:
    assert asyncio.run(in_thread(divmod, 7, 3)) == (2, 1)
    with pytest.raises(KeyError):
        asyncio.run(in_thread({}.__getitem__, "no", timeout=5.0))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(in_thread(next, iter(())))


def test_a_call_that_does_not_return_in_time_is_left_alone() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(in_thread(time.sleep, 0.5, timeout=0.05))
