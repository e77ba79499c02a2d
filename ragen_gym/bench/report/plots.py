"""The numbers of the page's plots: where each mark lies, in percent of its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ragen_gym.bench.report.tables import success
from ragen_gym.core.stats import percent

__all__ = ["COLOURS", "bound_marks", "bound_rate", "bounding_split", "ladders", "lane", "strips"]

#: Colours of the page's style for agents, which repeat after these.
COLOURS = 8

_LEFT, _RIGHT, _TOP, _BOTTOM = 13.0, 100.0, 5.0, 86.0

Summary = Mapping[str, Any]


def strips(summaries: Sequence[Summary], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each split a lane an agent, and one with what others published."""
    return [_split(name, [(place, s) for place, s in enumerate(summaries) if name in s["splits"]]) for name in names]


def lane(
    name: str,
    colour: int | str,
    rate: Mapping[str, Any] | None,
    label: str,
    reported: Sequence[tuple[float, str]] = (),
) -> dict[str, Any]:
    """A lane as ``templates/plots.html`` draws it.

    Args:
        name: at its left.
        colour: number of its colour, or ``"x"`` for none.
        rate: ``rate``, ``low`` and ``high`` from 0 to 1; None draws no point.
        label: what it shows, in words.
        reported: thin marks: a rate from 0 to 1, and what it is.
    """
    places: dict[str, float | None] = {"rate": None}
    if rate is not None:
        places = {end: None if rate[end] is None else _share(rate[end]) for end in ("rate", "low", "high")}
    return {
        "name": name,
        "colour": colour,
        **places,
        "value": "" if rate is None else percent(rate["rate"]),
        "reported": [(_share(share), what) for share, what in reported],
        "label": label,
    }


def bound_marks(random: float, optimal: float) -> dict[str, float]:
    """The marks of random and optimal play, and the band between them."""
    left, right = sorted((_share(random), _share(optimal)))
    return {"random": _share(random), "optimal": _share(optimal), "left": left, "span": round(right - left, 2)}


def _split(name: str, summaries: Sequence[tuple[int, Summary]]) -> dict[str, Any]:
    lanes = []
    for place, summary in summaries:
        split = summary["splits"][name]
        solved = success(split)
        rate, low, high = (percent(solved[end]) for end in ("rate", "low", "high"))
        label = f"{summary['agent']} on {name}: {rate}, {low} to {high}"
        lanes.append(lane(summary["agent"], place % COLOURS, solved, label))
    random, optimal = (bound_rate(kind, name, [summary for _, summary in summaries]) for kind in ("random", "optimal"))
    marks, bounds = None, ""
    if random is not None and optimal is not None:
        blind = bound_rate("blind", name, [summary for _, summary in summaries])
        known = {"random": random, "blind": blind, "optimal": optimal}
        bounds = " · ".join(f"{kind} {percent(rate)}" for kind, rate in known.items() if rate is not None)
        marks = bound_marks(random, optimal)
    published = summaries[0][1]["splits"][name].get("published")
    if published:
        said = "; ".join(f"{who} {percent(rate)}" for who, rate in published.items())
        reported = [(rate, f"{who}: {percent(rate)}") for who, rate in published.items()]
        lanes.append(lane("published", 0, None, f"Published by others on {name}: {said}", reported))
    return {"name": name, "bounds": bounds, "marks": marks, "lanes": lanes}


def ladders(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """A curve for each ladder of difficulty: success from rung to rung, of every agent, of random and optimal play."""
    rungs: dict[str, list[str]] = {}
    for summary in summaries:
        for name, split in summary["splits"].items():
            if split.get("ladder") and name not in rungs.setdefault(split["ladder"], []):
                rungs[split["ladder"]].append(name)
    return [_ladder(ladder, names, summaries) for ladder, names in rungs.items() if len(names) > 1]


def _ladder(ladder: str, names: Sequence[str], summaries: Sequence[Summary]) -> dict[str, Any]:
    step = (_RIGHT - _LEFT) / len(names)
    at = {name: round(_LEFT + step * (place + 0.5), 2) for place, name in enumerate(names)}
    bounds = []
    for kind in ("random", "optimal"):
        rates = [(x, bound_rate(kind, name, summaries)) for name, x in at.items()]
        bounds.append({"kind": kind, "segments": _segments([(x, _height(r)) for x, r in rates if r is not None])})
    series: list[dict[str, Any]] = []
    for place, summary in enumerate(summaries):
        # Next to each other, so that one agent's interval does not hide another's.
        aside = (place - (len(summaries) - 1) / 2) * min(2.5, step / 3 / len(summaries))
        points: list[tuple[Any, ...]] = []
        for name, x in at.items():
            solved = success(summary["splits"][name]) if name in summary["splits"] else None
            if solved and solved["rate"] is not None:
                said = f"{summary['agent']}, {name}: {percent(solved['rate'])}"
                heights = [_height(solved[end]) for end in ("rate", "low", "high")]
                points.append((round(x + aside, 2), *heights, said))
        line = _segments([(x, y) for x, y, *_ in points])
        series.append({"colour": place % COLOURS, "points": points, "segments": line})
    described = "; ".join(said for one in series for *_, said in one["points"])
    return {
        "name": ladder,
        "label": f"Success on the ladder {ladder}. {described}",
        "ticks": [(_height(share), f"{share:.0%}".replace("%", " %")) for share in (0, 0.5, 1)],
        "rungs": [(x, name.removeprefix(ladder).strip("_") or name) for name, x in at.items()],
        "bounds": bounds,
        "series": series,
    }


def bound_rate(kind: str, name: str, summaries: Sequence[Summary]) -> float | None:
    """The success of "random", "blind" or "optimal" play on a split, on the levels of ``bounding_split``."""
    split = bounding_split(kind, name, summaries)
    return None if split is None else split[kind]["rate"]


def bounding_split(kind: str, name: str, summaries: Sequence[Summary]) -> Summary | None:
    """The split in the summary of the run that scored most of its levels; the bounds of other runs are of fewer."""
    played = [s["splits"][name] for s in summaries if kind in s["splits"].get(name, {})]
    return max(played, key=lambda split: split["levels"], default=None)


def _segments(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    return [(*one, *other) for one, other in pairwise(points)]


def _share(share: float) -> float:
    return round(100 * share, 2)


def _height(share: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * share, 2)
