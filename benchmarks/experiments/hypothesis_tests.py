"""Comparisons of arms over seeds: intervals by Student's t, verdicts on claims, and their correction for many tests.

A verdict is a function of an interval, of the claim, and of a margin that was stated beforehand. Where the interval
excludes 0 the arms differ. Where it lies within the margin they are equivalent (two one-sided tests, here at half the
usual chance of error), and one arm compared with 0 is close to it. "Equal" claims are contradicted by an interval
outside the margin alone. Else the question is open, and the sentence gives the difference that would have been seen.
Student's t is for differences that are about normal: where half of them or more are equal, a rare large one may not
have been seen yet, and the question is open too. No interval covers a collapse so rare that no seed has shown it.

Claims are about arms that learn. Where no arm did (see ``compare``), a difference is neither for nor against its claim,
and a small one is open.

Experiments with ``looks`` are compared at planned numbers of seeds; claims may stay open at fewer than the last. Each
look spends a part of the 5 % chance of error in proportion to the seeds that it adds (the spending function alpha * t
of Lan and DeMets, Biometrika 70, 1983), so that by Bonferroni's inequality all intervals of a comparison hold together
with 95 %.
The interval is that of the last look that is complete, also where another comparison asked for its seeds. A difference
found before the last look is on average too large, since a smaller one would have been open.

``adjust`` corrects the directional verdicts for the number of comparisons (Benjamini and Hochberg, Journal of the Royal
Statistical Society B 57, 1995): of those that it keeps, 5 % are wrong on average, and it makes the others open. This
holds for tests that are independent or positively dependent; the correction of Benjamini and Yekutieli (Annals of
Statistics 29, 2001) holds for all. Equivalences are not corrected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import fmean, median, stdev

import numpy as np
from scipy.stats import false_discovery_control
from scipy.stats import t as students_t

from benchmarks.experiments.spec import MEASURES, Comparison, measure
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.stats import CONFIDENCE, Estimate, mean_interval

Runs = Mapping[str, Mapping[int, RecordedRun]]
"""Complete runs by arm and seed."""

SUPPORTS, AGAINST, EQUAL, CLOSE = "supported", "contradicted", "equivalent", "close to 0"
UNLEARNED, OPEN, SHOWN, MISSING = "without learning", "open", "seen", "missing"
DECIDED = (SUPPORTS, AGAINST, EQUAL, CLOSE)
VERDICTS = (*DECIDED, UNLEARNED, OPEN)
"""What can become of a claim where there are runs."""
TOO_LARGE = "decided before the last look, so the difference is likely too large"
BY_CHANCE = "decided before the last look, so chance may have helped"
NO_WIDTH = 1e-9
"""Intervals below this width are of equal values, but for rounding."""


@dataclass(frozen=True)
class Finding:
    """A comparison: the differences by seed, their interval, and what it means for the claim."""

    comparison: Comparison
    differences: Mapping[int, float]
    interval: Estimate | None
    verdict: str
    reason: str  # why, without the numbers of the interval
    tokens: float | None = None  # that the first arm trained on, as a multiple of the second's
    p: float | None = None  # of no difference, two-sided, over all looks so far; None before the first look
    adjusted: float | None = None  # p after the correction of ``adjust``
    adjusted_by: float | None = None  # p after the correction of Benjamini and Yekutieli

    @property
    def decision(self) -> str:
        """The reason, and the tokens trained on where one arm has twice as many as the other or more."""
        if self.tokens is None or 0.5 < self.tokens < 2:
            return self.reason
        return f"{self.reason}; trained on {self.tokens:.2g} times as many tokens"

    @property
    def directional(self) -> bool:
        """True if the arms were found to differ."""
        return self.verdict in (SUPPORTS, AGAINST, SHOWN, UNLEARNED) and not self.equivalent

    @property
    def equivalent(self) -> bool:
        """True if the difference was found to be smaller than the margin."""
        return self.verdict in (EQUAL, CLOSE) or (self.verdict == SUPPORTS and self.comparison.claim == "equal")

    @property
    def before_last_look(self) -> bool:
        """True if it rests on fewer seeds than the last look."""
        looks = self.comparison.looks
        return bool(looks) and self.interval is not None and self.interval.n < looks[-1]


def summarise(runs: Runs, arm: str, name: str) -> Estimate | None:
    """A measure of an arm over its seeds; None where no run has it."""
    values = [*_values(runs, arm, name).values()]
    return mean_interval(values) if values else None


def compare(runs: Runs, comparison: Comparison) -> Finding:
    """The first arm's measure minus the second's, over the seeds that both have, and what it means for the claim.

    Arms of one seed share the levels, and the warm start too where they do not change what the model reads and writes.
    A comparison of spreads is of the distances of an arm's values from their median (Brown and Forsythe, Journal of the
    American Statistical Association 69, 1974).

    An arm has learned if it gains more than the comparison's margin over success before reinforcement, and ends
    significantly above random play. The gain is of the compared measure where that is success, else of ``end``.
    """
    runs = {arm: seeds for arm, seeds in runs.items() if arm not in comparison.without}
    arms = comparison.arms or tuple(runs)
    measured = [_values(runs, arm, comparison.measure) for arm in arms]
    if comparison.foretold_by:
        measured = [_correlations(runs, comparison.foretold_by, comparison.measure)]
    both = sorted(set.intersection(*map(set, measured))) if measured else []
    kind = MEASURES[comparison.unit]
    margin = comparison.margin if kind.rate else 0.0
    found, result, p, seeds, learned = None, MISSING, None, both, False
    for seeds, share in _looks(both, comparison.looks):
        values = [*_differences(measured, seeds, comparison.spread).values()]
        found = mean_interval(values, 1 - (1 - CONFIDENCE) * share)
        if not share:
            found = replace(found, low=-inf, high=inf)
        result = verdict(found, comparison.claim, margin)
        learned = any(_has_learned(runs, arm, comparison, seeds) for arm in arms)
        equal = result == EQUAL or (result == SUPPORTS and comparison.claim == "equal")
        if (equal and not learned) or (result not in (OPEN, SHOWN) and _mostly_equal(values)):
            result = OPEN
        elif result in (SUPPORTS, AGAINST) and not learned:
            result = UNLEARNED
        elif result == EQUAL and not comparison.second:
            result = CLOSE
        if share:
            p = min(1.0 if p is None else p, p_value(values) / share)
    differences = _differences(measured, seeds, comparison.spread)
    missed = found.half_width if found is not None else inf
    if found is not None and isfinite(found.low) and kind.rate and not kind.signed:
        found = replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))  # shares differ by no more
    reason = _reason(comparison, found, result, _mostly_equal([*differences.values()]), learned, missed)
    every = _differences(measured, both, comparison.spread)
    return Finding(comparison, every, found, result, reason, _tokens_ratio(runs, comparison, seeds), p)


def adjust(tables: Mapping[str, Sequence[Finding]], further: Sequence[float] = ()) -> dict[str, list[Finding]]:
    """The findings with adjusted p-values over all of these tables; what the correction does not keep becomes open.

    Args:
        tables: findings by the name of their table.
        further: p-values of other tests that were made.
    """
    tested = [(name, place) for name, row in tables.items() for place, f in enumerate(row) if f.p is not None]
    found = {name: list(row) for name, row in tables.items()}
    if not tested:
        return found
    p_values = [p for name, place in tested if (p := found[name][place].p) is not None]
    hochberg, yekutieli = (false_discovery_control([*p_values, *further], method=way).tolist() for way in ("bh", "by"))
    for (name, place), adjusted, adjusted_by in zip(tested, hochberg, yekutieli, strict=False):
        finding = replace(found[name][place], adjusted=adjusted, adjusted_by=adjusted_by)
        if finding.directional and adjusted > 1 - CONFIDENCE:
            reason = f"{finding.reason}; not significant after the correction for {len(tested) + len(further)} tests"
            finding = replace(finding, verdict=OPEN, reason=reason)
        elif finding.before_last_look and (finding.verdict == SHOWN or finding.verdict in DECIDED):
            early = TOO_LARGE if finding.directional else BY_CHANCE
            finding = replace(finding, reason=f"{finding.reason}; {early}")
        found[name][place] = finding
    return found


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
    """True if more seeds are not needed: it claims nothing, or its claim, corrected by ``adjust``, is not open."""
    return not finding.comparison.claim or finding.verdict not in (OPEN, MISSING)


def _looks(seeds: Sequence[int], looks: Sequence[int]) -> Iterator[tuple[list[int], float]]:
    """The seeds of each look that are all there, and its share of the chance of error; without looks, all seeds once.

    Before the first look all seeds, with no share.
    """
    if not seeds:
        return
    if not looks:
        yield [*seeds], 1.0
        return
    found = False
    for before, look in pairwise((0, *looks)):
        if set(range(look)) <= set(seeds):
            found = True
            yield [*range(look)], (look - before) / looks[-1]
    if not found:
        yield [*seeds], 0.0


def _differences(measured: Sequence[Mapping[int, float]], seeds: Sequence[int], spread: bool) -> dict[int, float]:
    """The first arm's values minus the second's, or minus 0, at these seeds; of spreads, of distances from a median."""
    arms = [{seed: values[seed] for seed in seeds} for values in measured]
    if spread:
        middles = [median(values.values()) if values else 0.0 for values in arms]
        arms = [{k: abs(v - middle) for k, v in values.items()} for values, middle in zip(arms, middles, strict=True)]
    signs = (1, -1, -1, 1)  # of first and second, and of those beside them
    return {seed: sum(sign * arm[seed] for sign, arm in zip(signs, arms, strict=False)) for seed in seeds}


def _correlations(runs: Runs, early: str, late: str) -> dict[int, float]:
    """Pearson's correlation of two measures over the arms of each seed that all arms have, each world's mean apart."""
    found = dict[int, float]()
    for seed in sorted(set.intersection(*map(set, runs.values()))) if runs else ():
        worlds: dict[str, list[list[float | None]]] = {}
        for run in (seeds[seed] for seeds in runs.values()):
            worlds.setdefault(repr(run.config.env_options), []).append([measure(run, early), measure(run, late)])
        x, y = np.concatenate([(a := np.array(pairs, float)) - a.mean(axis=0) for pairs in worlds.values()]).T
        if (scale := sqrt((x @ x) * (y @ y))) > 0:  # also where a run lacks a measure
            found[seed] = float(x @ y) / scale
    return found


def _has_learned(runs: Runs, arm: str, comparison: Comparison, seeds: Sequence[int]) -> bool:
    reached = _values(runs, arm, comparison.measure if MEASURES[comparison.measure].success else "end")
    start, normalised = _values(runs, arm, "before"), _values(runs, arm, "normalised")
    gains = [reached[seed] - start[seed] for seed in seeds if seed in reached and seed in start]
    ends = [normalised[seed] for seed in seeds if seed in normalised]
    return bool(gains) and fmean(gains) > comparison.margin and (not ends or mean_interval(ends).low > 0)


def _tokens_ratio(runs: Runs, comparison: Comparison, seeds: Sequence[int]) -> float | None:
    arms = [_values(runs, arm, "trained_tokens") for arm in (comparison.first, comparison.second)]
    first, second = (sum(tokens.get(seed, 0.0) for seed in seeds) for tokens in arms)
    return first / second if first and second else None


def p_value(values: Sequence[float]) -> float:
    """Of no difference, two-sided, by Student's t; 1 where it does not hold: equal values, or half of them equal."""
    if len(values) < 2 or _mostly_equal(values) or not stdev(values):
        return 1.0
    return float(2 * students_t.sf(abs(fmean(values)) * sqrt(len(values)) / stdev(values), len(values) - 1))


def _mostly_equal(differences: Sequence[float]) -> bool:
    """True if half of the differences or more, and at least two, are the same number."""
    most = max(Counter(round(each, 9) for each in differences).values(), default=0)
    return most > 1 and 2 * most >= len(differences)


def answer(findings: Sequence[Finding]) -> str:
    """The verdicts as a sentence: numbers of claims by verdict and their differences; then those of no claim."""
    claimed, unclaimed = ([f for f in findings if bool(f.comparison.claim) is claims] for claims in (True, False))
    counts = Counter(finding.verdict for finding in claimed)
    apart, seen = _named_differences(claimed), _named_differences(unclaimed)
    said = "Nothing is claimed."
    if claimed:
        (verdict, number), *more = [(v, counts[v]) for v in (*VERDICTS, MISSING) if counts[v]]
        verdicts = [f"{number} {'is' if number == 1 else 'are'} {verdict}", *(f"{n} {v}" for v, n in more)]
        shown = f"the arms differ by {apart}" if apart else "no difference is established"
        said = f"Of {len(claimed)} claims {_enumerated(verdicts)}: {shown}."
    return f"{said} Seen where nothing was claimed: {seen}." if seen else said


def _named_differences(findings: Sequence[Finding]) -> str:
    """The differences that the correction keeps, of arms that learned."""
    kept = [f for f in findings if f.directional and f.verdict != UNLEARNED]
    return "; ".join(f"{f.comparison.compared} {format_difference(f)}" for f in kept)


def stopped_early(findings: Sequence[Finding]) -> str:
    """The plan of looks as a sentence, with the number of open claims that have fewer seeds; empty without looks."""
    planned = sorted({f.comparison.looks for f in findings if f.comparison.looks})
    left = [f for f in findings if f.comparison.claim and f.verdict == OPEN and f.comparison.looks]
    early = sum(f.interval is not None and f.interval.n < f.comparison.looks[-1] for f in left)
    if not planned:
        return ""
    seeds = " or ".join(_enumerated([str(look) for look in looks]) for looks in planned)
    return f"Looks were planned at {seeds} seeds; {early} of {len(left)} open claims have fewer seeds than planned."


def _enumerated(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def format_difference(finding: Finding) -> str:
    """The difference with its interval, as text."""
    found, name = finding.interval, finding.comparison.unit
    if found is None:
        return "\N{EN DASH}"
    value, low, high = (format_measure(end, name, signed=True) for end in (found.value, found.low, found.high))
    return f"{value} [{low} to {high}]" if isfinite(found.low) and found.low < found.high else value


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


def _reason(
    comparison: Comparison, found: Estimate | None, result: str, mostly_equal: bool, learned: bool, missed: float
) -> str:
    """Why the verdict is what it is; a true difference of the size ``missed`` would be significant half the time."""
    if found is None:
        return "no seed has both"
    if found.n < 2:
        return "one seed says nothing about other seeds"
    if found.high - found.low < NO_WIDTH:
        return "an interval without width, from which nothing is concluded"
    if not isfinite(found.low):
        return f"the first look is at {comparison.looks[0]} seeds"
    name, unit = comparison.unit, " points" if MEASURES[comparison.unit].rate else ""
    half, margin = (format_measure(size, name, signed=True).removeprefix("+") for size in (missed, comparison.margin))
    which_way = "higher" if found.value > 0 else "lower"
    kind = MEASURES[name]
    undecided = f"not significant; a difference of {half}{unit} would be missed half the time"
    if kind.rate and not kind.signed and missed >= 1:
        undecided = "not significant; even the largest difference would be missed half the time or more"
    if found.significant:
        undecided = f"{which_way}, but perhaps by less than {margin}{unit}"
    apart = f"less than {margin}{unit} {'apart' if comparison.second else 'from 0'}"
    nothing = "no arm learned" if len(comparison.arms) != 1 else "the arm did not learn"
    nothing = "neither arm learned" if len(comparison.arms) == 2 else nothing
    nothing += f" ({name})" if kind.success and name != "end" else ""
    if not learned:
        within = -comparison.margin < found.low and found.high < comparison.margin
        undecided = f"{apart if within and unit else undecided}; {nothing}"
    if mostly_equal:
        undecided = "equal in half of the seeds or more, of which Student's interval says nothing"
    meaning = {
        OPEN: undecided,
        EQUAL: apart,
        CLOSE: apart,
        UNLEARNED: f"{which_way}, but {nothing}: this says nothing of arms that learn",
        SUPPORTS: f"{comparison.claim}, as claimed",
        AGAINST: f"{which_way}, where {comparison.claim} was claimed",
        SHOWN: f"{which_way}, where nothing was claimed",
    }[result]
    if result == SUPPORTS and comparison.claim == "equal":
        return f"{apart}, as claimed"
    if result in (SUPPORTS, AGAINST) and max(abs(found.low), abs(found.high)) < comparison.margin and unit:
        meaning += f", by less than {margin}{unit}"
    return meaning
