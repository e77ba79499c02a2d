"""Other suites' environments, each measured in a virtual environment of its own by `benchmarks.speed.peer_tasks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "measure"]

_REPOSITORY = Path(__file__).parents[2]


PEERS = ("envpool", "jumanji", "gem-llm", "textarena", "gym-sokoban", "minigrid")


def measure(package: str, cache: Path, seconds: float = 900) -> list[dict[str, Any]]:
    """Install a package of `PEERS` under ``cache``, unless it is there: a dictionary for each measurement of it.

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
        output = _call(tasks, seconds, PYTHONPATH=str(_REPOSITORY))
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
