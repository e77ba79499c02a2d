"""Common parts of the commands: seeds, progress and tables."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence

from ragen_gym.core.command_line import wrap
from ragen_gym.core.console import ProgressBar

_LISTED = 20
_LEAST_ROOM = 12  # columns for the last column of a table; where there are fewer, a longer one goes below


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """The flag ``--seed``, of ``what``."""
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help=f"seed of {what} (default: 0)")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"seed={text} is not a seed: give a whole number from 0 on")
    return int(text)


def progress_bar(what: str, total: int, *, at_once: bool = False) -> ProgressBar:
    """Progress of a command, on standard error; it disappears at the end."""
    return ProgressBar(what, total, prefix="ragen-gym: ", transient=True, at_once=at_once)


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
