"""The plots of an experiment: curves by iteration, and one measure of all arms side by side or as lines of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from benchmarks.experiments.hypothesis_tests import Runs, summarise
from benchmarks.experiments.spec import MEASURES, Experiment, measure
from ragen_agent.report.runs import RecordedRun
from ragen_agent.update.metrics import is_share, metric_label, smooth
from ragen_gym.core.storage import atomic_path

__all__ = ["COLOURS", "draw_arms", "draw_curves", "draw_sweep"]

#: Safe for colour-blind readers (Okabe and Ito, 2008, without its yellow); after these other line styles begin.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":")
COLUMNS = 3

BOUNDED = ("end", "after", "before")  # measured on the fixed levels, as random and optimal play are


def draw_curves(experiment: Experiment, runs: Runs, path: Path) -> None:
    """A panel for each figure: by arm the mean of the smoothed seeds and their range.

    A run that was stopped early keeps its last value to the end; a cross stands where it stopped.
    """
    records = [record for arm in runs.values() for run in arm.values() for record in run.metrics]
    names = [name for name in experiment.curves if any(name in record for record in records)]
    rows = max(1, -(-len(names) // COLUMNS))
    figure = Figure(figsize=(4.2 * COLUMNS, 2.9 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for panel, name in zip(panels, names, strict=False):
        for place, arm in enumerate(experiment.arms):
            _band(panel, [run for _, run in sorted(runs.get(arm.name, {}).items())], name, place, arm.name)
        panel.set_title(metric_label(name), fontsize=10)
        panel.grid(alpha=0.25)
        if is_share(name):
            panel.set_ylim(-0.03, 1.03)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    for panel in panels[: len(names)]:
        panel.set_xlabel("iteration", fontsize=9)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelsize=8)
    if names:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    how = "mean over seeds, smoothed (EMA 0.25); shaded: range over seeds; cross: a run was stopped"
    figure.suptitle(f"{experiment.title}\n{how}", fontsize=11)
    _save(figure, path)


def draw_arms(experiment: Experiment, runs: Runs, name: str, path: Path) -> None:
    """One measure: every seed a small dot, the mean with its interval over seeds; random and optimal play as lines."""
    arms = [arm.name for arm in experiment.arms if arm.name in runs]
    figure = Figure(figsize=(8.4, 1.4 + 0.42 * len(arms)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    scale = 100 if MEASURES[name].rate else 1
    for place, arm in enumerate(arms):
        values = [value for run in runs[arm].values() if (value := measure(run, name)) is not None]
        colour = COLOURS[[a.name for a in experiment.arms].index(arm) % len(COLOURS)]
        axes.plot([scale * v for v in values], [place] * len(values), "o", color=colour, alpha=0.35, markersize=5)
        found = summarise(runs, arm, name)
        if found is not None:
            half = scale * found.half_width if found.n > 1 else 0.0
            axes.errorbar(scale * found.value, place, xerr=half, fmt="D", color=colour, capsize=4, markersize=6)
        if name in BOUNDED:
            for line, style in (("random", ":"), ("optimal", "-")):
                bound = summarise(runs, arm, line)
                if bound is not None:
                    axes.plot(
                        [scale * bound.value] * 2, [place - 0.35, place + 0.35], style, color="0.45", linewidth=1.5
                    )
    axes.set_yticks(range(len(arms)), arms, fontsize=9)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    if MEASURES[name].rate and not MEASURES[name].signed:
        axes.set_xlim(-2, 104)
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlabel(MEASURES[name].about + (" (%)" if MEASURES[name].rate else ""), fontsize=9)
    lines = "; dotted random play, solid optimal play" if name in BOUNDED else ""
    axes.set_title(f"mean with its 95 % interval over seeds{lines}", fontsize=10)
    _save(figure, path)


def draw_sweep(experiment: Experiment, runs: Runs, name: str, path: Path) -> None:
    """One measure of a sweep: a panel for each game with runs, a line a method, the setting's value to the right.

    Means over seeds with their intervals; random and optimal play as grey lines.
    """
    sweep = experiment.sweep
    assert sweep is not None, "the arms are a sweep"
    games = [panel for panel in sweep.panels if any(run.startswith(f"{panel['name']}, ") for run in runs)]
    figure = Figure(figsize=(max(4.6 * len(games), 7.5), 5.6), layout="constrained")  # the legend is 7 inches wide
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(games), squeeze=False).ravel()
    scale = 100 if MEASURES[name].rate else 1
    for axes, panel in zip(panels, games, strict=True):
        for place, line in enumerate(sweep.lines):
            arms = [(factor, sweep.arm(panel["name"], line["name"], factor)) for factor in sweep.factors]
            found = [(sweep.value(panel, f), e) for f, arm in arms if (e := summarise(runs, arm, name)) is not None]
            if not found:
                continue
            axes.errorbar(
                [value * 1.02 ** (place - len(sweep.lines) / 2) for value, _ in found],  # intervals side by side
                [scale * estimate.value for _, estimate in found],
                yerr=[scale * estimate.half_width if estimate.n > 1 else 0.0 for _, estimate in found],
                color=COLOURS[place % len(COLOURS)],
                linestyle=STYLES[place // len(COLOURS) % len(STYLES)],
                marker="s" if line.get("control") else "o",
                markersize=4,
                capsize=2,
                linewidth=1.6,
                label=line["name"] + (" (control)" if line.get("control") else ""),
            )
            for bound, style in (("random", ":"), ("optimal", "-")) if name in BOUNDED and place == 0 else ():
                if (estimate := summarise(runs, arms[0][1], bound)) is not None:
                    axes.axhline(scale * estimate.value, color="0.6", linestyle=style, linewidth=1.2)
        axes.set_xscale("log")
        values = [sweep.value(panel, factor) for factor in sweep.factors]
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
        axes.set_xlim(min(values) / 1.5, max(values) * 1.5)
        axes.set_title(panel["name"], fontsize=10)
        axes.set_xlabel(sweep.setting, fontsize=9)
        axes.grid(alpha=0.25)
        if MEASURES[name].rate and not MEASURES[name].signed:
            axes.set_ylim(-2, 104)
    panels[0].set_ylabel(MEASURES[name].about + (" (%)" if MEASURES[name].rate else ""), fontsize=9)
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(6, 2 + 2 * len(games)),
        fontsize=9,
        frameon=False,
    )
    lines = "; dotted random play, solid optimal play" if name in BOUNDED else ""
    figure.suptitle(f"mean with its 95 % interval over seeds{lines}", fontsize=10)
    _save(figure, path)


def _band(panel: Axes, runs: Sequence[RecordedRun], name: str, place: int, label: str) -> None:
    known = [run for run in runs if any(name in record for record in run.metrics)]
    if not known:
        return
    curves = [np.array(smooth([float(r[name]) for r in run.metrics if name in r])) for run in known]
    places = [np.array([r["iteration"] + 1 for r in run.metrics if name in r]) for run in known]
    ends = [run.config.training.iterations for run in known if len(run.metrics) < run.config.training.iterations]
    grid = np.unique(np.concatenate([*places, np.array(ends, dtype=int)]))
    table = np.full((len(curves), len(grid)), np.nan)
    colour = COLOURS[place % len(COLOURS)]
    for row, (run, curve, at) in enumerate(zip(known, curves, places, strict=True)):
        table[row, np.searchsorted(grid, at)] = curve
        if len(run.metrics) < run.config.training.iterations:
            table[row, grid > at[-1]] = curve[-1]
            panel.plot(at[-1], curve[-1], "x", color=colour, markersize=6)
    style = STYLES[place // len(COLOURS) % len(STYLES)]
    panel.plot(grid, np.nanmean(table, axis=0), style, color=colour, linewidth=1.6, label=label)
    if len(curves) > 1:
        panel.fill_between(
            grid, np.nanmin(table, axis=0), np.nanmax(table, axis=0), color=colour, alpha=0.13, linewidth=0
        )


def _save(figure: Figure, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
        picture = Image.open(temporary).convert("RGB").quantize(64, dither=Image.Dither.NONE)
        picture.save(temporary, format="png", optimize=True)
