"""Progress bar on stderr (plain lines without a terminal)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from ragen_gym.core.console import rich_console
from ragen_gym.core.text import without_controls

__all__ = ["SECONDS_A_LINE", "ProgressBar", "track"]

T = TypeVar("T")

_SECONDS_A_FRAME = 0.1
#: Seconds between two lines without a terminal.
SECONDS_A_LINE = 15.0


class ProgressBar:
    """Progress of one task; a context manager.

    Without a terminal or rich, a line is written at most every ``seconds`` seconds.

    Args:
        what: the things counted, in the plural.
        total: their number.
        done: number done before.
        prefix: start of a plain line.
        seconds: between two plain lines.
        console: a rich console to draw on; standard error if None.
        transient: True to remove the bar at the end.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        done: int = 0,
        prefix: str = "",
        seconds: float = SECONDS_A_LINE,
        console: Any = None,
        transient: bool = False,
    ) -> None:
        self.what, self.total, self.done, self.info = what, total, done, ""
        self._prefix, self._seconds, self._shown = prefix, seconds, time.monotonic()
        self._bar = _rich_bar(console, transient)
        self._console = console

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._task = self._bar.add_task(self.what, total=self.total, completed=self.done, info="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, total=self.total, info=self.info)
            self._bar.stop()

    def advance(self, steps: int = 1, info: str = "") -> None:
        """Count ``steps`` more as done; ``info`` is shown next to the bar."""
        self.update(self.done + steps, info)

    def update(self, done: int, info: str = "", total: int | None = None) -> None:
        """Set the number done; ``total`` replaces the total."""
        self.done, self.info = done, info
        self.total = self.total if total is None else total
        now = time.monotonic()
        if now - self._shown < (_SECONDS_A_FRAME if self._bar is not None else self._seconds):
            return
        self._shown = now
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self.total, info=info)
        else:
            more = f", {info}" if info else ""
            self.say(f"{self._prefix}{done:,} of {self.total:,} {self.what}{more}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(without_controls(text), file=sys.stderr, flush=True)


def span(seconds: float) -> str:
    """A length of time for people, in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def track(items: Iterable[T], total: int, what: str, *, prefix: str = "") -> Iterator[T]:
    """Yield the items under a ``ProgressBar`` that disappears at the end."""
    with ProgressBar(what, total, prefix=prefix, transient=True) as bar:
        for item in items:
            yield item
            bar.advance()


def _rich_bar(console: Any, transient: bool) -> Any:
    """A rich progress display, or None without a terminal or rich."""
    if not (console.is_terminal if console is not None else sys.stderr.isatty()):
        return None
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[info]}", markup=False),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console or rich_console(stderr=True), transient=transient)
