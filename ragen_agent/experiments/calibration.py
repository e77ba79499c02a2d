"""How good the Echo Trap alarm is: for each sign, which collapses it announced, how early, and when it cried wolf.

The signs are computed again from every run's `metrics.jsonl`, so the factors in force today are what is judged, or any
others. A run has collapsed where the mean success of five iterations fell below half of its best, or of the first
iteration's, and stayed there to the end, for five such means at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ragen_agent.diagnostics.echo_trap import FOLLOWS, Alarm, signs_at
from ragen_agent.experiments.measures import WINDOW, Played, window_means

__all__ = ["KINDS", "Judged", "calibrate", "collapse", "first_signs", "kind"]

KINDS = ("no collapse", "collapse at once", "format collapse", "Echo Trap", "other collapse")

FALL = 0.5  # of the best success
LEAST = 0.1  # best success below which there is nothing to collapse from
AT_ONCE = 10  # iterations; a policy that is lost by then never played as it had learned to

#: Signs taken together: an iteration raises it where so many of these have been seen.
COMBINED: dict[str, tuple[tuple[str, ...], int]] = {
    "any sign": (tuple(FOLLOWS), 1),
    "any two signs": (tuple(FOLLOWS), 2),
    "the paper's three (spread, entropy, gradient)": (("spread_fall", "entropy", "gradient_spike"), 3),
    "spread falls and replies break": (("spread_fall", "invalid_rise"), 2),
}


@dataclass(frozen=True)
class Judged:
    """A sign over many runs: `leads` are iterations from the alarm to the collapse, of those it announced."""

    sign: str
    collapses: int
    leads: tuple[int, ...]
    healthy: int
    false_alarms: int

    @property
    def announced(self) -> int:
        """Collapses that it was seen before, or with."""
        return len(self.leads)

    @property
    def lead(self) -> float | None:
        """The median lead."""
        return median(self.leads) if self.leads else None


def collapse(run: Played) -> int | None:
    """The iteration at whose end the collapse is there, or None for a run that did not."""
    means = window_means(run, "success")
    if not means or max(run.metrics[0]["success"], *means) < LEAST:
        return None
    best, down = run.metrics[0]["success"], None
    for place, mean in enumerate(means):
        best = max(best, mean)
        if mean >= FALL * best:
            down = None
        elif down is None:
            down = place
    if down is None or len(means) - down < WINDOW:
        return None
    return down + len(run.metrics) - len(means)


def first_signs(run: Played, alarm: Alarm | None = None) -> dict[str, int]:
    """The iteration at which each sign was first seen, by these factors or by those in force."""
    seen: dict[str, int] = {}
    for end in range(1, len(run.metrics) + 1):
        for sign in signs_at(run.metrics[:end], alarm):
            seen.setdefault(sign.name, end - 1)
    return seen


def kind(run: Played) -> str:
    """What became of a run, a member of `KINDS`.

    An Echo Trap shows all of the paper's signs before it, and replies that are well formed.
    """
    at = collapse(run)
    if at is None:
        return "no collapse"
    if at < AT_ONCE:
        return "collapse at once"
    invalid = window_means(run, "invalid_rate")
    if invalid and invalid[-1] > 0.5:
        return "format collapse"
    seen = {name for name, when in first_signs(run).items() if when <= at}
    trap = {"spread_fall", "gradient_spike"} <= seen and seen & {"entropy_fall", "entropy_jump"}
    return "Echo Trap" if trap else "other collapse"


def calibrate(runs: Iterable[Played], alarm: Alarm | None = None) -> list[Judged]:
    """Every sign alone, then the combinations, over all runs, by these factors or by those in force."""
    table = [(collapse(run), first_signs(run, alarm)) for run in runs]
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
    leads = [at - when for at, when in table if at is not None and when is not None and when <= at]
    healthy = [when for at, when in table if at is None]
    collapses = sum(at is not None for at, _ in table)
    return Judged(name, collapses, tuple(leads), len(healthy), sum(when is not None for when in healthy))
