"""The speed of the environments, and the one timer of all measurements, ours and the peers'.

This file needs only the standard library, so that peers can run it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

__all__ = ["number", "rate", "report"]


def rate(play: Callable[[int], object], work: float, runs: int = 7, seconds: float = 0.4) -> tuple[float, float, float]:
    """Units of work in a second of CPU time: (median, lowest, highest) of ``runs`` runs.

    CPU time counts every thread of the process, so that a peer that uses several cores is not credited for them, and a
    neighbour on a shared machine disturbs less than it would disturb a clock on the wall.

    Args:
        play: ``play(k)`` does a piece of work k times.
        work: units in one piece.
        runs: runs to take the median of.
        seconds: the least CPU time of a run; long enough to hold many refills of a pool of levels.
    """
    play(1)
    count = 1
    while True:
        spent = _spent(play, count)
        if spent >= seconds:
            break
        count = max(2 * count, int(1.1 * count * seconds / max(spent, 1e-6))) if spent > seconds / 20 else 4 * count
    rates = [count * work / _spent(play, count) for _ in range(runs)]
    return statistics.median(rates), min(rates), max(rates)


def report(key: str, title: str, unit: str, measure: Callable[[], tuple[float, float, float]]) -> None:
    """Print what a peer's script measured, or why it could not, as a line of JSON."""
    said: dict[str, object] = {"key": key, "title": title, "unit": unit}
    try:
        said["rate"] = measure()
    except Exception as error:  # a peer may fail in any way, and the others are measured all the same
        said["skipped"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    print(json.dumps(said), flush=True)


def number(value: float) -> str:
    """Three digits and a unit: 34.6M, 560k, 18.3k, 0.42."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _spent(play: Callable[[int], object], count: int) -> float:
    before = time.process_time()
    play(count)
    return time.process_time() - before
