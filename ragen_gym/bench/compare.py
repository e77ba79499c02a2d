"""The comparison of two runs of one suite, instance by instance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ragen_gym.bench.records import EpisodeRecord, InstanceCounts, count_by_instance, group_by_split
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.score import coverage
from ragen_gym.bench.suites import Suite
from ragen_gym.core.stats import Difference, paired_difference, percent

__all__ = ["compare", "compare_results"]


def compare_results(first: BenchResults, second: BenchResults) -> dict[str, Any]:
    """``compare`` of two runs of one suite, with the ``coverage`` of each as ``"runs": {"first", "second"}``."""
    compared = compare(first.suite, (first.agent, first.records), (second.agent, second.records))
    return {**compared, "runs": {"first": coverage(first), "second": coverage(second)}}


def compare(
    suite: Suite,
    first: tuple[str, Iterable[EpisodeRecord]],
    second: tuple[str, Iterable[EpisodeRecord]],
) -> dict[str, Any]:
    """The paired comparison of two runs, as plain JSON.

    ``{"suite", "hash", "first", "second", "splits": {name: {"first", "second", "difference": {value, low, high, p,
    levels, families}, "significant", "sentence"}}}``: the success rates of both on the instances that both played, the
    first's less the second's with the interval of ``paired_difference``, clustered by the family of the level, whether
    it is significant, and the same in words.
    Splits that one of them did not play are left out.

    Args:
        suite: what both played.
        first: the name of an agent, and its episodes.
        second: the same of the other.

    Raises:
        ValueError: a record is not of this suite.
    """
    (one, first_records), (other, second_records) = first, second
    played = group_by_split(suite, second_records)
    tallies = {split.name: count_by_instance(split, records) for split, records in played}
    splits = {}
    for split, records in group_by_split(suite, first_records):
        both = count_by_instance(split, records), tallies.get(split.name)
        if both[1] is not None and len(np.intersect1d(both[0].indices, both[1].indices)):
            splits[split.name] = _compare_split(one, other, both[0], both[1])
    return {"suite": suite.name, "hash": suite.hash, "first": one, "second": other, "splits": splits}


def _compare_split(one: str, other: str, first: InstanceCounts, second: InstanceCounts) -> dict[str, Any]:
    common = np.intersect1d(first.indices, second.indices)
    rates = []
    for counts in (first, second):
        of_common = np.isin(counts.indices, common)
        rates.append(counts.successes[of_common] / counts.rollouts[of_common])
    families = [family for index, family in zip(first.indices, first.families, strict=True) if index in common]
    difference = paired_difference(rates[0], rates[1], families)
    levels = len({level for index, level in zip(first.indices, first.levels, strict=True) if index in common})
    ends = (end if np.isfinite(end) else None for end in (difference.low, difference.high))
    return {
        "first": float(rates[0].mean()),
        "second": float(rates[1].mean()),
        "difference": {
            "value": difference.value,
            **dict(zip(("low", "high"), ends, strict=True)),
            "p": difference.p,
            "levels": levels,
            "families": difference.levels,
        },
        "significant": difference.significant,
        "sentence": _sentence(one, other, difference, levels),
    }


def _sentence(one: str, other: str, difference: Difference, levels: int) -> str:
    if not np.isfinite(difference.low):
        return f"One level is too few to compare {one} with {other}."
    above = difference.value >= 0
    low, high = (difference.low, difference.high) if above else (-difference.high, -difference.low)
    of = f"{levels} levels" + f" of {difference.levels} families" * (difference.levels < levels)
    ends = f"({percent(low, '')} to {percent(high, '')} points, {of})"
    if difference.value == 0:
        return f"{one} and {other} do not differ {ends}."
    if (points := percent(abs(difference.value), "")) == "0.0":
        verdict = f"{one} and {other} differ by less than 0.1 points {ends}"
    else:
        verdict = f"{one} is {'above' if above else 'below'} {other} by {points} points {ends}"
    return f"{verdict}." if difference.significant else f"{verdict}, which is not significant."
