"""Narrowing of the intervals by pairing and by less noise of the evaluations: computed from the runs that are there.

The width of an interval over seeds is proportional to the std, over seeds, of the difference of two arms. What is
compared is that std for each way to take the difference, as a root mean square over the comparisons.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import NamedTuple

from benchmarks.experiments.hypothesis_tests import Finding, Runs
from benchmarks.experiments.spec import MOST_EVALUATIONS, end_row
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.stats import CONFIDENCE

__all__ = ["FEWEST_SEEDS", "Precision", "precisions"]

FEWEST_SEEDS = 4  # that both arms of a comparison must have


class Precision(NamedTuple):
    """One way to take the difference of two arms."""

    how: str
    deviation: float  # over seeds, root mean square over the comparisons
    comparisons: int

    def seeds(self, half_width: float) -> int:
        """About how many seeds give a 95 % interval of this half width, looked at once."""
        from scipy.stats import t

        return next(
            n for n in itertools.count(2) if t.ppf((1 + CONFIDENCE) / 2, n - 1) * self.deviation <= half_width * sqrt(n)
        )


def precisions(evaluated: Iterable[tuple[Runs, Finding]]) -> list[Precision]:
    """Of the comparisons of the measure ``end`` whose arms have ``FEWEST_SEEDS``; empty where there are none.

    The first is one evaluation of arms whose seeds are not paired; each further one narrows the interval by one means.
    The last is the limit of ever more evaluations: a variance a + b / n at n evaluations leaves a. Antithetic draws,
    which take noise from each evaluation, cannot narrow it further.
    """
    pairs = [pair for runs, finding in evaluated if (pair := _pairs(runs, finding))]
    if not pairs:
        return []
    most = min(_evaluations(run) for pair in pairs for both in pair for run in both)
    counts = sorted({1, *(count for count in (2, 4) if count < most), most})
    found = [Precision("one evaluation, seeds not paired", _deviation(map(_apart, pairs)), len(pairs))]
    for count in counts:
        how = "one evaluation" if count == 1 else f"mean of the last {count} evaluations"
        variances = (variance(_end(a, count) - _end(b, count) for a, b in pair) for pair in pairs)
        found.append(Precision(f"{how}, paired by seed", _deviation(variances), len(pairs)))
    if most > 1:
        once, often = (each.deviation**2 for each in (found[1], found[-1]))
        left = max(0.0, (most * often - once) / (most - 1))
        found.append(Precision("no noise of evaluations (extrapolated), paired by seed", sqrt(left), len(pairs)))
    return found


def _pairs(runs: Runs, finding: Finding) -> list[tuple[RecordedRun, RecordedRun]]:
    """The runs of both arms, seed by seed; empty where the comparison is of another kind or has too few."""
    comparison = finding.comparison
    if comparison.measure != "end" or not comparison.second:
        return []
    first, second = (runs.get(arm, {}) for arm in (comparison.first, comparison.second))
    shared = sorted(set(first) & set(second))
    return [(first[seed], second[seed]) for seed in shared] if len(shared) >= FEWEST_SEEDS else []


def _evaluations(run: RecordedRun) -> int:
    """How many of the last policies of a run were evaluated; those of a run that was stopped stand still."""
    if len(run.metrics) < run.config.training.iterations:
        return MOST_EVALUATIONS
    return 1 + sum(end_row(before) in run.summary for before in range(1, MOST_EVALUATIONS))


def _end(run: RecordedRun, count: int) -> float:
    """The mean over the last ``count`` evaluations."""
    rows = ["after", *(end_row(before) for before in range(1, count))]
    return fmean(run.summary[row]["rate"] for row in rows if row in run.summary)


def _apart(pair: Sequence[tuple[RecordedRun, RecordedRun]]) -> float:
    return sum(variance(_end(run, 1) for run in arm) for arm in zip(*pair, strict=True))


def _deviation(variances: Iterable[float]) -> float:
    return sqrt(fmean(variances))
