"""The curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ragen_agent.config import Config

__all__ = ["measured_on", "plot_curve"]

LINES = {"optimal": "tab:green", "demonstrator": "tab:purple", "random": "tab:gray"}


def measured_on(config: Config) -> str:
    """What the rates at the ends were measured on."""
    split = config.evaluation.split
    return "fixed levels of the training split" if split == "train" else f"held-out {split} levels"


def plot_curve(metrics: Sequence[Mapping[str, Any]], rates: Mapping[str, Any], path: Path, config: Config) -> None:
    """Success in training by iteration, the measured rates at its ends, and the scripted players as lines."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    successes = [record["success"] for record in metrics]
    iterations = np.arange(1, len(successes) + 1)
    axes.plot(iterations, successes, color="tab:blue", alpha=0.3, linewidth=1, label="training levels, each iteration")
    width = min(9, len(successes))
    if width > 1:
        smooth = np.convolve(successes, np.full(width, 1 / width), mode="valid")
        axes.plot(iterations[width - 1 :], smooth, color="tab:blue", label=f"mean of {width} iterations")
    for row, place in (("before", 0), ("after", len(successes))):
        if row in rates:
            rate = rates[row]
            error = [[rate["rate"] - rate["low"]], [rate["high"] - rate["rate"]]]
            label = (
                f"{measured_on(config)}, 95 % interval (temperature {config.evaluation.temperature:g})"
                if row == "after"
                else None
            )
            axes.errorbar([place], [rate["rate"]], error, fmt="o", color="tab:red", capsize=4, label=label)
    for row, color in LINES.items():
        if row in rates:
            axes.axhline(
                rates[row]["rate"], color=color, linestyle="--", label=f"{row} {100 * rates[row]['rate']:.0f} %"
            )
    name = config.training.algo.upper().replace("_", " ")
    axes.set(
        xlabel="iteration",
        ylabel="success",
        ylim=(-0.02, 1.04),
        title=f"{config.game}, {'StarPO-S' if config.training.starpo_s else 'StarPO'} ({name}), seed {config.seed}",
    )
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    temporary = path.with_name(path.name + ".tmp")
    figure.savefig(temporary, format="png", dpi=130)
    temporary.replace(path)
