"""What one run comes to, in numbers, from its folder alone.

Means at a run's start and end are over `WINDOW` iterations: one iteration of 256 episodes has a standard error of
about three points. A run that stopped by itself, because nothing was left to learn from, stands still from then on: its
last figures count for the iterations that it did not play.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

__all__ = [
    "MEASURES",
    "WINDOW",
    "Measure",
    "Played",
    "course",
    "measure",
    "read_run",
    "window_means",
]

WINDOW = 5


@dataclass(frozen=True)
class Played:
    """A run as it lies in its folder.

    `rates`: those of `summary.json`. `planned`: the iterations that it was told to play.
    """

    path: Path
    rates: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    planned: int = 0

    @property
    def whole(self) -> bool:
        """Whether it was measured at its end."""
        return "after" in self.rates


@dataclass(frozen=True)
class Measure:
    """`of` says None where a run has no such number.

    `rate`: it is a share and is printed in percent. `signed`: it may be below 0.
    """

    about: str
    of: Callable[[Played], float | None]
    rate: bool = False
    signed: bool = False


def read_run(path: Path) -> Played:
    """The run of a folder, finished or not; raises a ValueError if a file of it is damaged."""
    folder, config = RunFolder.reopen(path)
    return Played(path, folder.read_summary(), read_json_lines(folder.metrics), config.training.iterations)


def measure(run: Played, name: str) -> float | None:
    """One number of `MEASURES`."""
    return MEASURES[name].of(run)


def course(run: Played, name: str) -> list[float]:
    """A figure by iteration, to the planned end; empty where nothing has it."""
    series = [float(record[name]) for record in run.metrics if name in record]
    return series + series[-1:] * max(0, run.planned - len(run.metrics))


def window_means(run: Played, name: str) -> list[float]:
    """Means of `WINDOW` iterations in a row, or fewer in a shorter run; empty where nothing has the figure."""
    series = course(run, name)
    width = min(WINDOW, len(series))
    return [fmean(series[end - width : end]) for end in range(width, len(series) + 1)] if width else []


def _rate(name: str) -> Callable[[Played], float | None]:
    return lambda run: run.rates[name]["rate"] if name in run.rates else None


def _difference(first: str, second: str) -> Callable[[Played], float | None]:
    def of(run: Played) -> float | None:
        ends = measure(run, first), measure(run, second)
        return None if ends[0] is None or ends[1] is None else ends[0] - ends[1]

    return of


def _normalised(run: Played) -> float | None:
    after, random, optimal = (_rate(name)(run) for name in ("after", "random", "optimal"))
    if after is None or random is None or optimal is None or optimal <= random:
        return None
    return (after - random) / (optimal - random)


def _window(name: str, pick: Callable[[list[float]], float]) -> Callable[[Played], float | None]:
    def of(run: Played) -> float | None:
        means = window_means(run, name)
        return pick(means) if means else None

    return of


def _early(run: Played) -> float | None:
    """Mean success of the iterations 6 to 15: what is learned first. None of a run that was to be shorter."""
    series = course(run, "success")[5:15]
    return fmean(series) if len(series) == 10 else None


def _lost(means: list[float]) -> float:
    return (max(means) - means[-1]) / max(means) if max(means) else 0.0


def _sum(name: str) -> Callable[[Played], float | None]:
    return lambda run: float(sum(record.get(name, 0) for record in run.metrics)) if run.metrics else None


#: All measures of a run, by name.
MEASURES = {
    "after": Measure("success on the fixed levels after reinforcement", _rate("after"), rate=True),
    "before": Measure("success on the fixed levels before it", _rate("before"), rate=True),
    "gain": Measure("after less before", _difference("after", "before"), rate=True, signed=True),
    "random": Measure("random play on the same levels", _rate("random"), rate=True),
    "optimal": Measure("optimal play on the same levels", _rate("optimal"), rate=True),
    "normalised": Measure("after, from random play (0) to optimal play (100)", _normalised, rate=True, signed=True),
    "more_imitation": Measure("more imitation at the cost of the reinforcement", _rate("more_imitation"), rate=True),
    "over_imitation": Measure(
        "after less more imitation", _difference("after", "more_imitation"), rate=True, signed=True
    ),
    "clean_warm_start": Measure("imitation of a faultless demonstrator", _rate("clean_warm_start"), rate=True),
    "over_clean": Measure(
        "after less clean imitation", _difference("after", "clean_warm_start"), rate=True, signed=True
    ),
    "early": Measure("training success, iterations 6 to 15", _early, rate=True),
    "peak": Measure("the best training success", _window("success", max), rate=True),
    "final": Measure("the last training success", _window("success", lambda m: m[-1]), rate=True),
    "drop": Measure("peak less final", _window("success", lambda m: max(m) - m[-1]), rate=True, signed=True),
    "lost": Measure(
        "the share of the best training success that is lost at the end",
        _window("success", _lost),
        rate=True,
        signed=True,
    ),
    "entropy_start": Measure("entropy at the start", _window("entropy", lambda m: m[0])),
    "entropy_end": Measure("entropy at the end", _window("entropy", lambda m: m[-1])),
    "spread_start": Measure("spread at the start", _window("spread", lambda m: m[0])),
    "spread_end": Measure("spread at the end", _window("spread", lambda m: m[-1])),
    "grad_peak": Measure("the largest gradient norm", _window("grad_norm", max)),
    "invalid_end": Measure("malformed replies at the end", _window("invalid_rate", lambda m: m[-1]), rate=True),
    "repeated_end": Measure("repeated replies at the end", _window("repeated_rate", lambda m: m[-1]), rate=True),
    "reasoning_start": Measure("tokens of reasoning at the start", _window("reasoning_tokens", lambda m: m[0])),
    "reasoning_end": Measure("tokens of reasoning at the end", _window("reasoning_tokens", lambda m: m[-1])),
    "reasoning_change": Measure(
        "tokens of reasoning, end less start", _window("reasoning_tokens", lambda m: m[-1] - m[0])
    ),
    "iterations": Measure("iterations until it ended", lambda run: float(len(run.metrics)) if run.metrics else None),
    "trained_tokens": Measure("tokens that went forward and backward", _sum("train_tokens")),
    "seconds": Measure("seconds in all", lambda run: run.rates.get("wall_s")),
}
