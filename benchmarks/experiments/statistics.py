"""Intervals over seeds. A seed is one sample: levels and luck within a run are averaged before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from scipy import stats

__all__ = ["CONFIDENCE", "Interval", "interval"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its interval by Student's t; of one value the interval is unbounded, `n` says how many there were."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2 if self.n > 1 else inf

    @property
    def told(self) -> bool:
        """Whether 0 lies outside. Equal values have no width, which no few seeds can justify: nothing is told then."""
        return self.n > 1 and self.low < self.high and not self.low <= 0 <= self.high


def interval(values: Sequence[float]) -> Interval:
    """The interval of at least one value."""
    mean, n = fmean(values), len(values)
    if n < 2:
        return Interval(mean, -inf, inf, n)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * stdev(values) / sqrt(n)
    return Interval(mean, mean - half, mean + half, n)
