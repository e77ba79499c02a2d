"""How good the Echo Trap alarm is: for each sign, which collapses it announced, how early, and when it cried wolf.

The signs are computed again from every run's `metrics.jsonl`, so the factors in force today are what is judged, or any
others. A run has collapsed where the mean success of five iterations fell below half of its best, or of the first
iteration's, and stayed there to the end, for five such means at least, and where the success that is measured after it
is below half of that as well. A collapse begins with the first iteration that is itself so low; a sign that is seen in
an earlier one announces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.experiments.metrics import WINDOW, Played, course, window_means
from ragen_agent.training.alarm import FOLLOWS, Alarm, signs_at

__all__ = ["AT_ONCE", "KINDS", "Judged", "calibrate", "collapse", "first_signs", "kind"]

KINDS = ("no collapse", "never learned", "collapse at once", "format collapse", "Echo Trap", "other collapse")

FALL = 0.5  # of the best success
LEAST = 0.05  # best success below which there is nothing to collapse from
AT_ONCE = 5  # iterations; a policy that falls within them is lost before a sign can be seen

#: Signs taken together: an iteration raises it where so many of these have been seen.
COMBINED: dict[str, tuple[tuple[str, ...], int]] = {
    "any sign": (tuple(FOLLOWS), 1),
    "any two signs": (tuple(FOLLOWS), 2),
    "the paper's three (spread, entropy, gradient)": (("spread_fall", "entropy", "gradient_spike"), 3),
    "spread falls and replies break": (("spread_fall", "invalid_rise"), 2),
}


@dataclass(frozen=True)
class Judged:
    """A sign over many runs.

    `leads`: iterations from the sign to the collapse, of the collapses that it announced. `late`: collapses with or
    after whose beginning it was seen.
    """

    sign: str
    collapses: int
    leads: tuple[int, ...]
    late: int
    healthy: int
    false_alarms: int

    @property
    def announced(self) -> int:
        """Collapses before which it was seen."""
        return len(self.leads)

    @property
    def lead(self) -> float | None:
        """The median lead."""
        return median(self.leads) if self.leads else None


def collapse(run: Played) -> int | None:
    """The iteration with which a collapse begins, or None for a run that did not collapse."""
    success, means = course(run, "success"), window_means(run, "success")
    if not success:
        return None
    best, down = success[0], None
    for place, mean in enumerate(means):
        best = max(best, mean)
        if mean >= FALL * best:
            down = None
        elif down is None:
            down = place
    after = run.rates["after"]["rate"] if "after" in run.rates else 0.0
    if down is None or len(means) - down < WINDOW or best < LEAST or after >= FALL * best:
        return None
    return next(place for place in range(down, len(success)) if success[place] < FALL * best)


def _best(run: Played) -> float:
    return max([*course(run, "success")[:1], *window_means(run, "success")], default=0.0)


def first_signs(run: Played, alarm: Alarm | None = None) -> dict[str, int]:
    """The iteration at which each sign was first seen, by these factors or by those in force."""
    seen: dict[str, int] = {}
    for end in range(1, len(run.metrics) + 1):
        for sign in signs_at(run.metrics[:end], alarm):
            seen.setdefault(sign.name, end - 1)
    return seen


def kind(run: Played) -> str:
    """What became of a run, a member of `KINDS`.

    One that never learned had nothing to collapse from. In a format collapse most replies are malformed when it begins.
    An Echo Trap shows all of the paper's signs before it, and replies that are well formed.
    """
    at = collapse(run)
    if at is None:
        return "no collapse" if _best(run) >= LEAST else "never learned"
    if at < AT_ONCE:
        return "collapse at once"
    invalid = course(run, "invalid_rate")[at : at + WINDOW]
    if invalid and fmean(invalid) > 0.5:
        return "format collapse"
    seen = {name for name, when in first_signs(run).items() if when <= at}
    trap = {"spread_fall", "gradient_spike"} <= seen and seen & {"entropy_fall", "entropy_jump"}
    return "Echo Trap" if trap else "other collapse"


def calibrate(runs: Iterable[Played], alarm: Alarm | None = None) -> list[Judged]:
    """Every sign alone, then the combinations, over all runs, by these factors or by those in force.

    Runs that collapsed at once are left out, since nothing could have announced that, and those that never learned.
    """
    unclear = ("never learned", "collapse at once")
    table = [(collapse(run), first_signs(run, alarm)) for run in runs if kind(run) not in unclear]
    rules: dict[str, Callable[[Mapping[str, int]], int | None]] = {}
    for name in FOLLOWS:
        rules[name] = lambda seen, name=name: seen.get(name)  # type: ignore[misc]
    for name, (signs, count) in COMBINED.items():
        rules[name] = lambda seen, signs=signs, count=count: _together(seen, signs, count)  # type: ignore[misc]
    return [_judged(name, [(at, rule(seen)) for at, seen in table]) for name, rule in rules.items()]


def _together(seen: Mapping[str, int], signs: Sequence[str], count: int) -> int | None:
    """When the last of so many of the signs was first seen; "entropy" stands for its fall or its jump."""
    whens = sorted(
        min(found)
        for sign in signs
        if (found := [when for name, when in seen.items() if name == sign or name in (f"{sign}_fall", f"{sign}_jump")])
    )
    return whens[count - 1] if len(whens) >= count else None


def _judged(name: str, table: Sequence[tuple[int | None, int | None]]) -> Judged:
    told = [(at, when) for at, when in table if at is not None and when is not None]
    leads = tuple(at - when for at, when in told if when < at)
    healthy = [when for at, when in table if at is None]
    collapses = len(table) - len(healthy)
    return Judged(
        name, collapses, leads, len(told) - len(leads), len(healthy), sum(when is not None for when in healthy)
    )
