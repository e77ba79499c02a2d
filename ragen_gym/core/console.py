"""Terminal output without the control characters of foreign texts, and the progress bar on stderr."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from math import inf, isfinite
from types import TracebackType
from typing import Any, TextIO, TypeVar, cast

from ragen_gym.core.text import without_controls

#: All but tabs, newlines and carriage returns: C0, C1, line separators, and marks that change the writing direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, as of training that diverged: JSON has no such numbers."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> str:
    """Indented JSON; control characters that JSON allows in a text are escaped as well."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def rich_console(**options: Any) -> Any:
    """A rich console that writes only its own colours and movements; texts are not read as markup."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        @Console.file.getter  # type: ignore[attr-defined, untyped-decorator]
        def file(self) -> TextIO:
            return _below(super().file)

        def render(self, *arguments: Any, **named: Any) -> Iterable[Segment]:
            for each in super().render(*arguments, **named):
                yield each if each.control else Segment(without_controls(each.text), each.style)

    return PlainConsole(**{"markup": False, "emoji": False, "highlight": False, **options})


class _PlainText:
    """A stream that writes U+FFFD for control characters; rich cleans its texts itself and uses the stream below."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(_CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _below(stream: Any) -> TextIO:
    """The stream below ``_PlainText`` and below rich's own wrapper while it draws."""
    while hasattr(stream, "rich_proxied_file"):
        stream = stream.rich_proxied_file
    return cast(TextIO, stream)


def raw_stdout() -> TextIO:
    """Standard output below ``plain_output``, for colours of our own."""
    return _below(sys.stdout)


@contextmanager
def plain_output() -> Iterator[None]:
    """Within it, only white space is printed of all control characters; a progress bar needs no more."""
    out, errors = _PlainText(sys.stdout), _PlainText(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
        yield


T = TypeVar("T")

_SECONDS_A_FRAME = 0.1
#: Seconds between two lines without a terminal.
SECONDS_A_LINE = 15.0


class ProgressBar:
    """Progress of one task, ``done`` things of ``total``, named in the plural by ``what``; a context manager.

    It is drawn on ``console``, standard error if None, and removed at the end if ``transient``. Without a terminal or
    rich, a line that starts with ``prefix`` is written at most every ``seconds`` seconds, the first one at the
    start if ``at_once``.
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
        at_once: bool = False,
    ) -> None:
        self.what, self.total, self.done, self.info = what, total, done, ""
        self._prefix, self._seconds, self._begun, self._first = prefix, seconds, time.monotonic(), done
        self._shown = -inf if at_once else self._begun
        self._bar = _rich_bar(console, transient)
        self._console = console

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._task = self._bar.add_task(self.what, total=self.total, completed=self.done, info="")
            self._bar.start()
        self.update(self.done)
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
            left = (now - self._begun) * (self.total - done) / max(1, done - self._first)
            more += f", {span(left)} left" if self._first < done < self.total else ""
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
