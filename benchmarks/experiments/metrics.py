"""Measures of one run, from its folder alone.

Means at a run's start and end are over ``WINDOW`` iterations: one iteration of 256 episodes has a standard error of
about three points. A run that was stopped early, because nothing was left to learn from, keeps its last figures for the
iterations that it did not play.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from ragen_agent.report.runs import RecordedRun

__all__ = [
    "MEASURES",
    "WINDOW",
    "Measure",
    "measure",
    "series",
    "window_means",
]

WINDOW = 5


@dataclass(frozen=True)
class Measure:
    """A number of a run."""

    about: str  # what it is
    of: Callable[[RecordedRun], float | None]  # its value; None where a run has no such number
    rate: bool = False  # whether it is a share, printed in percent
    signed: bool = False  # whether it may be below 0


def measure(run: RecordedRun, name: str) -> float | None:
    """One number of ``MEASURES``."""
    return MEASURES[name].of(run)


def series(run: RecordedRun, name: str) -> list[float]:
    """A figure by iteration, to the planned end; empty where the run has no such figure."""
    values = [float(record[name]) for record in run.metrics if name in record]
    return values + values[-1:] * max(0, run.config.training.iterations - len(run.metrics))


def window_means(run: RecordedRun, name: str) -> list[float]:
    """Means of ``WINDOW`` iterations in a row, or fewer in a shorter run; empty where nothing has the figure."""
    values = series(run, name)
    width = min(WINDOW, len(values))
    return [fmean(values[end - width : end]) for end in range(width, len(values) + 1)] if width else []


def _rate(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: run.summary[name]["rate"] if name in run.summary else None


def _difference(first: str, second: str) -> Callable[[RecordedRun], float | None]:
    def of(run: RecordedRun) -> float | None:
        ends = measure(run, first), measure(run, second)
        return None if ends[0] is None or ends[1] is None else ends[0] - ends[1]

    return of


def _normalised(run: RecordedRun) -> float | None:
    after, random, optimal = (_rate(name)(run) for name in ("after", "random", "optimal"))
    if after is None or random is None or optimal is None or optimal <= random:
        return None
    return (after - random) / (optimal - random)


def _window(name: str, pick: Callable[[list[float]], float]) -> Callable[[RecordedRun], float | None]:
    def of(run: RecordedRun) -> float | None:
        means = window_means(run, name)
        return pick(means) if means else None

    return of


def _early(run: RecordedRun) -> float | None:
    """Mean success of the iterations 6 to 15: what is learned first. None of a run that was to be shorter."""
    values = series(run, "success")[5:15]
    return fmean(values) if len(values) == 10 else None


def _lost(means: list[float]) -> float:
    return (max(means) - means[-1]) / max(means) if max(means) else 0.0


def _sum(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: float(sum(record.get(name, 0) for record in run.metrics)) if run.metrics else None


#: All measures of a run, by name.
MEASURES = {
    "after": Measure("success on the fixed levels after reinforcement", _rate("after"), rate=True),
    "before": Measure("success on the fixed levels before it", _rate("before"), rate=True),
    "gain": Measure("after \N{MINUS SIGN} before", _difference("after", "before"), rate=True, signed=True),
    "random": Measure("random play on the same levels", _rate("random"), rate=True),
    "optimal": Measure("optimal play on the same levels", _rate("optimal"), rate=True),
    "normalised": Measure("after, from random play (0) to optimal play (100)", _normalised, rate=True, signed=True),
    "more_imitation": Measure("further imitation at the cost of the reinforcement", _rate("more_imitation"), rate=True),
    "over_imitation": Measure(
        "after \N{MINUS SIGN} more imitation", _difference("after", "more_imitation"), rate=True, signed=True
    ),
    "clean_warm_start": Measure("imitation of a faultless demonstrator", _rate("clean_warm_start"), rate=True),
    "over_clean": Measure(
        "after \N{MINUS SIGN} clean imitation", _difference("after", "clean_warm_start"), rate=True, signed=True
    ),
    "early": Measure("training success, iterations 6 to 15", _early, rate=True),
    "peak": Measure("the best training success", _window("success", max), rate=True),
    "final": Measure("the last training success", _window("success", lambda m: m[-1]), rate=True),
    "drop": Measure("peak \N{MINUS SIGN} final", _window("success", lambda m: max(m) - m[-1]), rate=True, signed=True),
    "lost": Measure(
        "share of the best training success that is lost at the end",
        _window("success", _lost),
        rate=True,
        signed=True,
    ),
    "entropy_start": Measure("entropy at the start", _window("entropy", lambda m: m[0])),
    "entropy_end": Measure("entropy at the end", _window("entropy", lambda m: m[-1])),
    "spread_start": Measure("return std at the start", _window("spread", lambda m: m[0])),
    "spread_end": Measure("return std at the end", _window("spread", lambda m: m[-1])),
    "grad_peak": Measure("the largest gradient norm", _window("grad_norm", max)),
    "invalid_end": Measure("malformed replies at the end", _window("invalid_rate", lambda m: m[-1]), rate=True),
    "repeated_end": Measure("repeated replies at the end", _window("repeated_rate", lambda m: m[-1]), rate=True),
    "reasoning_start": Measure("reasoning tokens at the start", _window("reasoning_tokens", lambda m: m[0])),
    "reasoning_end": Measure("reasoning tokens at the end", _window("reasoning_tokens", lambda m: m[-1])),
    "reasoning_change": Measure(
        "reasoning tokens, end \N{MINUS SIGN} start", _window("reasoning_tokens", lambda m: m[-1] - m[0])
    ),
    "iterations": Measure("iterations until it ended", lambda run: float(len(run.metrics)) if run.metrics else None),
    "trained_tokens": Measure("tokens trained on", _sum("train_tokens")),
    "seconds": Measure("seconds in all", lambda run: run.summary.get("wall_s")),
}
