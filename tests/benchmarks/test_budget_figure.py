"""The figure of stated budgets: a row for each agent, its scores and the constants beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from benchmarks.budget_figure import draw
from benchmarks.experiments.plots import CONTROL


def row(score: float, constant: float) -> dict[str, Any]:
    of = {"score": {"mean": score, "low": score - 1, "high": score + 1}, "constant": {"score": constant}}
    of["clock"] = {"score": constant / 2}
    return {"budget": {"optimal": of, "own": of}}


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def test_scores_stand_beside_the_constants_of_the_same_statements() -> None:
    slippery = {"oracle, honest": row(3, 5), "oracle, always impossible": row(20, 5)}
    rewards = {"start": [row(6, 4)], "none": [row(7, 4), row(9, 6)]}
    upper, lower = draw({"a": row(0, 2), "b": row(8, 3)}, slippery, rewards).axes
    assert [text.get_text() for text in upper.get_yticklabels()] == ["a", "b"]
    named = [text.get_text() for text in lower.get_yticklabels()]
    assert named == ["oracle, honest", "small model at the start", "success alone"]
    ticks = [xs(line)[0] for line in lower.lines if line.get_marker() == "|" and line.get_color() == "black"]
    assert ticks == [5, 4, 5] * 2, "the mean over seeds, against each truth"
    clocks = [xs(line)[0] for line in lower.lines if line.get_marker() == "|" and line.get_color() == CONTROL]
    assert clocks == [2.5, 2, 2.5] * 2
    means = [xs(line)[0] for line in lower.lines if line.get_marker() == "D"]
    assert means == [3, 6, 8] * 2
    seeds = [xs(line) for line in lower.lines if line.get_marker() == "o"]
    assert seeds == [[7, 9]] * 2
