"""Common parts of the commands: declaration and output."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

from ragen_gym.core.command_line import wrap
from ragen_gym.core.console import ProgressBar, json_text
from ragen_gym.core.validation import joined, json_or_text

_LISTED = 20
_LEAST_ROOM = 12  # columns for the last column of a table; where there are fewer, a longer one goes below


def named_values(
    flag: str, pairs: Sequence[str], read_as: Callable[[str, str], Any] = lambda name, text: json_or_text(text)
) -> dict[str, Any]:
    """Arguments given as ``name=value``, by default each value as JSON where it is that, else as text; ``-`` is ``_``.

    Raises:
        ValueError: a pair without ``=``, or two values of one name.
    """
    read: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair}: write it as name=value.")
        name = name.strip().replace("-", "_")
        read = joined(read, {name: read_as(name, text)})
    return read


def add_command(
    commands: Any,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
    examples: str = "",
    description: str = "",
) -> argparse.ArgumentParser:
    """A command, whose description is the summary as a sentence, unless another is given."""

    def alone(arguments: argparse.Namespace) -> int:
        with json_alone(getattr(arguments, "json", False)):
            return run(arguments)

    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
    )
    parser.set_defaults(run=alone)
    return parser


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """The flag ``--seed``, of ``what``."""
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help=f"seed of {what} (default: 0)")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"seed={text} is not a seed: give a whole number from 0 on")
    return int(text)


def progress_bar(what: str, total: int) -> ProgressBar:
    """Progress of a command, on standard error; it disappears at the end."""
    return ProgressBar(what, total, prefix="ragen-gym: ", transient=True)


_for_json: ContextVar[TextIO | None] = ContextVar("_for_json", default=None)


@contextmanager
def json_alone(asked: bool) -> Iterator[None]:
    """Meanwhile, if ``asked``, standard output is for ``print_json`` alone; all else goes to standard error."""
    before = _for_json.set(sys.stdout if asked else None)
    try:
        with redirect_stdout(sys.stderr if asked else sys.stdout):
            yield
    finally:
        _for_json.reset(before)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json_text(value), file=_for_json.get())


def wrapped(text: str, label: str = "") -> str:
    """Text that fits the terminal without a broken word; what follows a label stands below its beginning."""
    return "\n".join(wrap(text, shutil.get_terminal_size().columns, label, " " * len(label)))


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with columns of even width; on a narrow terminal a long last column stands below the others."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = shutil.get_terminal_size((sum(widths) * 2, 24)).columns
    room = columns - sum(width + 2 for width in widths[:-1])
    lines = []
    for row in rows:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(row[:-1], widths, strict=False))
        if len(row[-1]) <= room:
            lines.append(f"{start}{row[-1]}".rstrip())
        elif room >= _LEAST_ROOM:
            lines.append(wrapped(row[-1], start))
        else:
            lines += [start.rstrip(), wrapped(row[-1], "    ")]
    return lines


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    more = [f"  and {len(lines) - _LISTED:,} more (--json lists them)"] * (len(lines) > _LISTED)
    return [f"  {line}" for line in lines[:_LISTED]] + more
