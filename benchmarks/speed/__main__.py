"""Measure the speed of the environments: ``python -m benchmarks.speed``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed import number
from benchmarks.speed.measurements import (
    PEERS,
    TASKS,
    Task,
    first_resets,
    measure_peer,
    measured,
    ratios,
    row_of,
)
from ragen_gym.core.storage import write_atomic

__all__ = ["main"]

_HERE = Path(__file__).parent
_PACKAGES = ("numpy", "numba", "gymnasium")  # whose versions are noted

_HELP = """\
Rates are per second of CPU time of one core, medians of several runs. A batch has 1,024 environments and takes random
actions. Without --only everything is measured, other suites too, and the pages here are written.

examples:
  python -m benchmarks.speed                        everything and every suite; writes results.json and README.md
  python -m benchmarks.speed --only 'lake text'     one measurement
"""

_INTRO = """\
# Speed

Written by `python -m benchmarks.speed`, which measures all of this anew. Rates are per second of CPU time of one core
(every thread of a process counts), medians of {runs} runs; the lowest and highest are in `results.json`. Peers were
timed by the same timer in the same run, each in a virtual environment of its own; some rows were measured anew later
and have the ratios of that run. The cores were shared with other work, so compare the ratios rather
than the digits.

Machine: {machine}.

A batch has 1,024 environments unless something else is said, takes random actions, and makes fresh arrays, observations
and infos at every step; a step in which an environment resets counts as its step. "Fresh" means that every episode has
a level of its own, generated while the clock runs.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements; the exit code.

    Raises:
        ValueError: a number out of range, or words that no measurement has.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="How many steps a second this machine plays, compared with Gymnasium's own FrozenLake.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="WORDS", help="the measurements with these words in their key")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="runs of each (default 7)")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="CPU time of a run (default 0.5)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen-gym" / "peers"
    parser.add_argument("--cache", type=Path, default=cache, metavar="DIR", help="where the other suites are installed")
    arguments = parser.parse_args(argv)
    runs, seconds = arguments.runs, arguments.seconds
    if runs < 1 or not 0 < seconds <= 60:
        raise ValueError(f"--runs {runs} --seconds {seconds:g}: give 1 run or more, and from above 0 to 60 s.")
    print(f"{machine(*_PACKAGES)}\n", flush=True)
    if arguments.only is None:
        _write_pages(runs, seconds, arguments.cache)
    else:
        _measure(_chosen(arguments.only), runs, seconds)
    return 0


def _chosen(words: str) -> list[Task]:
    """The tasks with these words in their key, after those of Gymnasium that they are compared with."""
    known = {task.key: task for task in TASKS}
    keys = [key for key in known if words.lower() in key]
    if not keys:
        raise ValueError(f"--only {words}: no measurement's key has that; they are {', '.join(known)}.")
    peers = [peer for key in keys for peer in known[key].peers if peer in known]
    return sorted([known[key] for key in dict.fromkeys([*peers, *keys])], key=lambda task: not task.of_gymnasium)


def _measure(tasks: Sequence[Task], runs: int, seconds: float) -> dict[str, dict[str, Any]]:
    """The rates of these tasks by key, each printed as soon as it is there."""
    known, rates = {task.key: task for task in tasks}, dict[str, dict[str, Any]]()
    for row in measured(tasks, runs, seconds):
        rates[row["key"]] = {name: value for name, value in row.items() if name != "key"}
        _print(row)
        for peer, times in ratios(known[row["key"]], rates).items():
            print(f"  {number(times)} times {rates[peer]['title']}", flush=True)
    return rates


def _print(row: dict[str, Any]) -> None:
    print(
        row["title"],
        f"  {number(row['rate'])} {row['unit']}/s  ({number(row['lowest'])} to {number(row['highest'])})",
        sep="\n",
        flush=True,
    )


def _write_pages(runs: int, seconds: float, cache: Path) -> None:
    """Measure everything; write ``results.json`` and ``README.md`` in this folder."""
    rates, skipped = _measure(TASKS, runs, seconds), []
    for found in (found for peer in PEERS for found in measure_peer(peer, cache)):
        if "skipped" in found:
            skipped.append(found)
            print(f"{found['title']}: skipped: {found['skipped']}")
        else:
            rates[found.pop("key")] = row = found | row_of(found["rate"])
            _print(row)
    results = {"machine": machine(*_PACKAGES), "runs": runs, "rates": rates, "skipped": skipped}
    results["first"] = first_resets()
    write_atomic(_HERE / "results.json", json.dumps(results, indent=1) + "\n")
    write_page(_HERE / "README.md", results)


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
    lines += ["", "## Paid once", ""]
    lines += ["| from `make` to the first step | nothing compiled yet | compiled before |", "|---|---|---|"]
    lines += [f"| {what} | {t['cold']:.2f} s | {t['warm']:.2f} s |" for what, t in results["first"].items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ValueError as mistake:
        raise SystemExit(f"benchmarks.speed: error: {mistake}") from None
