"""``ragen-gym bench-speed``: how fast the environments are on this machine, beside Gymnasium's own."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen_gym.speed.tasks import Task

__all__ = ["add"]

_EXAMPLES = """\
Rates are per second of CPU time of one core, medians of several runs. A batch has 1,024 environments and takes random
actions. The repository measures more suites beside this one: python -m benchmarks.speed.

examples:
  ragen-gym bench-speed                            FrozenLake and Sokoban, single and in batches: half a minute
  ragen-gym bench-speed --only 'lake text'         one measurement
  ragen-gym bench-speed --all --json > speed.json  all of them
"""

#: What is measured where nothing else is asked for.
_USUAL = ("lake single", "boxes single", "lake grid", "lake text", "boxes grid", "boxes text")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench-speed",
        help="how many steps a second this machine plays, beside Gymnasium's own FrozenLake",
        description="How many steps a second this machine plays, single and in batches, beside Gymnasium's FrozenLake.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="WORDS", help="the measurements with these words in their key; see --list")
    which.add_argument("--all", action="store_true", help="every measurement: some minutes")
    which.add_argument("--list", action="store_true", help="the keys of the measurements, and what they are")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="CPU time of a run (default: 0.3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ragen_gym.speed.tasks import TASKS

    if arguments.list:
        if arguments.json:
            print(json.dumps([{"key": task.key, "title": task.title, "unit": task.unit} for task in TASKS], indent=2))
        else:
            width = max(len(task.key) for task in TASKS)
            print(*(f"{task.key:{width}}  {task.title}" for task in TASKS), sep="\n")
        return 0
    if arguments.runs < 1 or not 0 < arguments.seconds <= 60:
        raise ValueError(
            f"--runs {arguments.runs} --seconds {arguments.seconds:g}: give 1 run or more, and from above 0 to 60 s."
        )
    return _measure(_chosen(TASKS, arguments), arguments)


def _chosen(table: Iterable[Task], arguments: argparse.Namespace) -> list[Task]:
    """The tasks asked for, after those of Gymnasium that they are compared with."""
    known = {task.key: task for task in table}
    if arguments.only is not None:
        keys = [key for key in known if arguments.only.lower() in key]
        if not keys:
            raise ValueError(f"--only {arguments.only}: no measurement's key has that; they are {', '.join(known)}.")
    else:
        keys = list(known if arguments.all else _USUAL)
    peers = [peer for key in keys for peer in known[key].peers if peer in known]
    tasks = [known[key] for key in dict.fromkeys([*peers, *keys])]
    return sorted(tasks, key=lambda task: not task.of_gymnasium)


def _measure(tasks: list[Task], arguments: argparse.Namespace) -> int:
    from ragen_gym.speed.measuring import machine, measured, ratios

    known = {task.key: task for task in tasks}
    rates: dict[str, dict[str, Any]] = {}
    told = {"machine": machine(), "runs": arguments.runs, "seconds": arguments.seconds, "rates": rates}
    code = 0
    if not arguments.json:
        print(f"{told['machine']}\n", flush=True)
    try:
        for row in measured(_announced(tasks, always=arguments.json), arguments.runs, arguments.seconds):
            key = row.pop("key")
            rates[key] = row
            row["times"] = ratios(known[key], rates)
            if not arguments.json:
                _print(row, rates)
    except KeyboardInterrupt:  # what is measured is told all the same
        code = 130
    finally:
        _clear()
    if arguments.json:
        print(json.dumps(told, indent=2))
    return code


def _announced(tasks: list[Task], *, always: bool) -> Iterator[Task]:
    """The tasks, each announced on standard error before it is measured; elsewhere than on a terminal if ``always``."""
    for number, task in enumerate(tasks, 1):
        said = f"measuring {number} of {len(tasks)}: {task.title}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{said[:100]}", end="", file=sys.stderr, flush=True)
        elif always:
            print(f"ragen-gym: {said}", file=sys.stderr, flush=True)
        yield task
        _clear()


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print(row: dict[str, Any], rates: dict[str, dict[str, Any]]) -> None:
    from ragen_gym.speed.timer import number

    print(row["title"])
    print(
        f"  {number(row['rate'])} {row['unit']}/s  ({number(row['lowest'])} to {number(row['highest'])})",
        *(f"  {number(times)} times {rates[peer]['title']}" for peer, times in row["times"].items()),
        sep="\n",
        flush=True,
    )
