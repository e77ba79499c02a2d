"""A run's folder read again and again while the trainer writes to it: the status that ``ragen-agent watch`` shows."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ragen_agent.config import Config
from ragen_agent.report.runs import first_signs
from ragen_agent.training.alarm import Sign
from ragen_agent.training.run_folder import RunFolder

__all__ = ["FINISHED", "WAITING", "GrowingLines", "RunStatus", "RunTail", "last_record"]

WAITING, FINISHED = "waiting for the run", "finished"

RECENT = 10  # iterations whose mean says how long the next ones take
TAIL = 1 << 16  # bytes from the end of a file that are looked at for its last line, at first


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment of its life.

    Attributes:
        path: its folder.
        config: its settings; None as long as there are none.
        summary: ``summary.json``.
        metrics: ``metrics.jsonl``, without a torn last line.
        signs: of the Echo Trap, each where it was first seen.
        episode: the last of ``episodes.jsonl``, or None.
        phase: what it is doing, in words.
        quiet: seconds since it last wrote anything.
    """

    path: Path
    config: Config | None
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    signs: Sequence[Sign]
    episode: Mapping[str, Any] | None
    phase: str
    quiet: float

    @property
    def seconds(self) -> float | None:
        """What an iteration takes, by the last ones."""
        known = [float(record["seconds"]) for record in self.metrics[-RECENT:] if "seconds" in record]
        return fmean(known) if known else None

    @property
    def left(self) -> float | None:
        """Seconds until the last iteration of reinforcement; None where that is not known, or it is over."""
        if self.config is None or self.seconds is None or "after" in self.summary:
            return None
        return self.seconds * max(0, self.config.training.iterations - len(self.metrics))


class GrowingLines:
    """A file of JSON lines that only grows, or is replaced as a whole; ``read`` reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._file, self._at = 0, 0

    def read(self) -> list[dict[str, Any]]:
        """All whole lines so far; what stands after the last line end is still being written, or was torn.

        Raises:
            ValueError: a whole line is not JSON.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self.records, self._file, self._at = [], 0, 0
            return self.records
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._at:  # a run that goes on writes the file anew
                self.records, self._file, self._at = [], status.st_ino, 0
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(end)
        try:
            self.records += [json.loads(line) for line in whole.split(b"\n") if line.strip()]
        except ValueError as error:
            raise ValueError(f"{self.path} holds a line that is not JSON: {error}; remove that line.") from error
        return self.records


class RunTail:
    """Follows one run; ``read`` may be called at any moment of its life."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give the folder of a run.")
        self.folder = RunFolder(path)
        self._metrics = GrowingLines(self.folder.metrics)
        self._config: Config | None = None
        self._signs: tuple[int, list[Sign]] = (0, [])

    def read(self) -> RunStatus:
        """What is there now; raises a ValueError where a file is damaged."""
        path = self.folder.path
        if self._config is None and (path / "config.toml").is_file():
            self._config = RunFolder.reopen(path)[1]
        metrics = [*self._metrics.read()]
        done, known = self._signs if self._signs[0] <= len(metrics) else (0, [])
        self._signs = len(metrics), first_signs(metrics, known=known, done=done)
        summary = self.folder.read_summary()
        distributed = (path / "openrlhf.toml").is_file()
        phase = _phase(self._config, summary, len(metrics), self.folder.warm.is_dir(), distributed)
        names = ("config.toml", "summary.json", "metrics.jsonl", "episodes.jsonl")
        written = [(path / name).stat().st_mtime for name in names if (path / name).exists()]
        quiet = max(0.0, time.time() - max(written)) if written else 0.0
        episode = last_record(self.folder.episodes)
        return RunStatus(path, self._config, summary, metrics, self._signs[1], episode, phase, quiet)


def last_record(path: Path) -> dict[str, Any] | None:
    """The last whole record of a file of JSON lines, from its end; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        size = file.seek(0, 2)
        reach = TAIL
        while True:
            start = max(0, size - reach)
            file.seek(start)
            lines = file.read(size - start).split(b"\n")[:-1]  # what follows the last line end is not whole
            found = [line for line in (lines if start == 0 else lines[1:]) if line.strip()]
            if found:
                record: dict[str, Any] = json.loads(found[-1])
                return record
            if start == 0:
                return None
            reach *= 4


def _phase(config: Config | None, summary: Mapping[str, Any], done: int, warm: bool, distributed: bool) -> str:
    if config is None:
        return WAITING
    if "after" in summary:
        compared = distributed or not config.warm_start.epochs or "clean_warm_start" in summary
        return FINISHED if compared else "imitation, for comparison"
    if done >= config.training.iterations:
        return "measuring"
    if done or "optimal" in summary:
        return "reinforcement"
    return "measuring the start" if warm else "warm start"
