"""State of a run while it goes on, and its live page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ragen_agent.config import Config
from ragen_agent.report.run_page import page
from ragen_agent.report.runs import RecordedRun, load_run
from ragen_agent.run.alarm import Sign
from ragen_gym.bench.report.live import RECENT, waiting_page
from ragen_gym.core.console import span

__all__ = ["FINISHED", "WAITING", "RunPage", "RunStatus", "read_status"]

WAITING, FINISHED = "waiting for the run", "finished"
FILES = ("config.toml", "summary.json", "metrics.jsonl", "episodes.jsonl")

LAST = 10  # iterations whose mean says how long the next ones take
TIMEOUTS = {"reinforcement": 120.0}  # seconds without a write after which a run may have been stopped
TIMEOUT = 900.0  # the same for the other phases, which write nothing before their end


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment of its life."""

    config: Config | None  # None as long as there is none
    summary: Mapping[str, Any]  # summary.json
    metrics: Sequence[Mapping[str, Any]]  # metrics.jsonl, without a torn last line
    signs: Sequence[Sign]  # of the Echo Trap, each where it was first seen
    phase: str  # what it is doing, in words
    quiet: float  # seconds since it last wrote anything

    @property
    def seconds(self) -> float | None:
        """Seconds of an iteration, by the last ones."""
        known = [float(record["seconds"]) for record in self.metrics[-LAST:] if "seconds" in record]
        return fmean(known) if known else None

    @property
    def left(self) -> float | None:
        """Seconds until the last iteration of reinforcement; None where that is not known, or it is over."""
        if self.config is None or self.seconds is None or "after" in self.summary:
            return None
        return self.seconds * max(0, self.config.training.iterations - len(self.metrics))

    def __str__(self) -> str:
        """The phase, the iterations so far, and the time left or taken."""
        parts = [self.phase]
        if self.phase != FINISHED and self.quiet > max(TIMEOUTS.get(self.phase, TIMEOUT), 10 * (self.seconds or 0.0)):
            parts[0] += f"; no write for {span(self.quiet)}: it may have been stopped"
        if self.config is not None:
            parts.append(f"{len(self.metrics)}/{self.config.training.iterations} iterations")
        if self.left:
            parts += [f"{self.seconds:.1f} s each", f"{span(self.left)} left"]
        if self.phase == FINISHED and "wall_s" in self.summary:
            parts.append(f"took {span(self.summary['wall_s'])}")
        return " · ".join(parts)


def read_status(path: Path) -> RunStatus:
    """The state of the run in a folder, which may not be there yet; raises a ValueError where a file is damaged."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give the folder of a run.")
    if not (path / "config.toml").is_file():
        return RunStatus(None, {}, [], [], WAITING, 0.0)
    run = load_run(path)
    written = max((path / name).stat().st_mtime for name in FILES if (path / name).exists())
    quiet = max(0.0, time.time() - written)
    return RunStatus(run.config, run.summary, run.metrics, run.signs, _phase(run), quiet)


def _phase(run: RecordedRun) -> str:
    config, done = run.config, len(run.metrics)
    if run.finished:
        compares = config.evaluation.imitation and config.warm_start.epochs and run.settings["backend"] == "local"
        return "imitation, for comparison" if compares and "clean_warm_start" not in run.summary else FINISHED
    if done >= config.training.iterations:
        return "measuring"
    if done or "optimal" in run.summary:
        return "reinforcement"
    return "measuring the start" if run.folder.warm.is_dir() else "warm start"


class RunPage:
    """The page of a training run while it goes on.

    Args:
        path: folder of the run, which may not be there yet.
        check: raises a ``ValueError`` where the settings of the run name code that the user has not allowed.
    """

    def __init__(self, path: Path, check: Callable[[Config], None]) -> None:
        self._path, self._check = path, check
        self.files = [path / name for name in FILES]

    def render(self) -> str:
        """The page as it stands."""
        status = read_status(self._path)
        if status.config is None:
            return waiting_page("Training report", self._path)
        self._check(status.config)
        return page([load_run(self._path, self._path.resolve().name)], recent=RECENT, live=str(status))
