"""Real runs of a small model on the CPU: OpenRLHF's command line on Ray, vLLM and DeepSpeed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.launch import train_distributed
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import quiet

__all__ = ["BASE", "SHORT", "Family", "begin", "configure", "lines", "quiet"]

Process = tuple[int, int]
"""A process: its number, and when it began, since numbers are used again."""


BASE: dict[str, Any] = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 4000},
    "warm_start": {"epochs": 1},
    "training": {"groups": 8, "group_size": 8, "keep": 0.5, "minibatch": 16, "iterations": 20},
    "evaluation": {"levels": 32},
}
SHORT: dict[str, Any] = {"training": {"groups": 4, "iterations": 4}, "evaluation": {"levels": 8}}


def configure(warm: Path, *settings: Mapping[str, Any]) -> Config:
    chosen = merged(merged(default_settings("FrozenLake"), BASE), {"model": str(warm), "warm_start": {"epochs": 0}})
    for more in settings:
        chosen = merged(chosen, more)
    return with_settings(Config(), chosen)


def begin(path: Path, config: Config, settings: Mapping[str, Any]) -> tuple[RunFolder, dict[str, Any]]:
    """Trains in a new folder; returns it and the summary."""
    folder = RunFolder.create(path, config)
    return folder, train_distributed(config, with_settings(OpenRLHF(), settings), folder, quiet())


def lines(run: Path) -> list[dict[str, Any]]:
    return read_json_lines(run / "metrics.jsonl")


class Family(threading.Thread):
    """Notes, while it is entered, every process below this one; those of a run, Ray's and vLLM's among them.

    It looks while their parents live: afterwards nothing says any more whose they were.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.names, self.before, self.over = dict[Process, str](), _below(os.getpid()), threading.Event()

    def __enter__(self) -> Family:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.look()

    def look(self) -> None:
        """Notes the processes of this moment."""
        self.names |= {process: name for process, name in _below(os.getpid()).items() if process not in self.before}

    def left(self, seconds: float = 180.0) -> list[str]:
        """The names of those that were noted and do not end within so many seconds; Ray's agents take a minute."""
        limit = time.monotonic() + seconds
        while living := set(self.names) & set(_living()):
            if time.monotonic() > limit:
                break
            time.sleep(0.5)
        return sorted(self.names[process] for process in living)


def _living() -> dict[Process, tuple[int, str]]:
    """The number of the parent and the name of every process that is alive."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = path.read_text().split(" (", 1)[1].rsplit(") ", 1)
            fields = rest.split()
            if fields[0] != "Z":  # dead already, though its parent has not asked
                found[int(path.parent.name), int(fields[19])] = int(fields[1]), name
    return found


def _below(parent: int) -> dict[Process, str]:
    """The living processes that this one started, and those that they did."""
    everyone, found, ahead = _living(), dict[Process, str](), [parent]
    while ahead:
        above = ahead.pop()
        below = {process: name for process, (parent, name) in everyone.items() if parent == above}
        found |= below
        ahead += [pid for pid, _ in below]
    return found
