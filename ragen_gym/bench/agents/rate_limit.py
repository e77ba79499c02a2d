"""When a request may go out: after what a server asked for, within a rate, and later after each failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ragen_gym.core.seeding import GOLDEN, mix

__all__ = ["RequestPacer", "backoff", "retry_after"]

_FIRST, _LONGEST = 0.5, 30.0
_WORD = 0xFFFFFFFFFFFFFFFF


class RequestPacer:
    """Lets all requests of an agent wait together.

    Args:
        per_minute: requests in a minute, evenly spaced, or None for as many as there are.
    """

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next = self._pause_ends = 0.0

    async def turn(self) -> None:
        """Wait until a request may go out; whom a pause meets while it waits gets another place after it."""
        while True:
            now = time.monotonic()
            mine = max(self._next, self._pause_ends, now)
            self._next = mine + self._gap
            if mine > now:
                await asyncio.sleep(mine - now)
            if self._pause_ends <= mine:
                return

    def pause(self, seconds: float) -> None:
        """Let no request out for so long."""
        self._pause_ends = max(self._pause_ends, time.monotonic() + seconds)


def backoff(failures: int, seed: int) -> float:
    """Seconds to wait after that many failures, from 1 on: 0.5, 1, 2, … up to 30, less up to half of it.

    The part that is taken off is decided by the seed, so that requests that failed together do not come back together.
    """
    share = (mix((seed + failures * GOLDEN) & _WORD) >> 11) / 2**53
    return min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 20)) * (1 - share / 2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait (RFC 9110, section 10.2.3), at least 0.5; None where it names no time to come.

    ``Retry-After-Ms``, which some servers send, is the more exact of the two.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value)
        if 0 < seconds < float("inf"):
            return max(_FIRST, seconds)
    return None


def _until(date: str) -> float:
    """Seconds to an HTTP date, 0 if it has gone by, -1 if it is none."""
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return -1.0
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
