"""Real runs of a small model on the CPU: OpenRLHF's command line on Ray, vLLM and DeepSpeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.launch import train_distributed
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import quiet

__all__ = ["BASE", "ROUNDING", "SHORT", "Family", "begin", "configure", "lines", "quiet"]

BASE: dict[str, Any] = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 4000},
    "warm_start": {"epochs": 1},
    "training": {"groups": 8, "group_size": 8, "keep": 0.5, "minibatch": 16, "iterations": 20},
    "evaluation": {"levels": 32},
}
SHORT: dict[str, Any] = {"training": {"groups": 4, "iterations": 4}, "evaluation": {"levels": 8}}
ROUNDING = 5e-3
"""Bound of |vllm_kl| in nats: rounding gave 1.7e-3 at most in 40 iterations; lost weights give over 1e-2."""


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
        self.found, self.over = dict[psutil.Process, str](), threading.Event()
        self.before = {*psutil.Process().children(recursive=True)}

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
        for process in psutil.Process().children(recursive=True):
            if process not in self.before:
                with suppress(psutil.NoSuchProcess):
                    self.found[process] = process.name()

    @property
    def names(self) -> set[str]:
        """As the kernel cuts them."""
        return {name[:15] for name in self.found.values()}

    def left(self, seconds: float = 180.0) -> list[str]:
        """The names of those that were noted and do not end within so many seconds; Ray's agents take a minute."""
        limit = time.monotonic() + seconds
        while (living := [*filter(_lives, self.found)]) and time.monotonic() < limit:
            time.sleep(0.5)
        return sorted(self.found[process] for process in living)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
