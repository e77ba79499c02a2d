"""Collapses of runs and their kinds.

A run has collapsed where the mean success of five iterations fell below half of its best, or of the first
iteration's, and stayed there to the end, for five such means at least, and where the success that is measured after it
is below half of its best as well. A collapse begins with the first iteration that is itself so low.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from scipy.stats import beta

from benchmarks.experiments.spec import FALL, WINDOW, series, window_means
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.alarm import signs_at
from ragen_gym.core.stats import CONFIDENCE

OUTCOMES = ("no collapse", "never learned", "collapse at once", "format collapse", "Echo Trap", "other collapse")

LEAST = 0.05  # best success below which there is nothing to collapse from
LEARNED = 0.20  # success above the start from which a collapse would show
AT_ONCE = 5  # iterations; a policy that falls within them is lost before a sign can be seen

#: Figures of an iteration that are equal in two runs only if one is a copy of the other.
TRACE = ("success", "return", "return_std", "grad_norm", "entropy", "reply_tokens", "repeated_rate")


def collapse_start(run: RecordedRun, part: float = FALL, *, rollouts_alone: bool = False) -> int | None:
    """The iteration with which success falls for good below ``part`` of its best, or None where it does not.

    ``rollouts_alone``: also where the success that is measured after training is not as low.
    """
    success, means = series(run, "success"), window_means(run, "success")
    if not success:
        return None
    best, down = success[0], None
    for place, mean in enumerate(means):
        best = max(best, mean)
        if mean >= part * best:
            down = None
        elif down is None:
            down = place
    after = run.summary["after"]["rate"] if "after" in run.summary else 0.0
    if down is None or len(means) - down < WINDOW or best < LEAST:
        return None
    if after >= part * best and not rollouts_alone:
        return None
    return next(place for place in range(down, len(success)) if success[place] < part * best)


def outcome(run: RecordedRun) -> str:
    """Outcome of a run, one of ``OUTCOMES``.

    One that never learned had nothing to collapse from. In a format collapse most replies are malformed when it begins.
    An Echo Trap shows all of the paper's signs before it, and replies that are well formed.
    """
    at = collapse_start(run)
    if at is None:
        best = max([*series(run, "success")[:1], *window_means(run, "success")], default=0.0)
        return "no collapse" if best >= LEAST else "never learned"
    if at < AT_ONCE:
        return "collapse at once"
    invalid = series(run, "invalid_rate")[at : at + WINDOW]
    if invalid and fmean(invalid) > 0.5:
        return "format collapse"
    return "Echo Trap" if shows_three_signs(run, at) else "other collapse"


def shows_three_signs(run: RecordedRun, at: int) -> bool:
    """True if the return std, the entropy and the gradient norm have all moved by the iteration ``at``."""
    seen = {name for name, first in signs_seen(run).items() if first <= at}
    return {"return_std_fall", "gradient_spike"} <= seen and bool(seen & {"entropy_fall", "entropy_jump"})


def signs_seen(run: RecordedRun) -> dict[str, int]:
    """The iteration at which each sign of the alarm first shows; records hold no alarms."""
    first: dict[str, int] = {}
    for place in range(len(run.metrics)):
        for sign in signs_at(run.metrics[: place + 1]):
            first.setdefault(sign.name, place)
    return first


def long_enough(run: RecordedRun) -> bool:
    """True if the run has the five means of five iterations that a collapse takes."""
    return len(series(run, "success")) >= 2 * WINDOW - 1


def learned(run: RecordedRun) -> bool:
    """True if the best success lies ``LEARNED`` above the start of a long enough run: then a fall could be seen."""
    if not long_enough(run):
        return False
    means = window_means(run, "success")
    start = run.summary["before"]["rate"] if "before" in run.summary else min(means, default=0.0)
    return bool(means) and max(means) - start >= LEARNED


def not_excluded(found: int, count: int) -> float:
    """The largest share that ``found`` of ``count`` runs do not exclude.

    This is the upper end of the one-sided 95 % interval of Clopper and Pearson (Biometrika 26, 1934).
    """
    return 1.0 if found == count else float(beta.ppf(CONFIDENCE, found + 1, count - found))


def collapse_sentence(runs: Iterable[RecordedRun]) -> str:
    """Number of runs that learned and then collapsed, what follows if none did, and the collapses of the others."""
    given = list(runs)
    every = [run for run in given if long_enough(run)]
    rose, others = ([run for run in every if learned(run) is rising] for rising in (True, False))
    fallen = [(run, at) for run in others if (at := collapse_start(run)) is not None]
    signs = sum(shows_three_signs(run, at) for run, at in fallen)
    rest = f" Of {len(others)} runs that do not, {len(fallen)} collapse, {signs} of them after all three signs."
    if short := len(given) - len(every):
        rest += f" Runs too short for a collapse: {short}."
    if not rose:
        said = "No run rises 20 points above its start: the runs are too short and too small to show an Echo Trap."
        return said + (rest if fallen else "")
    traps = sum(outcome(run) == "Echo Trap" for run in rose)
    count = sum(collapse_start(run) is not None for run in rose)
    said = f"Of {len(rose)} runs that rise 20 points above their start {count} collapse, {traps} in an Echo Trap"
    said += "." if traps else ": the runs are too short and too small to say that there is none."
    return said + (rest if fallen else "")


def without_copies(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs without those that are the beginning of another, or the same run in another experiment."""
    kept: dict[Any, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: -len(run.metrics)):
        alike = kept.setdefault(_trace(run)[0] if run.metrics else None, [])
        if not any(_trace(other)[: len(run.metrics)] == _trace(run) for other in alike):
            alike.append(run)
    return [run for alike in kept.values() for run in alike]


def _trace(run: RecordedRun) -> list[tuple[Any, ...]]:
    return [tuple(record.get(name) for name in TRACE) for record in run.metrics]
