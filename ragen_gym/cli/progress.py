"""How far a long command is, on standard error: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["tracked"]

T = TypeVar("T")

_SECONDS_BEFORE = 1.0
_SECONDS_A_FRAME = 0.2
_SECONDS_A_LINE = 15.0


def tracked(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items; how many of the total were taken is shown once that takes longer than a moment.

    Args:
        items: what is worked on, one after another.
        total: how many there will be.
        what: what they are, in the plural.
    """
    terminal = sys.stderr.isatty()
    pause = _SECONDS_A_FRAME if terminal else _SECONDS_A_LINE
    shown = time.monotonic() + (_SECONDS_BEFORE - pause if terminal else 0)
    written = False
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if now - shown >= pause:
                shown, written = now, True
                said = f"ragen-gym: {done:,} of {total:,} {what}"
                print(
                    f"\r\x1b[K{said}" if terminal else said, end="" if terminal else "\n", file=sys.stderr, flush=True
                )
            yield item
    finally:
        if terminal and written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
