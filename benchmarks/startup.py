"""What is paid once: importing, the first reset, and memory for each environment. Each is a fresh process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

__all__ = ["first_resets", "import_times", "memory_per_env"]

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
