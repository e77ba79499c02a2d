"""Measurements: rates of our tasks and of other suites', growth, import time, first reset and memory."""

from __future__ import annotations

import json
import os
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
    "PEERS",
    "first_resets",
    "growth",
    "import_times",
    "measure_peer",
    "measured",
    "memory_per_env",
    "ratios",
    "row_of",
    "sizes",
]

#: Other suites, each measured in a virtual environment of its own by ``benchmarks.speed.peer_tasks``.
PEERS = ("envpool", "jumanji", "gem-llm", "textarena", "gym-sokoban", "minigrid")

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


def measure_peer(package: str, cache: Path, seconds: float = 900) -> list[dict[str, Any]]:
    """Install a package of ``PEERS`` under ``cache``, unless it is there: a dictionary for each measurement of it.

    One that cannot be installed or run gives one dictionary, whose ``"skipped"`` says why.
    """
    home = cache / package
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        if not (home / "installed").exists():
            _call([sys.executable, "-m", "venv", "--clear", str(home)], seconds)
            _call([str(python), "-m", "pip", "install", "-q", package, "numpy"], seconds)
            (home / "installed").touch()
        program = f"from importlib.metadata import version; print(version({package!r}))"
        version = _call([str(python), "-c", program], seconds).strip()
        tasks = [str(python), "-W", "ignore", "-P", "-m", "benchmarks.speed.peer_tasks", package]
        output = _call(tasks, seconds, PYTHONPATH=str(Path(__file__).parents[2]))
    except (OSError, subprocess.SubprocessError) as error:
        return [{"key": package, "title": package, "unit": "", "skipped": _reason(error)}]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [{**line, "package": f"{package} {version}"} for line in lines]


def _call(command: list[str], seconds: float, **environment: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=seconds).stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"took more than {error.timeout:.0f} seconds"
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "error" in line.lower()), "it failed without a message")[:160]
    return type(error).__name__
