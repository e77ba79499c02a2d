"""What the commands that look back at runs have in common."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["command", "counting", "first_lines"]

_LISTED = 20
_SECONDS_A_LINE = 15.0


def command(commands: Any, name: str, summary: str, examples: str, run: Any) -> argparse.ArgumentParser:
    """A command with its help, which says in one line what an extra lacks."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_with_extra(run))
    return parser


def _with_extra(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command; what an extra lacks is said in one line."""

    def checked(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except ImportError as error:
            if "ragen-gym[" not in str(error):
                raise
            raise ValueError(str(error)) from error

    return checked


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    more = len(lines) - _LISTED
    return [f"  {line}" for line in lines[:_LISTED]] + [f"  and {more:,} more (--json lists them)"] * (more > 0)


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[..., None]]:
    """How far a long command is, on standard error: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done, _=0: bar.update(task, completed=done)
        return
    shown = time.monotonic()

    def line(done: int, _: int = 0) -> None:
        nonlocal shown
        if time.monotonic() - shown > _SECONDS_A_LINE:
            shown = time.monotonic()
            print(f"ragen-gym: {done:,} of {total:,} {what}", file=sys.stderr, flush=True)

    yield line
