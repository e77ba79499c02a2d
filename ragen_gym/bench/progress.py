"""How a run is going, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ragen_gym.bench.records import EpisodeRecord

__all__ = ["LineProgress", "make_progress"]

_SECONDS_A_LINE = 15.0
_SECONDS_A_FRAME = 0.1


class LineProgress:
    """The running score in a line every quarter of a minute, the first after as long."""

    def __init__(self) -> None:
        self.asked = self.done = self.counted = self.solved = self.problems = self.turns = 0
        self.failures: Counter[str] = Counter()
        self.shown = time.monotonic()
        self.seconds = _SECONDS_A_LINE

    def begin(self, asked: int, kept: Sequence[EpisodeRecord]) -> None:
        """See `ragen_gym.bench.runner.Progress`; so are the others."""
        self.asked = asked
        for record in kept:
            self._count(record)
        if kept:
            self.say(f"{len(kept)} of {asked} episodes are there already")

    def advance(self, record: EpisodeRecord) -> None:
        """Count, and show now and then."""
        self._count(record)
        now = time.monotonic()
        if now - self.shown > self.seconds:
            self.shown = now
            self.show()

    def say(self, notice: str) -> None:
        """A line of its own."""
        print(f"ragen-gym: {notice}", file=sys.stderr, flush=True)

    def show(self) -> None:
        """Where the run stands."""
        self.say(f"{self.done} of {self.asked} episodes, {self.score}")

    def end(self) -> None:
        """The last word."""

    @property
    def score(self) -> str:
        """The running score, and what does not count."""
        parts = [f"success {100 * self.solved / self.counted:.1f} %"] if self.counted else []
        parts += [f"malformed {100 * self.problems / self.turns:.1f} %"] if self.problems else []
        parts += [f"{kind} {number}" for kind, number in sorted(self.failures.items())]
        return ", ".join(parts) or "none counts yet"

    def _count(self, record: EpisodeRecord) -> None:
        self.done += 1
        self.turns += len(record.turns)
        self.problems += sum(turn.problem is not None for turn in record.turns)
        if record.failure is not None:
            self.failures[record.failure.value] += 1
        if record.counted:
            self.counted += 1
            self.solved += record.success


class _BarProgress(LineProgress):
    """The same as a bar, with the rest of the time."""

    def __init__(self, rich_progress: Any) -> None:
        super().__init__()
        self.seconds = _SECONDS_A_FRAME
        self._bar = rich_progress

    def begin(self, asked: int, kept: Sequence[EpisodeRecord]) -> None:
        self._bar.start()
        super().begin(asked, kept)
        self._task = self._bar.add_task("episodes", total=asked, completed=self.done, score=self.score)

    def say(self, notice: str) -> None:
        self._bar.console.print(notice, markup=False, highlight=False)

    def show(self) -> None:
        self._bar.update(self._task, completed=self.done, score=self.score)

    def end(self) -> None:
        self.show()
        self._bar.stop()


def make_progress() -> LineProgress:
    """What suits standard error."""
    if not sys.stderr.isatty():
        return LineProgress()
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return LineProgress()
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[score]}"), TimeRemainingColumn()
    return _BarProgress(Progress(*columns, console=Console(stderr=True)))
