"""The computed part of the page ``echo-trap``: falls from the best success in long runs, and the signs before them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks import markdown_table
from benchmarks.experiments.collapse import collapse_start, learned, not_excluded, shows_three_signs, signs_seen
from benchmarks.experiments.hypothesis_tests import Runs, format_measure
from benchmarks.experiments.spec import WINDOW, measure, series, window_means
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.alarm import sign_label
from ragen_gym.core.stats import mean_interval, percent

LONG = 200
"""Iterations of a run that counts as long: within them the paper's models collapse."""

THIRD = 2 / 3
"""The part of the best success below which a third of it is lost."""

LATE = 50
"""Iterations at the end of a long run, and before these, whose success is compared."""

FIGURES = ("entropy", "return_std", "grad_norm")
"""Figures in which the paper sees the signs of an Echo Trap."""

HEAD = ("run", "before", "best (iteration)", "last", "end", "lost", *FIGURES, "falls after", "signs (iteration)")

NOTE = f"""\
Success, entropy, return std and gradient norm are means of {WINDOW} iterations of the rollouts; three figures are those
at the start, at the best success and at the end. The best of many noisy means lies above the rate behind it, so *lost*
is some points too large. *Before* and *end* are success on the fixed levels. A third is lost *for good* where
at least {WINDOW} such means up to the last lie below two thirds of the best, and the last policy's success on the fixed
levels too."""


def section(_: Path, runs: Runs) -> tuple[list[str], list[str]]:
    """The part as lines of Markdown, and no pictures; nothing where no long run rises."""
    long = [
        (f"{arm}, seed {seed}", run)
        for arm, seeds in runs.items()
        for seed, run in sorted(seeds.items())
        if run.config.training.iterations >= LONG
    ]
    rising = [(name, run, collapse_start(run, THIRD)) for name, run in long if learned(run)]
    if not rising:
        return [], []
    falls = [at is not None for _, _, at in rising]
    fallen, lasting = sum(falls), falls.count(False)
    halves = sum(collapse_start(run) is not None for _, run, _ in rising)
    signs = [
        [f"{sign_label(sign)} ({place + 1})" for sign, place in signs_seen(run).items() if at is None or place <= at]
        for _, run, at in rising
    ]
    warned = [
        sum(bool(said) for said, fell in zip(signs, falls, strict=True) if fell is each) for each in (True, False)
    ]
    all_three = sum(shows_three_signs(run, len(run.metrics)) for _, run, at in rising if at is None)
    share = percent(not_excluded(fallen, len(rising)))
    lines = [
        "## Long runs",
        "",
        f"**{len(rising)} runs of {LONG} iterations or more rise 20 points above their start. A third of the best",
        f"success is lost for good in {fallen} of them**, half of it in {halves}. Shares of such runs up to {share}",
        "are not excluded (one-sided 95 %).",
        *_near(rising, fallen),
        f"Signs of the alarm show in {warned[1]} of {lasting} runs without that loss, all three of the paper's in "
        f"{all_three}" + (f", and before {warned[0]} of {fallen} with it." if fallen else "."),
        *([f"{len(long) - len(rising)} more runs do not rise so far."] if len(long) > len(rising) else []),
        *_late([run for _, run, _ in rising]),
        "",
        *NOTE.split("\n"),
        "",
        markdown_table(HEAD, [_row(*each, said) for each, said in zip(rising, signs, strict=True)]),
        "",
    ]
    return lines, []


def _near(rising: Sequence[tuple[str, RecordedRun, int | None]], fallen: int) -> list[str]:
    """The runs that lose a third for good in their rollouts and not on the fixed levels."""
    near = [(name, run) for name, run, at in rising if at is None and collapse_start(run, THIRD, rollouts_alone=True)]
    if not near:
        return []
    ends = "; ".join(
        f"{name}: its last policy solves {percent(run.summary['after']['rate'])} of the fixed levels, two thirds of "
        f"its best are {percent(THIRD * max(window_means(run, 'success')))}"
        for name, run in near
    )
    share = percent(not_excluded(fallen + len(near), len(rising)))
    said = f"In {len(near)} more the rollouts alone lose it ({ends})."
    return [said, f"With {'it' if len(near) == 1 else 'them'} shares up to {share} are not excluded."]


def _late(runs: Sequence[RecordedRun]) -> list[str]:
    """Mean success in the last iterations minus that in as many before them."""
    success = [series(run, "success") for run in runs]
    found = mean_interval([fmean(values[-LATE:]) - fmean(values[-2 * LATE : -LATE]) for values in success])
    if found.n < 2:
        return []
    low, high = (format_measure(end, "gain", signed=True) for end in (found.low, found.high))
    return [
        f"Success in the last {LATE} iterations minus success in the {LATE} before is on average",
        f"{format_measure(found.value, 'gain', signed=True)} points ({low} to {high}).",
    ]


def _row(name: str, run: RecordedRun, fall: int | None, signs: list[str]) -> list[str]:
    means = window_means(run, "success")
    best, last = max(range(len(means)), key=means.__getitem__), len(run.metrics) - WINDOW
    figures = [", ".join(f"{_mean(run, each, place):.2g}" for place in (0, best, last)) for each in FIGURES]
    rates = [percent(measure(run, each)) for each in ("before", "end", "lost")]
    reached = [f"{percent(means[best])} ({best + WINDOW})", percent(means[-1])]
    fell = "none" if fall is None else str(fall + 1)
    return [name, rates[0], *reached, *rates[1:], *figures, fell, "; ".join(signs) or "none"]


def _mean(run: RecordedRun, name: str, place: int) -> float:
    """The mean of a figure over ``WINDOW`` iterations from this one on; an iteration without an update lacks some."""
    return fmean([record[name] for record in run.metrics[place : place + WINDOW] if name in record] or [0.0])
