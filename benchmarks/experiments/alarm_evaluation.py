"""Evaluation of the Echo Trap alarm: for each sign, which collapses it predicted, how early, and its false alarms.

The signs are computed anew from every run's ``metrics.jsonl``, by today's factors of the alarm.

A run has collapsed where the mean success of five iterations fell below half of its best, or of the first
iteration's, and stayed there to the end, for five such means at least, and where the success that is measured after it
is below half of that as well. A collapse begins with the first iteration that is itself so low; a sign that is seen in
an earlier one predicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy.stats import beta

from benchmarks.experiments.spec import FALL, WINDOW, series, window_means
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.alarm import FOLLOWS
from ragen_gym.core.stats import CONFIDENCE

__all__ = [
    "AT_ONCE",
    "OUTCOMES",
    "SignScore",
    "collapse_sentence",
    "collapse_start",
    "learned",
    "not_excluded",
    "outcome",
    "score_signs",
    "shows_three_signs",
]

OUTCOMES = ("no collapse", "never learned", "collapse at once", "format collapse", "Echo Trap", "other collapse")

LEAST = 0.05  # best success below which there is nothing to collapse from
LEARNED = 0.20  # success above the start from which a collapse would show
AT_ONCE = 5  # iterations; a policy that falls within them is lost before a sign can be seen

#: Combinations of signs: seen in the iteration by which so many of them have been.
COMBINED: dict[str, tuple[tuple[str, ...], int]] = {
    "any sign": (tuple(FOLLOWS), 1),
    "any two signs": (tuple(FOLLOWS), 2),
    "the paper's three (return std, entropy, gradient)": (("spread_fall", "entropy", "gradient_spike"), 3),
    "return std fall and invalid rise": (("spread_fall", "invalid_rise"), 2),
}


@dataclass(frozen=True)
class SignScore:
    """Record of a sign over many runs."""

    sign: str  # its name, or that of a combination of signs
    collapses: int  # how many runs collapsed
    leads: tuple[int, ...]  # iterations from the sign to the collapse, of the collapses that it predicted
    late: int  # collapses during or after whose start it was first seen
    healthy: int  # how many runs did not collapse
    false_alarms: int  # how many of those showed it

    @property
    def predicted(self) -> int:
        """Collapses before which it was seen."""
        return len(self.leads)

    @property
    def lead(self) -> float | None:
        """The median lead."""
        return median(self.leads) if self.leads else None


def collapse_start(run: RecordedRun) -> int | None:
    """The iteration with which a collapse begins, or None for a run that did not collapse."""
    success, means = series(run, "success"), window_means(run, "success")
    if not success:
        return None
    best, down = success[0], None
    for place, mean in enumerate(means):
        best = max(best, mean)
        if mean >= FALL * best:
            down = None
        elif down is None:
            down = place
    after = run.summary["after"]["rate"] if "after" in run.summary else 0.0
    if down is None or len(means) - down < WINDOW or best < LEAST or after >= FALL * best:
        return None
    return next(place for place in range(down, len(success)) if success[place] < FALL * best)


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
    seen = {sign.name for sign in run.signs if sign.iteration <= at}
    return {"spread_fall", "gradient_spike"} <= seen and bool(seen & {"entropy_fall", "entropy_jump"})


def learned(run: RecordedRun) -> bool:
    """True if the best success lies ``LEARNED`` above the start: only then could a fall be seen."""
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
    every = list(runs)
    rose, others = ([run for run in every if learned(run) is rising] for rising in (True, False))
    fallen = [(run, at) for run in others if (at := collapse_start(run)) is not None]
    signs = sum(shows_three_signs(run, at) for run, at in fallen)
    rest = f" Of {len(others)} runs that do not, {len(fallen)} collapse, {signs} of them after all three signs."
    if not rose:
        said = "No run rises 20 points above its start: the runs are too short and too small to show an Echo Trap."
        return said + (rest if fallen else "")
    traps = sum(outcome(run) == "Echo Trap" for run in rose)
    count = sum(collapse_start(run) is not None for run in rose)
    said = f"Of {len(rose)} runs that rise 20 points above their start {count} collapse, {traps} in an Echo Trap"
    said += "." if traps else ": the runs are too short and too small to say that there is none."
    return said + (rest if fallen else "")


def score_signs(runs: Iterable[RecordedRun]) -> list[SignScore]:
    """Every sign alone, then the combinations, over all runs.

    Runs that collapsed at once are left out, since no sign could have come before, and those that never learned.
    """
    unclear = ("never learned", "collapse at once")
    judged = [run for run in runs if outcome(run) not in unclear]
    table = [(collapse_start(run), {sign.name: sign.iteration for sign in run.signs}) for run in judged]
    scores = [_score(name, [(at, seen.get(name)) for at, seen in table]) for name in FOLLOWS]
    for name, (signs, count) in COMBINED.items():
        scores.append(_score(name, [(at, _together(seen, signs, count)) for at, seen in table]))
    return scores


def _together(seen: Mapping[str, int], signs: Sequence[str], count: int) -> int | None:
    """Iteration at which the last of several signs was first seen; "entropy" stands for its fall or its jump."""
    whens = sorted(
        min(found)
        for sign in signs
        if (found := [when for name, when in seen.items() if name == sign or name in (f"{sign}_fall", f"{sign}_jump")])
    )
    return whens[count - 1] if len(whens) >= count else None


def _score(name: str, table: Sequence[tuple[int | None, int | None]]) -> SignScore:
    both = [(at, when) for at, when in table if at is not None and when is not None]
    leads = tuple(at - when for at, when in both if when < at)
    healthy = [when for at, when in table if at is None]
    collapses = len(table) - len(healthy)
    return SignScore(
        name, collapses, leads, len(both) - len(leads), len(healthy), sum(when is not None for when in healthy)
    )
