"""The plots of an experiment: one measure of all arms side by side, and curves by iteration.

Arms whose names all begin with a word and a comma, such as a game, have a panel or a row of panels for each such word.
Controls are grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from benchmarks.experiments.hypothesis_tests import Runs, summarise
from benchmarks.experiments.spec import MEASURES, Arm, Experiment, measure
from ragen_agent.report.runs import RecordedRun
from ragen_agent.update.metrics import is_share, metric_label, smooth
from ragen_gym.core.storage import atomic_path

#: Safe for colour-blind readers (Okabe and Ito, 2008); after these other line styles begin.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
CONTROL = "#8A8A8A"
STYLES = ("-", "--", ":", "-.")
COLUMNS = 3

BOUNDED = ("end", "after", "before")  # measured on the fixed levels, as random and optimal play are


def draw_arms(experiment: Experiment, runs: Runs, name: str, path: Path) -> None:
    """One measure: each seed a small dot, the mean with its interval over seeds.

    Of success on the fixed levels random play, the blind script and optimal play are lines, an arm's start is a tick.
    """
    panels = _panels(experiment, runs)
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(max(8.4, 5.6 * len(panels)), 1.6 + 0.42 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    scale = 100 if MEASURES[name].rate else 1
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)
    for axes, (title, arms) in zip(grid.ravel(), panels.items(), strict=True):
        for place, arm in enumerate(arms):
            values = [value for run in runs[arm.name].values() if (value := measure(run, name)) is not None]
            colour = CONTROL if arm.control else COLOURS[0]
            axes.plot([scale * v for v in values], [place] * len(values), "o", color=colour, alpha=0.3, markersize=5)
            found = summarise(runs, arm.name, name)
            if found is not None:
                half = scale * found.half_width if found.n > 1 else 0.0
                axes.errorbar(scale * found.value, place, xerr=half, fmt="D", color=colour, capsize=4, markersize=6)
            start = summarise(runs, arm.name, "before")
            if name in ("end", "after") and start is not None:
                axes.plot(scale * start.value, place, "|", color=COLOURS[1], markersize=16, markeredgewidth=2)
        axes.set_yticks(range(len(arms)), [_label(arm, title) for arm in arms], fontsize=9)
        axes.set_ylim(rows - 0.5, -0.9)
        if MEASURES[name].rate and not MEASURES[name].signed:
            axes.set_xlim(-2, 104)
        axes.grid(axis="x", alpha=0.25)
        axes.set_title(title, fontsize=10, loc="left", pad=16)
        axes.set_xlabel(MEASURES[name].about + (" (%)" if MEASURES[name].rate else ""), fontsize=9)
        lines: dict[float, list[str]] = {}
        for line in ("random", "blind", "optimal") if name in BOUNDED else ():
            bound = summarise(runs, arms[0].name, line)
            if bound is not None:
                lines.setdefault(round(scale * bound.value, 1), []).append(line)
        for value, named in lines.items():
            axes.axvline(value, color="0.45", linestyle=":", linewidth=1.5)
            at = axes.get_xaxis_transform()
            axes.text(value, 1.01, ", ".join(named), transform=at, ha="center", va="bottom", fontsize=8)
    tick = "; red tick: start" if name in ("end", "after") else ""
    figure.suptitle(f"mean with its 95 % interval over seeds{tick}", fontsize=10)
    save_figure(figure, path)


def draw_curves(experiment: Experiment, runs: Runs, path: Path) -> None:
    """A panel for each figure: by arm the mean of the smoothed seeds; labels stand at the first panel.

    A run that was stopped early keeps its last value to the end; a cross stands where it stopped.
    """
    records = [record for arm in runs.values() for run in arm.values() for record in run.metrics]
    names = [name for name in experiment.curves if any(name in record for record in records)]
    groups = _panels(experiment, runs)
    rows = max(1, -(-len(names) // COLUMNS))
    figure = Figure(figsize=(4.0 * COLUMNS + 1.8, 2.7 * rows * len(groups) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    # The second column is empty: it has the labels of the lines in the first.
    grid = figure.subplots(rows * len(groups), COLUMNS + 1, squeeze=False, width_ratios=[1, 0.45, *[1] * (COLUMNS - 1)])
    for axes in grid.ravel():
        axes.set_axis_off()
    for number, (title, arms) in enumerate(groups.items()):
        panels = np.delete(grid[rows * number : rows * (number + 1)], 1, axis=1).ravel()
        for panel, name in zip(panels, names, strict=False):
            panel.set_axis_on()
            ends = _draw_lines(panel, arms, runs, name)
            panel.set_title(f"{title}: {metric_label(name)}" if title else metric_label(name), fontsize=10)
            panel.grid(alpha=0.25)
            if is_share(name):
                panel.set_ylim(bottom=0)
            panel.set_xlabel("iteration", fontsize=9)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.tick_params(labelsize=8)
            if name == names[0]:
                label_ends(panel, {_label(arm, title): ends[arm.name] for arm in arms if arm.name in ends})
    how = "mean over seeds, smoothed (EMA 0.25); grey: control; cross: a run was stopped"
    figure.suptitle(how, fontsize=10)
    save_figure(figure, path)


def _panels(experiment: Experiment, runs: Runs) -> dict[str, list[Arm]]:
    """The arms with runs by the first word of their names, if all have one before a comma; else all under ""."""
    arms = [arm for arm in experiment.arms if arm.name in runs]
    split = all(", " in arm.name for arm in experiment.arms)
    panels: dict[str, list[Arm]] = {}
    for arm in arms:
        panels.setdefault(arm.name.split(", ")[0] if split else "", []).append(arm)
    return panels


def _label(arm: Arm, panel: str) -> str:
    return arm.name.removeprefix(f"{panel}, ") + (" (control)" if arm.control else "")


def _draw_lines(panel: Axes, arms: Sequence[Arm], runs: Runs, name: str) -> dict[str, tuple[float, str]]:
    """Last value and colour of each arm's line."""
    ends, colours, greys = {}, count(), count()
    for arm in arms:
        place = next(greys if arm.control else colours)
        colour = CONTROL if arm.control else COLOURS[place % len(COLOURS)]
        style = STYLES[(place if arm.control else place // len(COLOURS)) % len(STYLES)]
        seeds = [run for _, run in sorted(runs[arm.name].items()) if any(name in record for record in run.metrics)]
        if seeds:
            ends[arm.name] = (draw_mean(panel, seeds, name, colour, style), colour)
    return ends


def label_ends(panel: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Names to the right of a panel's lines, moved apart where lines end close together."""
    low, high = panel.get_ylim()
    gap, heights = 0.09 * (high - low), list[float]()
    placed = sorted(ends.items(), key=lambda each: each[1][0])
    for _, (value, _) in placed:
        heights.append(max(value, heights[-1] + gap) if heights else value)
    top = high
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], top)
        top = heights[place] - gap
    for (name, (value, colour)), height in zip(placed, heights, strict=True):
        label = panel.annotate(
            name,
            (1.0, value),
            (1.05, height),
            xycoords=panel.get_yaxis_transform(),
            textcoords=panel.get_yaxis_transform(),
            color=colour,
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
        )
        label.set_in_layout(False)  # it has a column of its own


def draw_mean(panel: Axes, runs: Sequence[RecordedRun], name: str, colour: str, style: str) -> float:
    """Draw an arm's mean over seeds; its last mean."""
    curves = [np.array(smooth([float(r[name]) for r in run.metrics if name in r])) for run in runs]
    places = [np.array([r["iteration"] + 1 for r in run.metrics if name in r]) for run in runs]
    ends = [run.config.training.iterations for run in runs if len(run.metrics) < run.config.training.iterations]
    grid = np.unique(np.concatenate([*places, np.array(ends, dtype=int)]))
    table = np.full((len(curves), len(grid)), np.nan)
    for row, (run, curve, at) in enumerate(zip(runs, curves, places, strict=True)):
        table[row, np.searchsorted(grid, at)] = curve
        if len(run.metrics) < run.config.training.iterations:
            table[row, grid > at[-1]] = curve[-1]
            panel.plot(at[-1], curve[-1], "x", color=colour, markersize=6)
    mean = np.nanmean(table, axis=0)
    panel.plot(grid, mean, style, color=colour, linewidth=1.6)
    return float(mean[-1])


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG of 128 colours, whole or not at all."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
        picture = Image.open(temporary).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        picture.save(temporary, format="png", optimize=True)
