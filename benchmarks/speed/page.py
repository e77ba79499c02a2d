"""The results as a page and as plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.speed import number
from benchmarks.speed.measurements import TASKS, ratios

__all__ = ["plot", "write_page"]

_INTRO = """\
# Speed

Written by `python -m benchmarks.speed`, which measures all of this anew. Rates are per second of CPU time of one core
(every thread of a process counts), medians of {runs} runs; the lowest and highest are in `results.json`. Peers were
timed by the same timer in the same run, each in a virtual environment of its own; a row that was measured anew with
`--only WORDS --write` has the ratios of that run. The cores were shared with other work, so compare the ratios rather
than the digits.

Machine: {machine}.

A batch has 1,024 environments unless something else is said, takes random actions, and makes fresh arrays, observations
and infos at every step; a step in which an environment resets counts as its step. "Fresh" means that every episode has
a level of its own, generated while the clock runs.
"""


def write_page(path: Path, results: dict[str, Any]) -> None:
    """Write the page of these results."""
    rates, skipped = results["rates"], results["skipped"]
    lines = [_INTRO.format(runs=results["runs"], machine=results["machine"]), "## Environments and levels", ""]
    lines += ["| what | per second | target | against |", "|---|---|---|---|"]
    for task in TASKS:
        row = rates.get(task.key)
        if row is None or task.of_gymnasium:
            continue
        against = [f"{number(times)} times {rates[peer]['title']}" for peer, times in ratios(task, rates).items()]
        target = number(task.target) if task.target else ""
        lines.append(f"| {row['title']} | {number(row['rate'])} {row['unit']} | {target} | {'; '.join(against)} |")
    lines += ["", "## Others", "", "| what | per second | version |", "|---|---|---|"]
    ours = {task.key for task in TASKS if not task.of_gymnasium}
    for key, row in rates.items():
        if key not in ours:
            lines.append(f"| {row['title']} | {number(row['rate'])} {row['unit']} | {row['package']} |")
    lines += [f"| {row['title']} | skipped: {row['skipped']} | |" for row in skipped]
    lines += _tables(results)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tables(results: dict[str, Any]) -> list[str]:
    lines = ["", "## Growth", "", "Steps per second of FrozenLake, fresh lakes, in batches of n environments:", ""]
    lines += ["| n | grid | text |", "|---|---|---|"]
    for n in results["growth"]["grid"]:
        lines.append(
            f"| {int(n):,} | {number(results['growth']['grid'][n])} | {number(results['growth']['text'][n])} |"
        )
    lines += ["", "and by the side of the board, in batches of 1,024 on levels that are given:", ""]
    lines += ["| side | grid | text |", "|---|---|---|"]
    for side in results["sizes"]["grid"]:
        lines.append(
            f"| {side} | {number(results['sizes']['grid'][side])} | {number(results['sizes']['text'][side])} |"
        )
    if results.get("plot"):
        lines += ["", f"![Steps per second by batch size and by board]({results['plot']})"]
    lines += ["", "## Paid once", ""]
    for what, milliseconds in results["imports"].items():
        lines.append(f"- {what}: {milliseconds:.0f} ms")
    lines += ["", "| from `make` to the first step | nothing compiled yet | compiled before |", "|---|---|---|"]
    lines += [f"| {what} | {t['cold']:.2f} s | {t['warm']:.2f} s |" for what, t in results["first"].items()]
    lines += ["", "| memory of a batch, with its prepared levels | for each environment |", "|---|---|"]
    lines += [f"| {what} | {number(held)} bytes |" for what, held in results["memory"].items()]
    return lines


def plot(path: Path, results: dict[str, Any]) -> bool:
    """Draw the growth; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "ragen-gym", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, key, label in zip(axes, ("growth", "sizes"), ("environments", "side of the board"), strict=True):
        for observation, values in results[key].items():
            axis.plot([int(n) for n in values], list(values.values()), marker="o", label=observation)
        axis.set(xscale="log", yscale="log", xlabel=label)
        ticks = [int(n) for n in results[key]["grid"]]
        axis.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize="small")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("steps per second of one core")
    axes[0].legend(title="observation")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True
