"""The curves of a report: each figure by iteration, smoothed, with the raw values faint and the seeds as a band.

Places are in thousandths of a panel, from its upper left corner, so that a page can draw them at any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragen_agent.report.runs import RecordedRun, SeedGroup
from ragen_agent.run.alarm import sign_label
from ragen_agent.update.metrics import MAIN, format_metric, is_share, metric_label, smooth
from ragen_gym.bench.report.plots import COLOURS, end_labels

Floats = NDArray[np.float64]

#: The figure that each sign of the Echo Trap is about.
SIGNS = {
    "return_std_fall": "return_std",
    "return_std_end": "return_std",
    "entropy_fall": "entropy",
    "entropy_jump": "entropy",
    "gradient_spike": "grad_norm",
    "invalid_rise": "invalid_rate",
}

LOGARITHMIC = 30.0  # times the median that a maximum may be before the axis is logarithmic
POINTS = 500  # of a line; more are not told apart on a screen


@dataclass(frozen=True)
class Scale:
    """From a value to its height in thousandths."""

    low: float
    high: float
    logarithmic: bool = False

    def height(self, value: NDArray[np.float64] | float) -> Any:
        """Clipped a little outside of the panel."""
        low, high, value = self.low, self.high, np.asarray(value, float)
        if self.logarithmic:
            low, high, value = log10(low), log10(high), np.log10(np.maximum(value, self.low))
        return np.clip(1000 - 1000 * (value - low) / (high - low), -20, 1020)


def axis(name: str, series: Sequence[NDArray[np.float64]]) -> tuple[Scale, list[float]]:
    """The scale of a figure, and the values of its grid lines; logarithmic where a few values dwarf the others."""
    if is_share(name):
        return Scale(0.0, 1.0), [0.0, 0.5, 1.0]
    values = np.concatenate(list(series))
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > LOGARITHMIC * float(np.median(values)):
        least = floor(log10(low))
        most = max(least + 1, ceil(log10(high)))
        powers = range(least, most + 1, max(1, (most - least + 3) // 4))
        return Scale(10.0**least, 10.0**most, True), [10.0**power for power in powers]
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    step = _round_step((high - low) / 3)
    first, end = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return Scale(first * step, end * step), [number * step for number in range(first, end + 1)]


def tick_labels(name: str, ticks: Sequence[float]) -> list[str]:
    """Texts of grid lines: those of the figure's values, or with as many digits as tell the lines apart."""
    labels = [format_metric(name, tick) for tick in ticks]
    if len({*labels}) == len(labels):
        return labels
    digits = max(0, -floor(log10(ticks[1] - ticks[0]) + 1e-9))
    return [f"{tick:z.{digits}f}".replace("-", "\N{MINUS SIGN}") for tick in ticks]


def _round_step(rough: float) -> float:
    power = 10.0 ** floor(log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)))


@dataclass
class SeedCurve:
    """A figure of one group."""

    at: Floats  # iterations, from 1
    mean: Floats  # the mean of the smoothed seeds there; runs that ended early leave the mean of those that went on
    low: Floats  # the lowest smoothed seed
    high: Floats  # the highest
    #: of each run its iterations and its values as they are
    raw: list[tuple[Floats, Floats]] = field(default_factory=list)


def seed_curves(groups: Sequence[SeedGroup], name: str, weight: float) -> dict[int, SeedCurve]:
    """The figure's curve in each group that has it, by the group's colour."""
    found = {group.colour: _seed_curve(group.runs, name, weight) for group in groups}
    return {colour: curve for colour, curve in found.items() if curve is not None}


def panels(groups: Sequence[SeedGroup], weight: float) -> list[dict[str, Any]]:
    """All panels in the order of ``MAIN``, then the other figures by name, each as the page's template draws it.

    Args:
        groups: of a report.
        weight: with which each value enters the moving average, above 0 to 1.
    """
    last = max((int(r["iteration"]) + 1 for g in groups for run in g.runs for r in run.metrics), default=1)
    made = []
    for name in _names(groups):
        found = seed_curves(groups, name, weight)
        if found:
            made.append(_panel(groups, name, found, last))
    return made


def _names(groups: Sequence[SeedGroup]) -> list[str]:
    """The numeric figures of any iteration that ever differ from 0."""
    records = [record for group in groups for run in group.runs for record in run.metrics]
    known = dict.fromkeys(
        name for record in records for name, value in record.items() if is_number(value) and (value or name in MAIN)
    )
    known.pop("iteration", None)
    rest = sorted(name for name in known if name not in MAIN)
    return [name for name in MAIN if name in known] + rest


def is_number(value: Any) -> bool:
    """True if a value of a record can be drawn: a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _seed_curve(runs: Iterable[RecordedRun], name: str, weight: float) -> SeedCurve | None:
    raw = []
    for run in runs:
        pairs = [(r["iteration"] + 1, r[name]) for r in run.metrics if is_number(r.get(name))]
        if pairs:
            raw.append((np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs], float)))
    if not raw:
        return None
    at = np.unique(np.concatenate([places for places, _ in raw]))
    table = np.full((len(raw), len(at)), np.nan)
    for row, (places, values) in enumerate(raw):
        table[row, np.searchsorted(at, places)] = smooth(values.tolist(), weight)
    return SeedCurve(at, np.nanmean(table, axis=0), np.nanmin(table, axis=0), np.nanmax(table, axis=0), raw)


def _panel(groups: Sequence[SeedGroup], name: str, found: Mapping[int, SeedCurve], last: int) -> dict[str, Any]:
    scale, ticks = axis(name, [values for curve in found.values() for _, values in curve.raw])
    large, title = name == "success", metric_label(name)
    drawn = [(group, found[group.colour], group.colour % COLOURS) for group in groups if group.colour in found]

    def places(iterations: Floats) -> Floats:
        return 1000 * (iterations - 1) / max(1, last - 1)

    def text(value: float) -> str:
        return format_metric(name, value)

    lines = [
        {
            "colour": colour,
            "raw": [_path(places(at), scale.height(values)) for at, values in curve.raw],
            "mean": _path(places(curve.at), scale.height(curve.mean)),
            "band": _ring(places(curve.at), scale.height(curve.low), scale.height(curve.high))
            if len(curve.raw) > 1
            else "",
        }
        for _, curve, colour in drawn
    ]
    ends = ", ".join(f"{group.name} from {text(curve.mean[0])} to {text(curve.mean[-1])}" for group, curve, _ in drawn)
    lines_end = [(colour, group.name, float(scale.height(curve.mean[-1]))) for group, curve, colour in drawn]
    labels = zip(ticks, tick_labels(name, ticks), strict=True)
    return {
        "name": name,
        "title": title,
        "large": large,
        "labels": end_labels(lines_end, 58 if large else 95, 0, 1000) if len(groups) > 1 else [],
        "main": name in MAIN,
        "lines": lines,
        "ticks": [(round(float(scale.height(tick)), 1), label) for tick, label in labels],
        "ends": (1, last),
        "logarithmic": scale.logarithmic,
        "bounds": _bounds(groups, scale) if name in ("success", "validation") else [],
        "signs": _marks(groups, name, places),
        "label": f"{title} by iteration, smoothed: {ends}.",
        "readout": {
            "last": last,
            "places": [
                [colour, [[int(i), text(value)] for i, value in zip(curve.at, curve.mean, strict=True)]]
                for _, curve, colour in drawn
            ],
        },
    }


def _bounds(groups: Sequence[SeedGroup], scale: Scale) -> list[dict[str, Any]]:
    """Lines of random replies, the blind script and optimal play; in a group's colour where they differ."""
    lines = []
    for kind, name in (("random", "random replies"), ("blind", "blind script"), ("optimal", "optimal play")):
        rates = {
            (group.colour, round(rate["rate"], 4)): (group, rate["rate"])
            for group in groups
            for rate in group.rates(kind).values()
        }
        alike = len({value for _, value in rates}) == 1
        for group, rate in [*rates.values()][:1] if alike else rates.values():
            whose = "" if alike else f", {group.name}"
            words = f"{name}{whose}: {format_metric('success', rate)}"
            height = round(float(scale.height(rate)), 1)
            colour = None if alike else group.colour % COLOURS
            lines.append({"kind": kind, "y": height, "said": words, "colour": colour})
    return lines


def _marks(groups: Sequence[SeedGroup], name: str, places: Any) -> list[dict[str, Any]]:
    """Where signs of the Echo Trap were first seen that are about this figure; of the success, all of them."""
    return [
        {
            "x": round(float(places(np.array([sign.iteration + 1.0]))[0]), 1),
            "colour": group.colour % COLOURS,
            "said": f"{run.name}: {sign_label(sign.name)} after iteration {sign.iteration + 1}",
        }
        for group in groups
        for run in group.runs
        for sign in run.signs
        if name == "success" or SIGNS.get(sign.name) == name
    ]


def _points(x: Floats, y: Floats) -> list[str]:
    """Some ``POINTS`` at most: both ends, and of each stretch its highest and its lowest, so that no spike is lost."""
    order = np.arange(len(x))
    if len(x) > POINTS:
        chosen = {0, len(x) - 1}
        for stretch in np.array_split(order, POINTS // 2):
            chosen |= {int(stretch[y[stretch].argmin()]), int(stretch[y[stretch].argmax()])}
        order = np.array(sorted(chosen))
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x[order], y[order], strict=True)]


def _path(x: Floats, y: Floats) -> str:
    """A line through the points; a single one is a stroke of no length, which round ends make a dot."""
    points = _points(x, y)
    return "M" + "L".join(points if len(points) > 1 else points * 2)


def _ring(x: Floats, low: Floats, high: Floats) -> str:
    return "M" + "L".join([*_points(x, high), *reversed(_points(x, low))]) + "Z"
