"""Comparisons of arms over seeds: intervals by Student's t, and the verdicts on claims.

A verdict is a function of an interval and of the claim. Where the interval holds 0 the difference is not significant,
and the sentence says how large a difference the runs could have shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.experiments.spec import MEASURES, Comparison, measure
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.stats import CONFIDENCE, Estimate, mean_interval

__all__ = ["TESTED", "VERDICTS", "Finding", "Runs", "compare", "conclusion", "format_measure", "summarise", "verdict"]

Runs = Mapping[str, Mapping[int, RecordedRun]]
"""Complete runs by arm and seed."""

SUPPORTS, AGAINST, OPEN = "supported", "contradicted", "open"
SHOWN, FIXED, MISSING = "seen", "fixed", "missing"
VERDICTS = (SUPPORTS, AGAINST, OPEN)
"""What can become of a claim where there are runs."""
TESTED = (*VERDICTS, SHOWN)
"""What follows from an interval."""


@dataclass(frozen=True)
class Finding:
    """A comparison: the differences by seed, their interval, what it means for the claim, and that as a sentence."""

    comparison: Comparison
    differences: Mapping[int, float]
    interval: Estimate | None
    verdict: str
    sentence: str


def summarise(runs: Runs, arm: str, name: str) -> Estimate | None:
    """A measure of an arm over its seeds; None where no run has it."""
    values = [value for run in runs.get(arm, {}).values() if (value := measure(run, name)) is not None]
    return mean_interval(values) if values else None


def compare(runs: Runs, comparison: Comparison) -> Finding:
    """The first arm's measure minus the second's, over the seeds that both have.

    Arms of one seed share the levels, and the warm start too where they do not change what the model reads and writes.
    """
    first, second = (_values(runs, arm, comparison.measure) for arm in (comparison.first, comparison.second))
    if comparison.second:
        differences = {seed: first[seed] - second[seed] for seed in sorted(set(first) & set(second))}
    else:
        differences = first
    found = mean_interval(list(differences.values())) if differences else None
    known = comparison.measure in ("random", "optimal")  # which no run decides, and no seed changes
    result = FIXED if known and found is not None else verdict(found, comparison.claim)
    return Finding(comparison, differences, found, result, _sentence(comparison, found, result))


def verdict(found: Estimate | None, claim: str) -> str:
    """Supported or contradicted by the interval, seen where nothing was claimed; open; or missing.

    That two things are equal is never supported: an interval that holds 0 leaves it open how far they are apart.
    """
    if found is None:
        return MISSING
    if not found.significant:
        return OPEN
    if not claim:
        return SHOWN
    return SUPPORTS if claim == ("higher" if found.value > 0 else "lower") else AGAINST


def conclusion(findings: Sequence[Finding]) -> list[str]:
    """The verdicts in a few sentences."""
    said = []
    claimed = [finding for finding in findings if finding.comparison.claim]
    for kind, words in (
        (SUPPORTS, "At this scale the runs support"),
        (AGAINST, "At this scale the runs contradict"),
        (OPEN, "The runs leave open (the interval holds 0, or has no width)"),
        (MISSING, "There are no runs for"),
    ):
        chosen = [_asked(finding.comparison) for finding in claimed if finding.verdict == kind]
        if chosen:
            said.append(f"{words}: {'; '.join(chosen)}.")
    shown = [_asked(finding.comparison) for finding in findings if finding.verdict == SHOWN]
    if shown:
        said.append(f"Significant without a claim: {'; '.join(shown)}.")
    quiet = [_asked(f.comparison) for f in findings if not f.comparison.claim and f.verdict == OPEN]
    if quiet:
        said.append(f"Not significant, without a claim: {'; '.join(quiet)}.")
    tested = sum(finding.verdict in TESTED for finding in findings)
    if tested > 1:
        said.append(
            f"These are {tested} comparisons at {100 * CONFIDENCE:.0f} % each: about "
            f"{(1 - CONFIDENCE) * tested:.1g} of them would be significant by chance where there is no difference."
        )
    return said


def format_measure(value: float, name: str, signed: bool = False) -> str:
    """A value of this measure as text: shares in percent, differences in points."""
    if MEASURES[name].rate:
        text = f"{100 * abs(value):.1f}" + ("" if signed else " %")
    else:
        text = f"{abs(value):.3g}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    negative = value < 0 and text.strip("0.% ") != ""
    return ("\N{MINUS SIGN}" if negative else "+" if signed else "") + text


def _values(runs: Runs, arm: str, name: str) -> dict[int, float]:
    found = {seed: measure(run, name) for seed, run in runs.get(arm, {}).items()}
    return {seed: value for seed, value in sorted(found.items()) if value is not None}


def _asked(comparison: Comparison) -> str:
    versus = f" against {comparison.second}" if comparison.second else ""
    return f'"{comparison.asks}" ({comparison.measure} of {comparison.first}{versus})'


def _sentence(comparison: Comparison, found: Estimate | None, result: str) -> str:
    if found is None:
        return "No seed has both."
    name, unit = comparison.measure, " points" if MEASURES[comparison.measure].rate else ""
    mean = format_measure(found.value, name, signed=True)
    if result == FIXED:
        return f"{mean}{unit}: a property of the levels and the budget, not of a run."
    if found.n < 2:
        return f"{mean}{unit} on one seed, which says nothing about other seeds."
    ends = f"{format_measure(found.low, name, signed=True)} to {format_measure(found.high, name, signed=True)}"
    measured = f"{mean}{unit} [{ends}], {found.n} seeds"
    if found.low == found.high:
        return f"{mean}{unit} in each of {found.n} seeds: an interval without width, from which nothing is concluded."
    if result == OPEN:
        equal = (
            " The claim is that they are equal, which an interval cannot prove." if comparison.claim == "equal" else ""
        )
        half = format_measure(found.half_width, name, signed=True).removeprefix("+")
        return f"{measured}: not significant; a difference of {half}{unit} would be missed half the time.{equal}"
    direction = "higher" if found.value > 0 else "lower"
    against = {
        SUPPORTS: "as claimed",
        AGAINST: f"where {comparison.claim} was claimed",
        SHOWN: "where nothing was claimed",
    }[result]
    return f"{measured}: {direction}, {against}."
