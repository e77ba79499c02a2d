"""Real runs of a small model on the CPU: OpenRLHF's command line on Ray, vLLM and DeepSpeed."""

from __future__ import annotations

import ctypes
import io
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.local.display import Display
from ragen_agent.local.recipes import RECIPES
from ragen_agent.local.run_folder import RunFolder, read_json_lines
from ragen_agent.openrlhf.launch import train_distributed
from ragen_agent.openrlhf.settings import OpenRLHF

__all__ = ["BASE", "SHORT", "adopt_orphans", "begin", "configure", "left", "lines", "processes", "quiet"]

PR_SET_CHILD_SUBREAPER = 36  # of Linux's <sys/prctl.h>

BASE: dict[str, Any] = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 4000},
    "warm_start": {"epochs": 1},
    "training": {"groups": 8, "members": 8, "keep": 0.5, "minibatch": 16, "iterations": 20},
    "evaluation": {"levels": 32},
}
SHORT: dict[str, Any] = {"training": {"groups": 4, "iterations": 4}, "evaluation": {"levels": 8}}


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


def configure(warm: Path, *settings: Mapping[str, Any]) -> Config:
    told = merged(merged(RECIPES["FrozenLake"], BASE), {"model": str(warm), "warm_start": {"epochs": 0}})
    for more in settings:
        told = merged(told, more)
    return with_settings(Config(), told)


def begin(
    path: Path, config: Config, settings: Mapping[str, Any], extra: Sequence[str] = ()
) -> tuple[RunFolder, dict[str, Any]]:
    """Trains in a new folder; returns it and the summary."""
    folder = RunFolder.create(path, config)
    return folder, train_distributed(config, with_settings(OpenRLHF(), settings), folder, quiet(), extra)


def lines(run: Path) -> list[dict[str, Any]]:
    return read_json_lines(run / "metrics.jsonl")


def adopt_orphans() -> None:
    """From here on a process whose parent died becomes a child of this one, where `processes` sees it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes() -> dict[int, str]:
    """The living processes below this one and their names: the runs', Ray's and vLLM's."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name, rest = (process / "stat").read_text().split(" (", 1)[1].rsplit(") ", 1)
            state, parent = rest.split()[:2]
            if state != "Z":  # dead already; its parent need not care
                parents[int(process.name)] = int(parent), name
    found: dict[int, str] = {}
    ahead = [os.getpid()]
    while ahead:
        above = ahead.pop()
        below = {pid: name for pid, (parent, name) in parents.items() if parent == above}
        found |= below
        ahead += below
    return found


def left(before: Mapping[int, str], seconds: float = 60.0) -> dict[int, str]:
    """The processes that were not there before and do not end within so many seconds."""
    limit = time.monotonic() + seconds
    while more := {pid: name for pid, name in processes().items() if pid not in before}:
        if time.monotonic() > limit:
            break
        time.sleep(0.5)
    return more
