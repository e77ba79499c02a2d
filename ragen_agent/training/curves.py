"""A run's figures as a picture and as TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen_agent.config import Config
from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.storage import atomic_folder, atomic_path, read_json_lines

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardWriter", "check_tensorboard", "measured_on", "plot_curve", "write_events"]

LINES = {"optimal": "tab:green", "demonstrator": "tab:purple", "random": "tab:gray"}


def measured_on(config: Config) -> str:
    """What the rates at the ends were measured on."""
    split = config.evaluation.split
    return "fixed levels of the training split" if split == "train" else f"held-out {split} levels"


def plot_curve(metrics: Sequence[Mapping[str, Any]], rates: Mapping[str, Any], path: Path, config: Config) -> None:
    """Success in training by iteration, the measured rates at its ends, and the baselines as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def check_tensorboard() -> None:
    """Raises a ValueError unless TensorBoard is installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("event files need TensorBoard: run ``pip install tensorboard``.")


def write_events(folder: RunFolder) -> Path:
    """Writes ``tensorboard/`` anew from all iterations so far, the first of which is step 1.

    They are made from what was written down, so a run that was resumed has every iteration once.

    Raises:
        ValueError: TensorBoard is not installed, or the run writes its own: that of the distributed trainer, and one
            that is not over and has ``diagnostics.tensorboard`` set.
    """
    if (folder.path / "openrlhf.toml").is_file():
        raise ValueError(f"{folder.path}: the distributed trainer writes its own event files, in tensorboard/.")
    if RunFolder.reopen(folder.path)[1].diagnostics.tensorboard and "after" not in folder.read_summary():
        raise ValueError(f"{folder.path}: the run writes its own event files as it goes on, in tensorboard/.")
    return _write(folder)


class TensorBoardWriter:
    """The event files of a run that goes on: what ``write_events`` writes, and then each iteration as it comes."""

    def __init__(self, folder: RunFolder) -> None:
        self._writer = _writer(_write(folder))

    def add(self, record: Mapping[str, Any]) -> None:
        """One iteration, to be seen at once."""
        _add(self._writer, record)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


def _write(folder: RunFolder) -> Path:
    out = folder.path / "tensorboard"
    with atomic_folder(out) as temporary:
        writer = _writer(temporary)
        for record in read_json_lines(folder.metrics):
            _add(writer, record)
        writer.close()
    return out


def _writer(path: Path) -> SummaryWriter:
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path))


def _add(writer: SummaryWriter, record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        if isinstance(value, int | float) and name != "iteration" and isfinite(value):
            writer.add_scalar(name, value, record["iteration"] + 1)
