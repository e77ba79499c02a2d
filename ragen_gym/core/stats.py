"""Rates and means with intervals, pass@k and comparisons; most of them need scipy (extra ``bench``).

Episodes of one level resemble each other. So everything but ``wilson`` and ``mean_interval`` is clustered by level: the
levels are the independent samples, and the episodes of one level count together. Clusters of unequal sizes count as
``1 / sum(w**2)`` equal ones, where w are their shares of the values (Kish, Survey Sampling, 1965, section 8.2). Without
this, an interval is far too short when one cluster holds half of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

#: Confidence of every interval.
CONFIDENCE = 0.95

Values = Sequence[float] | npt.NDArray[np.floating[Any]]
Counts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its 95 % interval; ``n`` counts values."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval; infinite for fewer than two values."""
        return (self.high - self.low) / 2 if self.n > 1 else inf

    @property
    def significant(self) -> bool:
        """True if 0 lies outside the interval. An interval of zero width (equal values) is never significant."""
        return self.n > 1 and self.low < self.high and not self.low <= 0 <= self.high

    def to_dict(self, name: str) -> dict[str, float | None]:
        """``{name: value, "low": …, "high": …, "n": …}``; an infinite end is None, since JSON has no infinity."""
        low, high = (end if np.isfinite(end) else None for end in (self.low, self.high))
        return {name: self.value, "low": low, "high": high, "n": self.n}


@dataclass(frozen=True)
class Rate(Estimate):
    """A share of successes with its 95 % interval; ``n`` counts episodes.

    ``failed`` further episodes could not be finished and do not count; ``overflowed`` counted ones were cut by a token
    limit.
    """

    failed: int = 0
    overflowed: int = 0

    @property
    def rate(self) -> float:
        """The share, from 0 to 1."""
        return self.value

    def to_dict(self, name: str = "rate") -> dict[str, float | None]:
        """Like ``Estimate.to_dict``, plus ``failed`` and ``overflowed`` if not 0."""
        counts = {"failed": self.failed, "overflowed": self.overflowed}
        return super().to_dict(name) | {each: count for each, count in counts.items() if count}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Rate:
        """The rate that ``to_dict`` wrote."""
        counts = record.get("failed", 0), record.get("overflowed", 0)
        return cls(record["rate"], record["low"], record["high"], record["n"], *counts)

    def __str__(self) -> str:
        return f"{percent(self.value)} ({percent(self.low, '')} to {percent(self.high, '')})"


@dataclass(frozen=True)
class Difference:
    """Difference between two agents (mean of the first minus mean of the second) on the levels that both played.

    The interval from ``low`` to ``high`` holds the differences that the test does not reject; ``p`` is the p-value of
    the test of no difference.
    """

    value: float
    low: float
    high: float
    p: float
    levels: int
    confidence: float = CONFIDENCE

    @property
    def significant(self) -> bool:
        """True if zero is outside the interval, so the test rejects it."""
        return (self.low > 0 or self.high < 0) and self.p < 1 - self.confidence


def wilson(successes: float, n: int, *, failed: int = 0, overflowed: int = 0) -> Rate:
    """A share of independent successes with Wilson's score interval (Wilson, JASA 22, 1927; no continuity correction).

    ``successes``, from 0 to ``n``, may be a fraction, which the interval rounds. ``failed`` and ``overflowed`` as in
    ``Rate``.

    Raises:
        ValueError: ``n`` is below 1, or ``successes`` is not from 0 to ``n``.
    """
    whole = round(successes)
    if n < 1 or not 0 <= whole <= n:
        raise ValueError(f"{successes} successes of {n}: give n from 1 on, and successes from 0 to n.")
    z, share = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), whole / n
    centre = (2 * whole + z * z) / (2 * (n + z * z))
    half = z / (2 * (n + z * z)) * sqrt(4 * n * share * (1 - share) + z * z)
    low = 0.0 if whole == 0 else centre - half
    return Rate(successes / n, low, 1.0 if whole == n else centre + half, n, failed, overflowed)


def binomial_tail(least: int, n: int, chance: float) -> float:
    """The probability of at least ``least`` successes in ``n`` independent episodes with this success chance.

    If the chances differ and ``chance`` is their mean, this is an upper bound for ``least >= n * chance + 1``
    (Hoeffding, Annals of Mathematical Statistics 27, 1956).
    """
    if least <= 0 or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    ways, success, failure = lgamma(n + 1), log(chance), log1p(-chance)
    terms = (
        exp(ways - lgamma(k + 1) - lgamma(n - k + 1) + k * success + (n - k) * failure) for k in range(least, n + 1)
    )
    return min(sum(terms), 1.0)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of independent values, such as one a seed, with Student's t interval; unbounded for one value."""
    mean, n = fmean(values), len(values)
    if n < 2:
        return Estimate(mean, -inf, inf, n)
    half = float(scipy_stats().t.ppf((1 + confidence) / 2, n - 1)) * stdev(values) / sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def clustered_mean(values: Values, clusters: Sequence[Any]) -> Estimate:
    """The mean of values, floats (n,), with the t interval of its clustered standard error, by cluster of each value.

    It is unbounded for fewer than two clusters.
    """
    x = _checked(values, clusters)
    error, levels = _error(x, clusters)
    half = scipy_stats().t.ppf((1 + CONFIDENCE) / 2, levels - 1) * error if levels >= 2 else np.inf
    return Estimate(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def clustered_rate(values: Values, clusters: Sequence[Any], episodes: int) -> Estimate:
    """The mean of shares with Korn and Graubard's interval, which also holds near 0 and 1.

    This is Clopper and Pearson's exact interval for the number of independent episodes that would give the clustered
    standard error (Korn and Graubard, Survey Methodology 24, 1998). If all shares are 0, or all 1, that number is the
    number of clusters. With fewer than two clusters the interval is from 0 to 1.

    Args:
        values: one share from 0 to 1 for each instance, (n,), n from 1 on.
        clusters: the level of each instance, (n,).
        episodes: number of episodes behind the shares, an upper bound of the independent ones.
    """
    x = _checked(values, clusters)
    rate, levels = float(x.mean()), _error(x, clusters)[1]
    if levels < 2:
        return Estimate(rate, 0.0, 1.0, len(x))
    size, upper = effective_episodes(x, clusters, episodes), (1 + CONFIDENCE) / 2
    if 0 < rate < 1:
        size *= float(scipy_stats().t.ppf(upper, max(episodes - 1, 1)) / scipy_stats().t.ppf(upper, levels - 1)) ** 2
    hits = rate * size
    low = float(scipy_stats().beta.ppf(1 - upper, hits, size - hits + 1)) if rate > 0 else 0.0
    high = float(scipy_stats().beta.ppf(upper, hits + 1, size - hits)) if rate < 1 else 1.0
    return Estimate(rate, low, high, len(x))


def effective_episodes(values: Values, clusters: Sequence[Any], episodes: int) -> float:
    """Number of independent episodes that would give the clustered standard error of a mean of shares.

    If all shares are 0, or all 1, this is the number of clusters. Arguments as in ``clustered_rate``.
    """
    x = _checked(values, clusters)
    rate, (error, levels) = float(x.mean()), _error(x, clusters)
    if levels < 2 or not 0 < rate < 1:
        return levels
    return min(rate * (1 - rate) / error**2, episodes) if error > 0 else episodes


def pass_at(successes: Counts, rollouts: Counts, k: int) -> npt.NDArray[np.float64]:
    """Unbiased pass@k of each instance: the chance that k of its rollouts hold a success.

    The formula is 1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374, section 2.1).

    Args:
        successes: c, integers (instances,).
        rollouts: n, integers (instances,), each at least ``k``.
        k: from 1 on.
    """
    none = scipy_stats().hypergeom.pmf(0, rollouts, successes, k)
    return 1.0 - np.where(successes == 0, 1.0, none)  # exactly 1 where it is certain


def holm(p_values: Sequence[float]) -> list[float]:
    """The confidence of each of several tests that keeps the family-wise error rate at 5 %.

    By Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979), the smallest of m p-values is compared
    with 0.05 / m, the next with 0.05 / (m - 1), until one is not below its level; all others are compared with that
    level, and none is below it.
    """
    confidences, stopped = [CONFIDENCE] * len(p_values), False
    level = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not stopped:
            level = (1 - CONFIDENCE) / (len(p_values) - rank)
            stopped = p_values[place] >= level
        confidences[place] = 1 - level
    return confidences


def paired_difference(
    first: Values, second: Values, clusters: Sequence[Any], confidence: float = CONFIDENCE
) -> Difference:
    """The mean difference of two agents' shares on the same instances, clustered by level: one score test, inverted.

    The variance comes from the maximum-likelihood distribution of the levels' differences whose mean is the difference
    tested, with support on the observed values, -1 and 1 (empirical likelihood: Owen, Biometrika 75, 1988), times
    levels / (levels - 1). The interval holds the differences that the test does not reject, so the two always agree.
    For one episode on each level they are Tango's interval (Statistics in Medicine 17, 1998) and McNemar's test, which
    remain valid for few pairs and if no pair differs (Fagerland et al., ibid. 33, 2014).

    Args:
        first: shares from 0 to 1, (n,), n from 1 on.
        second: the same of the other agent, (n,), of the same instances.
        clusters: the level of each instance, (n,).
        confidence: of the interval, and of the test.
    """
    d = _checked(first, clusters) - _checked(second, clusters)
    if not np.all(np.abs(d) <= 1):
        raise ValueError("two agents are compared by their shares, from 0 to 1.")
    sums, counts = _by_cluster(d, clusters)
    value, levels = float(d.mean()), len(sums)
    if levels < 2:
        return Difference(value, -inf, inf, 1.0, levels, confidence)
    shares, weights = sums / counts, counts / counts.sum()
    n, z = 1 / float((weights**2).sum()), NormalDist().inv_cdf((1 + confidence) / 2)

    def distance(difference: float) -> float:
        """Distance between the difference and the observed one, in standard errors."""
        side = 1.0 if difference <= value else -1.0
        variance = _likeliest_variance(side * shares, weights, side * difference)
        gap = abs(value - difference)
        return gap / sqrt(variance / (n - 1)) if variance > 0 else inf if gap > 0 else 0.0

    low, high = (_bisect(lambda at: distance(at) <= z, end, value) for end in (-1.0, 1.0))
    return Difference(value, low, high, 2 * NormalDist().cdf(-distance(0.0)), levels, confidence)


def _likeliest_variance(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], mean: float) -> float:
    """Variance of the maximum-likelihood distribution on the values and -1 with this mean, at most the values' mean."""
    if mean <= -1:
        return 0.0
    gaps = values - mean
    # By Lagrange a value's share is weight / (1 + tilt * gap); -1 has one only at the largest tilt, 1 / (1 + mean).
    tilt = _bisect(lambda tilt: bool(weights @ (gaps / (1 + tilt * gaps)) <= 0), 0.0, 1 / (1 + mean))
    shares = weights / np.maximum(1 + tilt * gaps, 1e-12)
    return float(shares @ gaps**2 + max(1 - shares.sum(), 0.0) * (1 + mean) ** 2)


def _bisect(holds: Callable[[float], bool], outside: float, inside: float) -> float:
    """Bisect for the point between ``outside`` and ``inside`` at which a condition begins to hold."""
    if holds(outside):
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (outside, middle) if holds(middle) else (middle, inside)
    return inside


def against_random(rate: Estimate, random: float) -> tuple[bool, str]:
    """True if a rate differs significantly from random play's rate, and a sentence about it.

    Args:
        rate: as ``clustered_rate`` gives it.
        random: the rate of random play on the same levels, taken as exact.
    """
    agent = f"{percent(rate.value)} ({percent(rate.low, '')} to {percent(rate.high, '')})"
    if rate.low <= random <= rate.high:
        return False, f"{agent} does not differ significantly from random play, which scores {percent(random)}."
    return True, f"{agent} is {'above' if random < rate.low else 'below'} random play, which scores {percent(random)}."


def percent(share: float | None, unit: str = " %") -> str:
    """A share as a percentage, such as ``18.9 %``; a dash for None."""
    return "\N{EN DASH}" if share is None else f"{100 * share:z.1f}{unit}"


def _checked(values: Values, clusters: Sequence[Any]) -> npt.NDArray[np.float64]:
    if len(values) != len(clusters) or not len(values):
        raise ValueError(f"{len(values)} values and {len(clusters)} clusters: give one of each, one or more.")
    return np.asarray(values, np.float64)


def _by_cluster(
    values: npt.NDArray[np.float64], clusters: Sequence[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Sum and number of the values of each cluster, both floats (clusters,)."""
    # Not by an array of them: numpy rounds whole numbers of 64 bits to floats, and flattens tuples.
    places = {cluster: place for place, cluster in enumerate(sorted(set(clusters)))}
    which = np.array([places[cluster] for cluster in clusters])
    sums: npt.NDArray[np.float64] = np.bincount(which, values).astype(np.float64)
    return sums, np.bincount(which).astype(np.float64)


def _error(values: npt.NDArray[np.float64], clusters: Sequence[Any]) -> tuple[float, float]:
    """Clustered standard error of a mean and its effective number of clusters; 0 for fewer than two clusters.

    By the jackknife that leaves out one cluster at a time (Bell and McCaffrey, Survey Methodology 28, 2002).
    """
    sums, counts = _by_cluster(values - values.mean(), clusters)
    shares = counts / counts.sum()
    levels, groups = 1 / float((shares**2).sum()), len(counts)
    if levels < 2:
        return 0.0, levels
    left_out = sums / (1 - shares)
    return float(np.sqrt((groups - 1) / groups * (left_out**2).sum()) / len(values)), levels


def scipy_stats() -> Any:
    """``scipy.stats``.

    Raises:
        ImportError: scipy is missing; the message names the extra.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError("the statistics of benchmarks need scipy: run `pip install 'ragen-gym[bench]'`.") from error
    return stats
