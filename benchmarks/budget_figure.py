"""The figure of ``benchmarks.budget``: how far statements are from the truth, beside the best constant ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.budget_rewards import ARMS
from benchmarks.experiments.plots import COLOURS, CONTROL
from ragen_gym.core.stats import mean_interval

TRUTHS = {"optimal": "against optimal play", "own": "against the agent's own episode"}
CONSTANTS = {"clock": CONTROL, "constant": "black"}  # colours of the ticks; those drawn later lie above
TICK: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 2}
APART = 0.17  # of a row, between the two truths


def draw(agents: Mapping[str, Any], slippery: Mapping[str, Any], rewards: Mapping[str, Sequence[Any]]) -> Figure:
    """Interval scores by agent on lakes without slip and, below, on slippery ones; of several seeds mean and dots.

    Args:
        agents: the rows of the first lakes, by name.
        slippery: the rows of the second; the honest ones are drawn.
        rewards: the rows of ``benchmarks.budget_rewards``, one or more for each reward, on the second lakes.
    """
    lower = {name: [row] for name, row in slippery.items() if name.endswith("honest")}
    lower |= {ARMS.get(name, "small model at the start"): list(rows) for name, rows in rewards.items()}
    heights = len(agents), len(lower)
    figure = Figure(figsize=(6.4, 1.6 + 0.34 * sum(heights)), layout="constrained")
    upper, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _panel(upper, {name: [row] for name, row in agents.items()}, "Lakes without slip")
    _panel(below, lower, "Slippery lakes, with the rewards of stated budgets")
    below.set_xlabel("interval score, actions (0 at best)")
    marks = [Line2D([], [], color=colour, marker="D", linestyle="", markersize=5) for colour in COLOURS[: len(TRUTHS)]]
    marks += [Line2D([], [], color=colour, linestyle="", **TICK) for colour in reversed(CONSTANTS.values())]
    labels = [*TRUTHS.values(), "best constant interval, in hindsight", "best by the number of actions left"]
    figure.legend(marks, labels, loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def _panel(axes: Axes, rows: Mapping[str, Sequence[Any]], title: str) -> None:
    for shift, truth, colour in zip((-APART, APART), TRUTHS, COLOURS, strict=False):
        for place, found in enumerate(rows.values()):
            scores = [row["budget"][truth]["score"] for row in found]
            values = [each["mean"] for each in scores]
            mean = mean_interval(values)
            ends = (mean.low, mean.high) if len(values) > 1 else (scores[0]["low"], scores[0]["high"])
            if len(values) > 1:
                axes.plot(values, [place + shift] * len(values), "o", color=colour, alpha=0.35, markersize=4)
            bar = [[mean.value - ends[0]], [ends[1] - mean.value]]
            axes.errorbar(mean.value, place + shift, xerr=bar, fmt="D", color=colour, capsize=3, markersize=5)
            for kind, tick in CONSTANTS.items():
                constant = mean_interval([row["budget"][truth][kind]["score"] for row in found]).value
                axes.plot(constant, place + shift, color=tick, **TICK)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=-0.4)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(axis="x", alpha=0.25)
