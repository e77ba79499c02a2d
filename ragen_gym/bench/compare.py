"""The comparison of two runs of one suite, instance by instance.

Success, return and the share of malformed replies are each compared on the levels that both runs played, all levels
together and split by split. Every comparison is one test, paired by level and clustered by the level's family
(``paired_difference`` and, of returns, ``paired_mean_difference`` of ``ragen_gym.core.stats``). Holm's correction is
made among the tests of all levels together, and for each metric among those of single splits: in each of these groups
the chance of any false verdict is at most 5 %. The interval of a difference has the confidence of its test, so it
leaves 0 out exactly where there is a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.records import EpisodeRecord, InstanceCounts, count_by_instance, group_by_split
from ragen_gym.bench.results import BenchResults
from ragen_gym.bench.score import coverage
from ragen_gym.bench.suites import Split, Suite
from ragen_gym.core.stats import (
    CONFIDENCE,
    Difference,
    holm,
    paired_difference,
    paired_mean_difference,
    percent,
)
from ragen_gym.core.text import without_controls

__all__ = ["METRICS", "compare", "compare_results", "junit", "worse"]

#: What is compared, by its name in words.
METRICS = {"success": "success", "return": "return", "malformed": "malformed replies"}

Comparison = Mapping[str, Any]
Floats = npt.NDArray[np.float64]


def compare_results(first: BenchResults, second: BenchResults) -> dict[str, Any]:
    """``compare`` of two runs of one suite, with the ``coverage`` of each as ``"runs": {"first", "second"}``.

    ``"unscored": {split: {"levels", "of"}}`` counts the instances asked of both that the second run has a score of, and
    those of them that the first has none of: an agent that fails where it would lose is not compared there.
    """
    compared = compare(first.suite, (first.agent, first.records), (second.agent, second.records))
    scored = [{(record.split, record.index) for record in run.records if record.counted} for run in (first, second)]
    unscored = {}
    for name, rollouts in first.asked.items():
        asked = {(name, index) for index, number in enumerate(rollouts) if number} & scored[1]
        if lacking := asked - scored[0]:
            unscored[name] = {"levels": len(lacking), "of": len(asked)}
    return {**compared, "unscored": unscored, "runs": {"first": coverage(first), "second": coverage(second)}}


def compare(
    suite: Suite,
    first: tuple[str, Iterable[EpisodeRecord]],
    second: tuple[str, Iterable[EpisodeRecord]],
) -> dict[str, Any]:
    """The paired comparison of two runs, as plain JSON.

    ``{"suite", "hash", "first", "second", "tests": {"all", metric: …}, "all": {metric: …}, "splits": {name: {metric:
    …}}}``, the metrics those of ``METRICS``. Each holds the means of both runs over the instances that both played,
    ``first`` and ``second``; ``difference``: {value, low, high, p, confidence, levels, families}, the first's less the
    second's; ``range``, the largest difference that there can be, which for returns is the range of those seen;
    ``verdict``: ``"better"``, ``"worse"`` or ``"unclear"``, of the first; ``significant``; and the same in words,
    ``sentence``. ``tests`` counts the tests of all levels, and of splits those of each metric. ``all`` counts every
    instance alike. Splits that one of them did not play are left out, and metrics that one of them does not have.

    Args:
        suite: what both played.
        first: the name of an agent, and its episodes.
        second: the same of the other.

    Raises:
        ValueError: a record is not of this suite.
    """
    (one, first_records), (other, second_records) = first, second
    tallies = {split.name: count_by_instance(split, own) for split, own in group_by_split(suite, second_records)}
    values: dict[str, dict[str, _Values]] = {}
    for split, records in group_by_split(suite, first_records):
        counts = count_by_instance(split, records), tallies.get(split.name)
        if counts[1] is not None and len(np.intersect1d(counts[0].indices, counts[1].indices)):
            values[split.name] = _split_values(split, counts[0], counts[1])
    together = {
        metric: _Values.joined([own[metric] for own in values.values() if metric in own])
        for metric in METRICS
        if any(metric in own for own in values.values())
    }
    agents = one, other
    splits: dict[str, dict[str, Any]] = {name: {} for name in values}
    tests = {"all": _number(together.values())}
    for metric in together:
        of_metric = {name: own[metric] for name, own in values.items() if metric in own}
        tests[metric] = _number(of_metric.values())
        for (name, own), difference in zip(of_metric.items(), _tested([*of_metric.values()]), strict=True):
            splits[name][metric] = _entry(agents, metric, own, difference)
    of_all = zip(together.items(), _tested([*together.values()]), strict=True)
    return {
        "suite": suite.name,
        "hash": suite.hash,
        "first": one,
        "second": other,
        "tests": tests,
        "all": {metric: _entry(agents, metric, own, difference) for (metric, own), difference in of_all},
        "splits": splits,
    }


@dataclass(frozen=True)
class _Values:
    """A number of each instance that both runs played."""

    first: Floats
    second: Floats
    levels: tuple[str, ...]
    families: tuple[int, ...]
    shares: bool  # whether the numbers are shares, from 0 to 1

    @classmethod
    def joined(cls, parts: Sequence[_Values]) -> _Values:
        """All instances of several splits."""
        return cls(
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.second for part in parts]),
            tuple(level for part in parts for level in part.levels),
            tuple(family for part in parts for family in part.families),
            parts[0].shares,
        )

    @property
    def testable(self) -> bool:
        """True if there are two families or more."""
        return len(set(self.families)) > 1

    @property
    def range(self) -> float:
        """The largest difference that there can be, of returns the largest between any two seen."""
        return 1.0 if self.shares else float(np.ptp([*self.first, *self.second]))


def _split_values(split: Split, first: InstanceCounts, second: InstanceCounts) -> dict[str, _Values]:
    common = np.intersect1d(first.indices, second.indices)
    numbers: dict[str, list[dict[int, float]]] = {metric: [] for metric in METRICS}
    for counts in (first, second):
        indices = counts.indices.tolist()
        numbers["success"].append(dict(zip(indices, (counts.successes / counts.rollouts).tolist(), strict=True)))
        numbers["return"].append(dict(zip(indices, counts.returns.tolist(), strict=True)))
        numbers["malformed"].append({} if split.is_task else _malformed(counts.episodes))
    levels = dict(zip(first.indices.tolist(), first.levels, strict=True))
    found = {}
    for metric, (one, other) in numbers.items():
        both = [index for index in common.tolist() if index in one and index in other]
        if both:
            found[metric] = _Values(
                np.array([one[index] for index in both]),
                np.array([other[index] for index in both]),
                tuple(levels[index] for index in both),
                tuple(split.families[index] for index in both),
                metric != "return",
            )
    return found


def _malformed(episodes: Iterable[EpisodeRecord]) -> dict[int, float]:
    """The share of malformed replies of each instance; none of an instance without replies."""
    problems: dict[int, list[bool]] = {}
    for record in episodes:
        found = [turn.problem is not None for turn in record.turns if turn.reply is not None]
        problems.setdefault(record.index, []).extend(found)
    return {index: sum(found) / len(found) for index, found in problems.items() if found}


def _number(values: Iterable[_Values]) -> int:
    return sum(each.testable for each in values)


def _tested(values: Sequence[_Values]) -> list[Difference]:
    """The difference of each, with an interval of the confidence that Holm's correction gives its test."""

    def difference(of: _Values, confidence: float) -> Difference:
        test = paired_difference if of.shares else paired_mean_difference
        return test(of.first, of.second, of.families, confidence)

    plain = [difference(each, CONFIDENCE) for each in values]
    tested = [place for place, each in enumerate(values) if each.testable]
    confidences = dict(zip(tested, holm([plain[place].p for place in tested]), strict=True))
    return [
        found if confidences.get(place, CONFIDENCE) == CONFIDENCE else difference(values[place], confidences[place])
        for place, found in enumerate(plain)
    ]


def _entry(agents: tuple[str, str], metric: str, values: _Values, difference: Difference) -> dict[str, Any]:
    levels = len(set(values.levels))
    ends = (float(end) if np.isfinite(end) else None for end in (difference.low, difference.high))
    verdict = "unclear"
    if difference.significant:
        verdict = "better" if (difference.value > 0) == (metric != "malformed") else "worse"
    return {
        "first": float(values.first.mean()),
        "second": float(values.second.mean()),
        "difference": {
            "value": float(difference.value),
            **dict(zip(("low", "high"), ends, strict=True)),
            "p": difference.p,
            "confidence": difference.confidence,
            "levels": levels,
            "families": difference.levels,
        },
        "range": values.range,
        "verdict": verdict,
        "significant": difference.significant,
        "sentence": _sentence(*agents, difference, levels, metric),
    }


def _sentence(one: str, other: str, difference: Difference, levels: int, metric: str = "success") -> str:
    if not (np.isfinite(difference.low) and np.isfinite(difference.high)):
        few = "One level is" if levels == 1 else f"{levels} levels are"
        return f"{few} too few to compare {one} with {other}."
    above = difference.value >= 0
    low, high = (difference.low, difference.high) if above else (-difference.high, -difference.low)
    of = f"{levels} levels" + f" of {difference.levels} families" * (difference.levels < levels)
    about = "" if metric == "success" else f" in {METRICS[metric]}"
    if metric == "return":
        shown, unit = [f"{end:z.3f}" for end in (low, high, abs(difference.value))], ""
    else:
        shown, unit = [percent(end, "") for end in (low, high, abs(difference.value))], " points"
    ends = f"({shown[0]} to {shown[1]}{unit}, {of})"
    if difference.value == 0:
        return f"{one} and {other} do not differ{about} {ends}."
    if float(shown[2]) == 0:
        least = "0.001" if metric == "return" else "0.1 points"
        verdict = f"{one} and {other} differ{about} by less than {least} {ends}"
    else:
        verdict = f"{one} is {'above' if above else 'below'} {other}{about} by {shown[2]}{unit} {ends}"
    return f"{verdict}." if difference.significant else f"{verdict}, which is not significant."


def worse(comparison: Comparison, margin: float = 0.0) -> dict[tuple[str, str], str]:
    """Entries in which the first run is worse than the second, with the reason in words, by (split or "all", metric).

    Args:
        comparison: see ``compare_results``.
        margin: percentage points that it may be worse by: a difference counts where its whole interval lies beyond.
            For returns, hundredths of their range.

    Raises:
        ValueError: nothing was compared.
    """
    if not comparison["splits"]:
        raise ValueError(
            f"{comparison['first']} and {comparison['second']} have no scored episode of one level, so neither can be "
            "called worse: play both runs on the same splits."
        )
    found = {}
    for name, metric, entry in _entries(comparison):
        room, difference = margin / 100 * entry["range"], entry["difference"]
        if entry["verdict"] == "worse" and min(abs(difference["low"]), abs(difference["high"])) > room:
            found[name, metric] = f"{name}: {entry['sentence']}"
    for name, missing in comparison.get("unscored", {}).items():
        if missing["levels"] > margin / 100 * missing["of"]:
            found[name, "scored"] = (
                f"{name}: {comparison['first']} has no scored episode of {missing['levels']} of the {missing['of']} "
                f"levels that {comparison['second']} has one of: they failed or are missing."
            )
    return found


def _entries(comparison: Comparison) -> Iterable[tuple[str, str, dict[str, Any]]]:
    for name, metrics in (("all", comparison["all"]), *comparison["splits"].items()):
        yield from ((name, metric, entry) for metric, entry in metrics.items())


def junit(comparison: Comparison, margin: float = 0.0) -> bytes:
    """A comparison as JUnit XML: a test case for each metric of all levels and of each split; ``worse`` fails it."""
    failures = {place: without_controls(reason) for place, reason in worse(comparison, margin).items()}
    cases = [(name, metric, entry["sentence"]) for name, metric, entry in _entries(comparison)]
    scored = dict.fromkeys([*comparison["splits"], *comparison.get("unscored", {})])
    cases += [(name, "scored", "") for name in scored]
    suite = ElementTree.Element(
        "testsuite",
        name=without_controls(f"{comparison['suite']}: {comparison['first']} against {comparison['second']}"),
        tests=str(len(cases)),
        failures=str(len(failures)),
        errors="0",
        skipped="0",
    )
    for name, metric, sentence in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=without_controls(f"{comparison['suite']}.{name}"), name=metric
        )
        if reason := failures.get((name, metric)):
            ElementTree.SubElement(case, "failure", message=reason, type="worse").text = reason
        elif sentence:
            ElementTree.SubElement(case, "system-out").text = without_controls(sentence)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    xml: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"
