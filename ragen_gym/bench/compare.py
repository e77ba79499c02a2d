"""The comparison of two runs of one suite, instance by instance.

Success is compared on the instances that both runs played, all of them together and split by split. Every comparison
is one test, paired by instance and clustered by the level's family (``ragen_gym.core.stats.paired_difference``), with
Holm's correction among the splits. The interval of a difference has the confidence of its test, so it leaves 0 out
exactly where there is a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ragen_gym.bench.records import EpisodeRecord, InstanceCounts, count_by_instance, group_by_split
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.suites import Suite
from ragen_gym.core.stats import CONFIDENCE, Difference, holm, paired_difference, percent

#: Success of the two runs on each instance that both played, the level and the family of each.
Pairs = list[tuple[float, float, str, int]]


def compare_results(first: BenchResults, second: BenchResults) -> dict[str, Any]:
    """``compare`` of two runs of one suite, with how many episodes of each were asked for and are scored.

    ``"runs": {"first", "second": {"episodes", "asked"}}``; and ``"unscored": {"levels", "of"}``, the instances asked of
    both that the second run has a score of, and those of them that the first has none of: an agent that fails where it
    would lose is not compared there.
    """
    compared = compare(first.suite, (first.agent, first.records), (second.agent, second.records))
    scored = [{(record.split, record.index) for record in run.records if record.counted} for run in (first, second)]
    wanted = {(name, index) for name, rollouts in first.asked.items() for index, n in enumerate(rollouts) if n}
    asked = wanted & scored[1]
    runs = {
        which: {
            "episodes": sum(record.counted for record in run.records),
            "asked": sum(map(sum, run.asked.values())),
        }
        for which, run in (("first", first), ("second", second))
    }
    return {**compared, "unscored": {"levels": len(asked - scored[0]), "of": len(asked)}, "runs": runs}


def compare(
    suite: Suite,
    first: tuple[str, Iterable[EpisodeRecord]],
    second: tuple[str, Iterable[EpisodeRecord]],
) -> dict[str, Any]:
    """The paired comparison of two runs, as plain JSON.

    ``{"suite", "hash", "first", "second", "all", "splits": {name: …}}``. ``all``, which counts every instance alike,
    and each split hold the success of both runs over the instances that both played, ``first`` and ``second``;
    ``difference``: {value, low, high, p, confidence, levels, families}, the first's less the second's; ``verdict``:
    ``"better"``, ``"worse"`` or ``"unclear"``, of the first; and the same in words, ``sentence``. Splits that one of
    them did not play are left out; ``all`` is None where none is left.

    Args:
        suite: what both played.
        first: the name of an agent, and its episodes.
        second: the same of the other.

    Raises:
        ValueError: a record is not of this suite.
    """
    agents = first[0], second[0]
    one, other = (
        {split.name: count_by_instance(split, own) for split, own in group_by_split(suite, records)}
        for _, records in (first, second)
    )
    found = {name: _pairs(counts, other[name]) for name, counts in one.items() if name in other}
    pairs = {name: both for name, both in found.items() if both}
    plain = [_difference(both, CONFIDENCE) for both in pairs.values()]
    testable = [place for place, difference in enumerate(plain) if difference.levels > 1]
    confidences = dict(zip(testable, holm([plain[place].p for place in testable]), strict=True))
    together = [pair for both in pairs.values() for pair in both]
    return {
        "suite": suite.name,
        "hash": suite.hash,
        "first": agents[0],
        "second": agents[1],
        "all": _entry(agents, together, CONFIDENCE) if together else None,
        "splits": {
            name: _entry(agents, both, confidences.get(place, CONFIDENCE))
            for place, (name, both) in enumerate(pairs.items())
        },
    }


def _pairs(first: InstanceCounts, second: InstanceCounts) -> Pairs:
    rates = dict(zip(second.indices.tolist(), (second.successes / second.rollouts).tolist(), strict=True))
    own = zip(
        first.indices.tolist(),
        (first.successes / first.rollouts).tolist(),
        first.levels,
        first.families,
        strict=True,
    )
    return [(rate, rates[index], level, family) for index, rate, level, family in own if index in rates]


def _difference(pairs: Pairs, confidence: float) -> Difference:
    one, other, _, families = zip(*pairs, strict=True)
    return paired_difference(one, other, families, confidence)


def _entry(agents: tuple[str, str], pairs: Pairs, confidence: float) -> dict[str, Any]:
    difference = _difference(pairs, confidence)
    first, second = (float(np.mean([pair[which] for pair in pairs])) for which in (0, 1))
    levels = len({level for *_, level, _ in pairs})
    known = difference.levels > 1
    return {
        "first": first,
        "second": second,
        "difference": {
            "value": float(difference.value),
            "low": float(difference.low) if known else None,
            "high": float(difference.high) if known else None,
            "p": difference.p,
            "confidence": difference.confidence,
            "levels": levels,
            "families": difference.levels,
        },
        "verdict": ("better" if difference.value > 0 else "worse") if difference.significant else "unclear",
        "sentence": _sentence(*agents, difference, levels),
    }


def _sentence(one: str, other: str, difference: Difference, levels: int) -> str:
    if difference.levels < 2:
        few = "One level is" if levels == 1 else f"{levels} levels are"
        return f"{few} too few to compare {one} with {other}."
    above = difference.value >= 0
    low, high = (difference.low, difference.high) if above else (-difference.high, -difference.low)
    of = f"{levels} levels" + f" of {difference.levels} families" * (difference.levels < levels)
    ends = f"({percent(low, '')} to {percent(high, '')} points, {of})"
    if difference.value == 0:
        return f"{one} and {other} do not differ {ends}."
    by = percent(abs(difference.value), "")
    verdict = f"{one} is {'above' if above else 'below'} {other} by {by} points {ends}"
    return f"{verdict}." if difference.significant else f"{verdict}, which is not significant."


def worse(comparison: Mapping[str, Any], margin: float = 0.0) -> list[str]:
    """Sentences on where the first run is worse than the second.

    Args:
        comparison: see ``compare_results``.
        margin: percentage points that it may be worse by: a difference counts where its whole interval lies beyond.

    Raises:
        ValueError: nothing was compared.
    """
    if not comparison["splits"]:
        raise ValueError(
            f"{comparison['first']} and {comparison['second']} have no scored episode of one level, so neither can be "
            "called worse: play both runs on the same splits."
        )
    entries = {"all": comparison["all"], **comparison["splits"]}
    found = [
        f"{name}: {entry['sentence']}"
        for name, entry in entries.items()
        if entry["verdict"] == "worse" and -entry["difference"]["high"] > margin / 100
    ]
    missing = comparison["unscored"]
    if missing["levels"] > margin / 100 * missing["of"]:
        found.append(
            f"{comparison['first']} has no scored episode of {missing['levels']} of the {missing['of']} levels that "
            f"{comparison['second']} has one of: they failed or are missing."
        )
    return found
