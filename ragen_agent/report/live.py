"""The page of one training run while it goes on; ``ragen_gym.bench.report.live`` serves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.report.run_page import page
from ragen_agent.report.runs import load_run
from ragen_agent.report.watch import RunTail, pace, phase_line
from ragen_gym.bench.report.live import RECENT, waiting_page

__all__ = ["RunPage"]


class RunPage:
    """The page of a training run while it goes on.

    Args:
        path: folder of the run, which may not be there yet.
        check: raises a ``ValueError`` where the settings of the run name code that the user has not allowed.
    """

    def __init__(self, path: Path, check: Callable[[Config], None]) -> None:
        self._tail, self._check = RunTail(path), check
        names = ("config.toml", "summary.json", "metrics.jsonl", "episodes.jsonl")
        self.files = [path / name for name in names]

    def render(self) -> str:
        """The page as it stands."""
        status = self._tail.read()
        if status.config is None:
            return waiting_page("Training report", status.path)
        self._check(status.config)
        run = load_run(status.path, status.path.resolve().name)
        return page([run], recent=RECENT, live=" · ".join([phase_line(status), *pace(status)]))
