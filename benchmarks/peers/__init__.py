"""Other people's environments, each measured by a script of its own in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_gym.speed import timer

__all__ = ["PEERS", "Peer", "measure"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """A package, what else it needs, and the script that measures it."""

    package: str
    script: str
    besides: tuple[str, ...] = ()


PEERS = (
    Peer("envpool", "with_envpool.py"),
    Peer("jumanji", "with_jumanji.py"),
    Peer("gem-llm", "with_gem_llm.py"),
    Peer("textarena", "with_textarena.py", ("numpy",)),
    Peer("gym-sokoban", "with_gym_sokoban.py"),
    Peer("minigrid", "with_minigrid.py"),
)


def measure(peer: Peer, cache: Path, seconds: float = 900) -> list[dict[str, Any]]:
    """Install the peer under ``cache``, unless it is there, and run its script: a dictionary for each measurement.

    A peer that cannot be installed or run gives one dictionary, whose ``"skipped"`` says why.
    """
    home = cache / peer.package
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        if not (home / "installed").exists():
            _call([sys.executable, "-m", "venv", "--clear", str(home)], seconds)
            _call([str(python), "-m", "pip", "install", "-q", peer.package, *peer.besides], seconds)
            (home / "installed").touch()
        asked = f"from importlib.metadata import version; print(version({peer.package!r}))"
        version = _call([str(python), "-c", asked], seconds).strip()
        # Only the timer is on the path: the scripts' own folder holds names that are those of packages.
        script = [str(python), "-W", "ignore", "-P", str(_HERE / peer.script)]
        said = _call(script, seconds, PYTHONPATH=str(Path(timer.__file__).parent))
    except (OSError, subprocess.SubprocessError) as error:
        return [{"key": peer.package, "title": peer.package, "unit": "", "skipped": _reason(error)}]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [{**line, "package": f"{peer.package} {version}"} for line in lines]


def _call(command: list[str], seconds: float, **environment: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=seconds).stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"took more than {error.timeout:.0f} seconds"
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "error" in line.lower()), "it failed without a word")[:160]
    return type(error).__name__
