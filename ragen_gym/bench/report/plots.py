"""The numbers of the page's plots: where each mark lies, in percent of its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from ragen_gym.bench.report.tables import success
from ragen_gym.core.stats import percent

#: Colours of the page's style for agents and runs.
COLOURS = 6
#: Characters of a label at the end of a line.
LABEL = 14

Summary = Mapping[str, Any]


def end_labels(lines: Sequence[tuple[int, str, float]], gap: float, top: float, bottom: float) -> list[dict[str, Any]]:
    """Labels beside the ends of lines, at least ``gap`` apart, without the words that all names begin with.

    Args:
        lines: colour, name and height of the end of each, heights growing downwards.
        gap: between two labels.
        top: least height of a label.
        bottom: largest height of a label, unless there are too many for the space.
    """
    order = sorted(lines, key=lambda line: line[2])
    words = zip(*(name.split() for _, name, _ in lines), strict=False)
    shared = sum(1 for _ in takewhile(lambda each: len({*each}) == 1, words))
    heights: list[float] = []
    for _, _, height in order:
        heights.append(max(height, heights[-1] + gap if heights else top))
    limit = bottom
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], limit)
        limit = heights[place] - gap
    return [
        {
            "colour": colour,
            "y": round(height, 2),
            "name": name,
            "text": _short(" ".join(name.split()[shared:]) or name),
        }
        for (colour, name, _), height in zip(order, heights, strict=True)
    ]


def strips(summaries: Sequence[Summary], names: Sequence[str]) -> list[dict[str, Any]]:
    """For each split a lane an agent, and one with what others published."""
    return [_split(name, [(place, s) for place, s in enumerate(summaries) if name in s["splits"]]) for name in names]


def _short(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1].rstrip(" ,") + "\N{HORIZONTAL ELLIPSIS}"


def _lane(
    name: str,
    colour: int,
    rate: Mapping[str, Any] | None,
    label: str,
    reported: Sequence[tuple[float, str]] = (),
) -> dict[str, Any]:
    """A lane as ``templates/plots.html`` draws it.

    Args:
        name: at its left.
        colour: number of its colour.
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


def _bound_marks(random: float, optimal: float) -> dict[str, float]:
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
        lanes.append(_lane(summary["agent"], place % COLOURS, solved, label))
    random, optimal = (bound_rate(kind, name, [summary for _, summary in summaries]) for kind in ("random", "optimal"))
    marks, bounds = None, ""
    if random is not None and optimal is not None:
        blind = bound_rate("blind", name, [summary for _, summary in summaries])
        known = {"random": random, "blind": blind, "optimal": optimal}
        bounds = " · ".join(f"{kind} {percent(rate)}" for kind, rate in known.items() if rate is not None)
        marks = _bound_marks(random, optimal)
    published = summaries[0][1]["splits"][name].get("published")
    if published:
        said = "; ".join(f"{who} {percent(rate)}" for who, rate in published.items())
        reported = [(rate, f"{who}: {percent(rate)}") for who, rate in published.items()]
        lanes.append(_lane("published", 0, None, f"Published by others on {name}: {said}", reported))
    return {"name": name, "bounds": bounds, "marks": marks, "lanes": lanes}


def bound_rate(kind: str, name: str, summaries: Sequence[Summary]) -> float | None:
    """The success of "random", "blind" or "optimal" play on a split, on the levels of ``bounding_split``."""
    split = bounding_split(kind, name, summaries)
    return None if split is None else split[kind]["rate"]


def bounding_split(kind: str, name: str, summaries: Sequence[Summary]) -> Summary | None:
    """The split in the summary of the run that scored most of its levels; the bounds of other runs are of fewer."""
    played = [s["splits"][name] for s in summaries if kind in s["splits"].get(name, {})]
    return max(played, key=lambda split: split["levels"], default=None)


def _share(share: float) -> float:
    return round(100 * share, 2)
