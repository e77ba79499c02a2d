"""Measurements of the table, one after another, and the machine that they were made on."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ragen_gym.speed.tasks import Task
from ragen_gym.speed.timer import rate

__all__ = ["machine", "measured", "ratios", "row_of"]


def measured(tasks: Iterable[Task], runs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """What each task measured, as soon as it has: a dictionary with key, title, unit, rate, lowest and highest.

    Args:
        tasks: rows of `ragen_gym.speed.tasks.TASKS`.
        runs: runs of each, of which the median counts.
        seconds: the least CPU time of a run.
    """
    for task in tasks:
        package = f"gymnasium {version('gymnasium')}" if task.of_gymnasium else ""
        known = {"key": task.key, "title": task.title, "unit": task.unit, "target": task.target, "package": package}
        yield known | row_of(rate(*task.make(), runs, seconds))


def row_of(found: tuple[float, float, float]) -> dict[str, float]:
    """The three numbers of `rate` by their names."""
    median, lowest, highest = found
    return {"rate": median, "lowest": lowest, "highest": highest}


def ratios(task: Task, rates: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times the rate of each of its peers that were measured a task has, by the peer's key."""
    mine = rates[task.key]["rate"]
    return {peer: mine / rates[peer]["rate"] for peer in task.peers if peer in rates}


def machine() -> str:
    """The processor and the versions, in a line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = f"{names[0]}, {len(names)} cores" if names else model
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "gymnasium"))
    return f"{model}; Python {platform.python_version()}, {packages}"
