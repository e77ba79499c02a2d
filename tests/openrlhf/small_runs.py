"""Real runs of a small model on the CPU: OpenRLHF's command line on Ray, vLLM and DeepSpeed."""

from __future__ import annotations

import io
import json
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

__all__ = ["BASE", "SHORT", "begin", "configure", "lines", "nothing_left", "processes_of", "quiet"]

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


def processes_of(run: Path) -> dict[int, str]:
    """The processes that were told of this run's folder when they began: Ray's, vLLM's, and the run's own."""
    told, found = json.dumps(str(run.resolve())).encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if told in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def nothing_left(run: Path, seconds: float = 60.0) -> bool:
    """Whether all processes of a run end within so many seconds."""
    limit = time.monotonic() + seconds
    while processes_of(run):
        if time.monotonic() > limit:
            return False
        time.sleep(0.5)
    return True
