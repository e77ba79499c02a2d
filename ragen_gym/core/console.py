"""Terminal output without the control characters of foreign texts, which a terminal would obey."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from ragen_gym.core.text import without_controls

__all__ = ["json_text", "plain_output", "raw_stdout", "rich_console"]

#: All but tabs and newlines: C0, C1, line separators, and marks that change the writing direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Start of a tqdm progress bar, and the code by which it moves up.
_BAR = re.compile(r"\r(?!\n)|(?:\x1b\[A)+\Z")


def json_text(value: Any) -> str:
    """Indented JSON; control characters that JSON allows in a text are escaped as well."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
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

    def __init__(self, stream: TextIO, bars: bool) -> None:
        self.rich_proxied_file, self._bars = stream, bars

    def write(self, text: str) -> int:
        begin = _BAR.match(text) if self._bars else None
        end = begin.end() if begin else 0
        self.rich_proxied_file.write(text[:end] + _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text[end:]))
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
    """Within it, only tabs and newlines are printed of all control characters; progress bars are drawn on stderr."""
    out, errors = _PlainText(sys.stdout, bars=False), _PlainText(sys.stderr, bars=True)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
        yield
