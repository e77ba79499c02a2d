"""Signals of three training runs, one that learns, one that is stuck, one that collapses: a picture of the docs.

    python -m benchmarks.training_signals    # some minutes; --draw uses the signals on disk

The runs are the arms of ``training_signals.toml``, one seed each. Written are ``training_signals.json`` and, for
the page ``docs/concepts/training_signals.md``, its pictures; the page's table is printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from benchmarks import machine, markdown_table, page_parser, read_results
from benchmarks.experiments.plan import plan
from benchmarks.experiments.plots import COLOURS
from benchmarks.experiments.runner import run_all
from benchmarks.experiments.spec import read
from ragen_agent.report.runs import load_run
from ragen_agent.update.metrics import metric_label, smooth
from ragen_gym.core.storage import write_atomic

TABLE = Path(__file__).with_suffix(".toml")
#: Seeds of the arms of ``TABLE``.
RUNS = {"learning": 2, "stuck": 1, "collapsing": 4}
SIGNALS = ("success", "return", "return_std", "entropy", "grad_norm", "kl", "mutual_information", "invalid_rate")
PAGE = Path(__file__).parents[1] / "docs" / "concepts" / "training_signals.md"
DIGITS = 5
ENDS = 5  # iterations, of which the table has the mean


def play(folder: Path, console: Console) -> dict[str, dict[str, Any]]:
    """Play the runs in ``folder``; their signals by iteration, and the success of random and of optimal play."""
    found = {}
    for name, seed in RUNS.items():
        planned = plan(read(str(TABLE)), folder, seed + 1, only=[name])[-1]
        if failures := run_all([planned], 1, console):
            raise RuntimeError(f"{name}: {failures}")
        run = load_run(planned.folder)
        found[name] = {
            "seed": seed,
            **{line: run.summary[line]["rate"] for line in ("random", "optimal")},
            "signals": {
                signal: [None if row.get(signal) is None else round(row[signal], DIGITS) for row in run.metrics]
                for signal in SIGNALS
                if any(row.get(signal) is not None for row in run.metrics)
            },
        }
    return found


def draw(runs: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """A picture for each signal, with a line for each run: the values, faint, and their moving average."""
    for signal in SIGNALS:
        figure = Figure(figsize=(4.6, 2.6), layout="constrained")
        axes = figure.subplots()
        for colour, (name, run) in zip(COLOURS, runs.items(), strict=False):
            points = [(i, value) for i, value in enumerate(run["signals"].get(signal, ())) if value is not None]
            if points:
                iterations, values = zip(*points, strict=True)
                axes.plot(iterations, values, color=colour, alpha=0.3, linewidth=0.8)
                axes.plot(iterations, smooth(values), color=colour, linewidth=1.8, label=name)
        axes.set_title(metric_label(signal), fontsize=9)
        axes.set_xlabel("iteration", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        figure.legend(loc="outside lower center", ncols=len(runs), fontsize=8, frameon=False)
        path = folder / f"signal-{signal}.png"
        figure.savefig(path, dpi=110)
        Image.open(path).convert("RGB").quantize(32, dither=Image.Dither.NONE).save(path, optimize=True)


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The means of each signal's first and last iterations, a column for each run, in Markdown."""
    rows = []
    for signal in SIGNALS:
        values = [[each for each in run["signals"].get(signal, ()) if each is not None] for run in runs.values()]
        ends = [[f"{fmean(part):.2f}" for part in (each[:ENDS], each[-ENDS:]) if part] for each in values]
        rows.append([metric_label(signal), *(" → ".join(each) or "not measured" for each in ends)])
    return markdown_table([f"first {ENDS} → last {ENDS} iterations", *runs], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the runs that are missing in ``runs/training_signals``, and write their signals and the picture."""
    parser = page_parser("training_signals", __doc__)
    parser.add_argument("--draw", action="store_true", help="draw the signals on disk; play nothing")
    options = parser.parse_args(arguments)
    kept = options.out / "training_signals.json"
    if not options.draw:
        played = {"machine": machine("torch", "numpy"), "runs": play(Path("runs/training_signals"), Console())}
        write_atomic(kept, json.dumps(played) + "\n")
    runs = read_results(options.out, "training_signals")["runs"]
    draw(runs, PAGE.parent)
    print(table(runs))


if __name__ == "__main__":
    main()
