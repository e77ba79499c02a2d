"""Measurements: rates of the tasks, growth with batch and board, import time, first reset, memory; and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.tasks import GROWTH, LAKE, SIZES, Task, batch
from benchmarks.speed.timer import rate

__all__ = [
    "first_resets",
    "growth",
    "import_times",
    "machine",
    "measured",
    "memory_per_env",
    "ratios",
    "row_of",
    "sizes",
]

_SPENT = "import time; print(time.process_time())"
_FIRST = """
import time, gymnasium, ragen_gym
before = time.process_time()
env = gymnasium.{make}; env.reset(seed=0); env.step({action})
print(time.process_time() - before)
"""
_MEMORY = """
import tracemalloc, gymnasium, ragen_gym
gymnasium.make_vec("{name}", 2, observation="grid").reset(seed=0)
tracemalloc.start()
envs = gymnasium.make_vec("{name}", 4096, observation="grid")
envs.reset(seed=0)
for _ in range(100):
    envs.step(envs.action_space.sample())
print(tracemalloc.get_traced_memory()[0] / 4096)
"""


def measured(tasks: Iterable[Task], runs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """What each task measured, as soon as it has: a dictionary with key, title, unit, rate, lowest and highest.

    Args:
        tasks: rows of `benchmarks.speed.tasks.TASKS`.
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


def growth(seconds: float) -> dict[str, dict[str, float]]:
    """Steps per second of FrozenLake by the number of environments."""
    return {
        observation: {str(n): rate(*batch(LAKE, n, observation=observation), 3, seconds)[0] for n in GROWTH}
        for observation in ("grid", "text")
    }


def sizes(seconds: float) -> dict[str, dict[str, float]]:
    """Steps per second of FrozenLake by the side of the board; empty lakes, so that making them is no part of it."""
    found: dict[str, dict[str, float]] = {"grid": {}, "text": {}}
    for observation, rates in found.items():
        for side in SIZES:
            lake = np.full((side, side), "_")
            lake[0, 0], lake[-1, -1] = "P", "G"
            levels = ["\n".join("".join(row) for row in lake)]
            play, work = batch(LAKE, size=side, levels=levels, observation=observation, max_episode_steps=100)
            rates[str(side)] = rate(play, work, 3, seconds)[0]
    return found


def import_times(runs: int = 7) -> dict[str, float]:
    """Median milliseconds of CPU time that importing Gymnasium takes, and what importing this suite adds."""
    times = {
        modules: statistics.median(_run(f"import {modules}; {_SPENT}") for _ in range(runs))
        for modules in ("sys", "gymnasium", "gymnasium, ragen_gym")
    }
    return {
        "`import gymnasium`": 1e3 * (times["gymnasium"] - times["sys"]),
        "`import ragen_gym`, after it": 1e3 * (times["gymnasium, ragen_gym"] - times["gymnasium"]),
    }


def first_resets() -> dict[str, dict[str, float]]:
    """Seconds of CPU time from `make` to the first step: with nothing compiled yet, and with what that compiled."""
    found: dict[str, dict[str, float]] = {}
    for title, make, action in (
        ("FrozenLake, single", 'make("ragen/FrozenLake-v0")', "0"),
        ("FrozenLake, batch", 'make_vec("ragen/FrozenLake-v0", 8)', "[0] * 8"),
        ("Sokoban, single", 'make("ragen/Sokoban-v0")', "0"),
        ("Sokoban, batch", 'make_vec("ragen/Sokoban-v0", 8)', "[0] * 8"),
        ("Bandit, single", 'make("ragen/Bandit-v0")', "0"),
    ):
        with tempfile.TemporaryDirectory() as cache:
            program = _FIRST.format(make=make, action=action)
            cold, warm = (_run(program, NUMBA_CACHE_DIR=cache) for _ in range(2))
        found[title] = {"cold": cold, "warm": warm}
    return found


def memory_per_env() -> dict[str, float]:
    """Bytes that a batch of 4,096 holds for each environment, prepared levels included."""
    names = ("ragen/FrozenLake-v0", "ragen/Sokoban-v0", "ragen/LargeSokoban-v0", "ragen/Bandit-v0")
    return {name: _run(_MEMORY.format(name=name)) for name in names}


def _run(program: str, **environment: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
