"""A blocking call neither blocks the event loop nor outlives its timeout."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from ragen_gym.core.threads import WAITING, in_thread, wait_passively


def test_results_and_errors_are_passed_on() -> None:
    assert asyncio.run(in_thread(divmod, 7, 3)) == (2, 1)
    with pytest.raises(KeyError):
        asyncio.run(in_thread({}.__getitem__, "no", timeout=5.0))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(in_thread(next, iter(())))


def test_a_call_that_does_not_return_in_time_is_left_alone() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(in_thread(time.sleep, 0.5, timeout=0.05))


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_has_set_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for before, after in (({name: "7"}, {name: "7"}), ({}, {"OMP_WAIT_POLICY": "PASSIVE"})):
        environment = dict(before)
        monkeypatch.setattr(os, "environ", environment)
        wait_passively()
        assert environment == after
