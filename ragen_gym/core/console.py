"""Output for terminals without the control characters of other people's texts, which a terminal would obey."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from ragen_gym.core.text import without_controls

__all__ = ["json_text", "plain_stdout", "raw_stdout", "rich_console"]

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and newlines


def json_text(value: Any) -> str:
    """Indented JSON; control characters that JSON allows in a text are escaped as well."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def rich_console(**options: Any) -> Any:
    """A console of rich, whose own colours and cursor movements are the only ones that it writes."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, *arguments: Any, **named: Any) -> Iterable[Segment]:
            for each in super().render(*arguments, **named):
                yield each if each.control else Segment(without_controls(each.text), each.style)

    return PlainConsole(**options)


class _PlainText:
    """A stream that writes U+FFFD for control characters; rich, which cleans its texts itself, takes the one below."""

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


def raw_stdout() -> TextIO:
    """Standard output below ``plain_stdout``, for colours of our own."""
    return cast(TextIO, getattr(sys.stdout, "rich_proxied_file", sys.stdout))


@contextmanager
def plain_stdout() -> Iterator[None]:
    """Meanwhile ``print`` writes no control characters but tabs and newlines to standard output."""
    with redirect_stdout(cast(TextIO, _PlainText(sys.stdout))):
        yield
