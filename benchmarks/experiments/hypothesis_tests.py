"""Comparisons of arms over seeds: intervals by Student's t, and the verdicts on claims.

A verdict is a function of an interval, of the claim, and of a margin that was stated beforehand. Where the interval
excludes 0 the arms differ; where it lies within the margin they are equivalent (two one-sided tests, here at half the
usual chance of error), as "equal" claims, which only an interval outside the margin contradicts; else the question is
open, and the sentence says how large a difference would have been seen. Student's t is for differences that are about
normal: where half of them or more are equal, a rare large one may not have been seen yet, and the question is open too.
Of a collapse so rare that no seed has shown it no interval says anything.

An experiment with ``looks`` adds seeds until its claims are decided. Each look spends a part of the 5 % chance of error
in proportion to the seeds that it adds (the spending function alpha * t of Lan and DeMets, Biometrika 70, 1983), so
that by Bonferroni's inequality all intervals of a comparison hold together with 95 %, however often it is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite

from benchmarks.experiments.spec import MEASURES, Comparison, measure
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.stats import CONFIDENCE, Estimate, mean_interval

__all__ = [
    "AT_RANDOM",
    "EQUAL",
    "MISSING",
    "OPEN",
    "SUPPORTS",
    "TESTED",
    "VERDICTS",
    "Finding",
    "Runs",
    "by_chance",
    "compare",
    "conclusion",
    "decided_at_random",
    "end_at_random",
    "format_measure",
    "is_decided",
    "judge",
    "summarise",
    "verdict",
]

Runs = Mapping[str, Mapping[int, RecordedRun]]
"""Complete runs by arm and seed."""

SUPPORTS, AGAINST, EQUAL, OPEN = "supported", "contradicted", "equivalent", "open"
SHOWN, FIXED, MISSING = "seen", "fixed", "missing"
VERDICTS = (SUPPORTS, AGAINST, EQUAL, OPEN)
"""What can become of a claim where there are runs."""
TESTED = (*VERDICTS, SHOWN)
"""What follows from an interval."""
AT_RANDOM = "neither arm is significantly above random play"
NO_WIDTH = 1e-9
"""Intervals below this width are of equal values, but for rounding."""
FEW = 6
"""More undecided comparisons than these are counted in the conclusion, not named."""


@dataclass(frozen=True)
class Finding:
    """A comparison: the differences by seed, their interval, what it means for the claim, and that as a sentence.

    ``at_random``: see ``end_at_random``.
    """

    comparison: Comparison
    differences: Mapping[int, float]
    interval: Estimate | None
    verdict: str
    sentence: str
    at_random: bool = False


def summarise(runs: Runs, arm: str, name: str) -> Estimate | None:
    """A measure of an arm over its seeds; None where no run has it."""
    values = [value for run in runs.get(arm, {}).values() if (value := measure(run, name)) is not None]
    return mean_interval(values) if values else None


def compare(runs: Runs, comparison: Comparison) -> Finding:
    """Finding of the runs about the comparison; see ``judge``."""
    return judge(comparison, lambda arm, name: _values(runs, arm, name))


def judge(comparison: Comparison, measured: Callable[[str, str], Mapping[int, float]]) -> Finding:
    """The first arm's measure minus the second's, over the seeds that both have, and what it means for the claim.

    Arms of one seed share the levels, and the warm start too where they do not change what the model reads and writes.

    Args:
        comparison: of two arms, or of one with 0.
        measured: from an arm and the name of a measure, its values by seed.
    """
    arms = [arm for arm in (comparison.first, comparison.second) if arm]
    first, *others = (measured(arm, comparison.measure) for arm in arms)
    differences = {seed: first[seed] for seed in sorted(first)}
    for second in others:
        differences = {seed: value - second[seed] for seed, value in differences.items() if seed in second}
    kind = MEASURES[comparison.measure]
    margin = comparison.margin if kind.rate else 0.0
    found, result, seeds = None, MISSING, list(differences)
    for seeds, found in _intervals(differences, comparison.looks):
        result = verdict(found, comparison.claim, margin)
        if result not in (OPEN, SHOWN) and _mostly_equal([differences[seed] for seed in seeds]):
            result = OPEN
        if result != OPEN:
            break
    missed = found.half_width if found is not None else inf
    if found is not None and isfinite(found.low) and kind.rate and not kind.signed:
        found = replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))  # shares differ by no more
    if comparison.measure in ("random", "optimal") and found is not None:  # which no run decides, and no seed changes
        result = FIXED
    sentence = _sentence(comparison, found, result, _mostly_equal([differences[seed] for seed in seeds]), missed)
    ends = {arm: [value for seed, value in measured(arm, "normalised").items() if seed in seeds] for arm in arms}
    at_random = found is not None and isfinite(found.low) and end_at_random(comparison, ends)
    if at_random and result in TESTED:
        sentence = f"{sentence.removesuffix('.')}; {AT_RANDOM}."
    return Finding(comparison, differences, found, result, sentence, at_random)


def end_at_random(comparison: Comparison, normalised: Mapping[str, Sequence[float]]) -> bool:
    """True if it compares where arms end, and neither ends significantly above random play.

    Little follows from such a comparison for arms that learn.

    Args:
        comparison: of two arms.
        normalised: the measure of that name of each arm, over its seeds.
    """
    ends = [normalised.get(arm, ()) for arm in (comparison.first, comparison.second)]
    return comparison.measure == "end" and all(ends) and all(mean_interval(values).low <= 0 for values in ends)


def decided_at_random(findings: Sequence[Finding]) -> list[str]:
    """Number of the decided claims about arms at random play, as a sentence; none if there are none."""
    count = sum(f.at_random and is_decided(f) for f in findings if f.comparison.claim)
    return [f"In {count} of those decided {AT_RANDOM}, so little follows for arms that learn."] if count else []


def verdict(found: Estimate | None, claim: str, margin: float = 0.0) -> str:
    """Supported or contradicted by the interval, or equivalent; seen where nothing was claimed; open; or missing.

    Args:
        found: the difference.
        claim: one of ``CLAIMS``.
        margin: differences below it count as equal; 0 where nothing does.
    """
    if found is None:
        return MISSING
    if found.n < 2 or found.high - found.low < NO_WIDTH:
        return OPEN
    within = -margin < found.low and found.high < margin
    if claim == "equal":
        outside = found.low >= margin or found.high <= -margin
        return SUPPORTS if within else AGAINST if outside and found.significant else OPEN
    if not found.significant:
        return EQUAL if within else OPEN
    if not claim:
        return SHOWN
    return SUPPORTS if claim == ("higher" if found.value > 0 else "lower") else AGAINST


def is_decided(finding: Finding) -> bool:
    """True if more seeds are not needed: it claims nothing, or its claim is not open any more."""
    return not finding.comparison.claim or finding.verdict not in (OPEN, MISSING)


def _intervals(differences: Mapping[int, float], looks: Sequence[int]) -> Iterator[tuple[list[int], Estimate]]:
    """The seeds and the interval of each look whose seeds are all there; without looks, one over all seeds."""
    if not differences:
        return
    values = [*differences.values()]
    if not looks:
        yield [*differences], mean_interval(values)
        return
    found = False
    for before, look in pairwise((0, *looks)):
        if all(seed in differences for seed in range(look)):
            of_look = [differences[seed] for seed in range(look)]
            found = True
            yield [*range(look)], mean_interval(of_look, 1 - (1 - CONFIDENCE) * (look - before) / looks[-1])
    if not found:
        yield [*differences], Estimate(mean_interval(values).value, -inf, inf, len(values))


def _mostly_equal(differences: Sequence[float]) -> bool:
    """True if half of the differences or more, and at least two, are the same number."""
    most = max(Counter(round(each, 9) for each in differences).values(), default=0)
    return most > 1 and 2 * most >= len(differences)


def _listed(asked: Sequence[str]) -> str:
    """The comparisons, or how many they are, if that is more than ``FEW``."""
    return "; ".join(asked) if len(asked) <= FEW else f"{len(asked)} comparisons of the table"


def conclusion(findings: Sequence[Finding]) -> list[str]:
    """The verdicts in a few sentences; where many comparisons are undecided, how many."""
    said = []
    claimed = [finding for finding in findings if finding.comparison.claim]
    for kind, words in (
        (SUPPORTS, "At this scale the runs support"),
        (AGAINST, "At this scale the runs contradict"),
        (EQUAL, "At this scale the arms differ by less than the margin in"),
        (OPEN, "The runs leave open"),
        (MISSING, "There are no runs for"),
    ):
        chosen = [_asked(finding.comparison) for finding in claimed if finding.verdict == kind]
        if chosen:
            said.append(f"{words}: {_listed(chosen) if kind in (OPEN, MISSING) else '; '.join(chosen)}.")
    shown = [_asked(finding.comparison) for finding in findings if finding.verdict == SHOWN]
    if shown:
        said.append(f"Significant without a claim: {'; '.join(shown)}.")
    quiet = [_asked(f.comparison) for f in findings if not f.comparison.claim and f.verdict in (OPEN, EQUAL)]
    if quiet:
        said.append(f"Not significant, without a claim: {_listed(quiet)}.")
    said += decided_at_random(findings)
    said += by_chance(findings)
    return said


def by_chance(findings: Sequence[Finding]) -> list[str]:
    """Number of these comparisons that would be significant by chance, as a sentence; none of fewer than two."""
    tested = [finding for finding in findings if finding.verdict in TESTED]
    if len(tested) < 2:
        return []
    spent = sum((1 - CONFIDENCE) * _spent(finding) for finding in tested)
    if not spent:
        return []
    return [
        f"These are {len(tested)} comparisons, each with a {100 * (1 - CONFIDENCE):.0f} % chance of error over all its "
        f"looks where its differences are about normal (a collapse too rare for these seeds is in no interval): at the "
        f"looks so far about {spent:.1g} of them would be significant by chance where nothing differs."
    ]


def _spent(finding: Finding) -> float:
    """The share of the chance of error that the looks so far have spent."""
    found, looks = finding.interval, finding.comparison.looks
    if not looks or found is None:
        return 1.0
    return found.n / looks[-1] if isfinite(found.low) else 0.0


def format_measure(value: float, name: str, signed: bool = False) -> str:
    """A value of this measure as text: shares in percent, differences in points."""
    if MEASURES[name].rate:
        digits = 2 if signed and 0 < abs(value) < 0.0005 else 1  # an end of an interval is not shown as 0
        text = f"{100 * abs(value):.{digits}f}" + ("" if signed else " %")
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


def _sentence(comparison: Comparison, found: Estimate | None, result: str, mostly_equal: bool, missed: float) -> str:
    """What was found; a true difference of the size ``missed`` would be significant half the time."""
    if found is None:
        return "No seed has both."
    name, unit = comparison.measure, " points" if MEASURES[comparison.measure].rate else ""
    mean = format_measure(found.value, name, signed=True)
    if result == FIXED:
        return f"{mean}{unit}: a property of the levels and the budget, not of a run."
    if found.n < 2 or found.low == -inf or found.high - found.low < NO_WIDTH:
        return _without_interval(f"{mean}{unit}", found, comparison.looks)
    ends = f"{format_measure(found.low, name, signed=True)} to {format_measure(found.high, name, signed=True)}"
    look = f", look {comparison.looks.index(found.n) + 1} of {len(comparison.looks)}" if comparison.looks else ""
    half, margin = (format_measure(size, name, signed=True).removeprefix("+") for size in (missed, comparison.margin))
    which_way = "higher" if found.value > 0 else "lower"
    kind = MEASURES[name]
    undecided = f"not significant; a difference of {half}{unit} would be missed half the time"
    if kind.rate and not kind.signed and missed >= 1:
        undecided = "not significant; even the largest difference would be missed half the time or more"
    if found.significant:
        undecided = f"{which_way}, but perhaps by less than {margin}{unit}"
    if mostly_equal:
        undecided = "equal in half of the seeds or more, of which Student's interval says nothing"
    meaning = {
        OPEN: undecided,
        EQUAL: f"less than {margin}{unit} apart",
        SUPPORTS: f"{comparison.claim}, as claimed",
        AGAINST: f"{which_way}, where {comparison.claim} was claimed",
        SHOWN: f"{which_way}, where nothing was claimed",
    }[result]
    if result == SUPPORTS and comparison.claim == "equal":
        meaning = f"less than {margin}{unit} apart, as claimed"
    elif result in (SUPPORTS, AGAINST) and max(abs(found.low), abs(found.high)) < comparison.margin and unit:
        meaning += f", by less than {margin}{unit}"
    return f"{mean}{unit} [{ends}], {found.n} seeds{look}: {meaning}."


def _without_interval(mean: str, found: Estimate, looks: Sequence[int]) -> str:
    if found.n < 2:
        return f"{mean} on one seed, which says nothing about other seeds."
    if found.high - found.low < NO_WIDTH:
        return f"{mean} in each of {found.n} seeds: an interval without width, from which nothing is concluded."
    return f"{mean} on {found.n} seeds; the first look is at {looks[0]}."
