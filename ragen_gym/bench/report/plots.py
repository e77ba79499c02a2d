"""The numbers of the page's plots: where each mark lies, in percent of its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ragen_gym.bench.report.tables import percent

__all__ = ["COLOURS", "ladders", "strips"]

#: Colours of the page's style for agents, which repeat after these.
COLOURS = 8

_LEFT, _RIGHT, _TOP, _BOTTOM = 13.0, 100.0, 5.0, 86.0

Summary = Mapping[str, Any]


def strips(summaries: Sequence[Summary], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each split a lane an agent, and one with what others published."""
    return [_split(name, [(place, s) for place, s in enumerate(summaries) if name in s["splits"]]) for name in names]


def _split(name: str, summaries: Sequence[tuple[int, Summary]]) -> dict[str, Any]:
    lanes = []
    marks, bounds = None, ""
    for place, summary in summaries:
        split = summary["splits"][name]
        success = split["success"]
        lanes.append(
            {
                "name": summary["agent"],
                "colour": place % COLOURS,
                "rate": None if success["rate"] is None else _share(success["rate"]),
                "low": _share(success["low"]),
                "high": _share(success["high"]),
                "value": percent(success["rate"]),
                "reported": [],
                "label": f"{summary['agent']} on {name}: {percent(success['rate'])}, "
                f"{percent(success['low'])} to {percent(success['high'])}",
            }
        )
        if "random" in split and marks is None:
            random, optimal = split["random"]["rate"], split["optimal"]["rate"]
            left, right = sorted((_share(random), _share(optimal)))
            marks = {"random": _share(random), "optimal": _share(optimal), "left": left, "span": round(right - left, 2)}
            bounds = f"random {percent(random)} · optimal {percent(optimal)}"
    published = summaries[0][1]["splits"][name].get("published")
    if published:
        said = "; ".join(f"{who} {percent(rate)}" for who, rate in published.items())
        lanes.append(
            {
                "name": "published",
                "colour": 0,
                "rate": None,
                "value": "",
                "reported": [(_share(rate), f"{who}: {percent(rate)}") for who, rate in published.items()],
                "label": f"Published by others on {name}: {said}",
            }
        )
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
    bounds = [
        {"kind": kind, "segments": _segments([(x, _height(rate)) for x, rate in _bound(kind, at, summaries)])}
        for kind in ("random", "optimal")
    ]
    series: list[dict[str, Any]] = []
    for place, summary in enumerate(summaries):
        # Next to each other, so that one agent's interval does not hide another's.
        aside = (place - (len(summaries) - 1) / 2) * min(2.5, step / 3 / len(summaries))
        points: list[tuple[Any, ...]] = []
        for name, x in at.items():
            success = summary["splits"].get(name, {}).get("success")
            if success and success["rate"] is not None:
                said = f"{summary['agent']}, {name}: {percent(success['rate'])}"
                heights = [_height(success[end]) for end in ("rate", "low", "high")]
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


def _bound(kind: str, at: dict[str, float], summaries: Sequence[Summary]) -> list[tuple[float, float]]:
    found = []
    for name, x in at.items():
        rates = [s["splits"][name][kind]["rate"] for s in summaries if kind in s["splits"].get(name, {})]
        if rates:
            found.append((x, rates[0]))
    return found


def _segments(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    return [(*one, *other) for one, other in pairwise(points)]


def _share(share: float) -> float:
    return round(100 * share, 2)


def _height(share: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * share, 2)
