"""Measure the speed of the environments: ``python -m benchmarks.speed``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed import number
from benchmarks.speed.measurements import (
    PEERS,
    TASKS,
    Task,
    first_resets,
    growth,
    import_times,
    measure_peer,
    measured,
    memory_per_env,
    ratios,
    row_of,
    sizes,
)
from benchmarks.speed.page import plot, write_page
from ragen_gym.core.storage import write_atomic

__all__ = ["main"]

_HERE = Path(__file__).parent

_HELP = """\
Rates are per second of CPU time of one core, medians of several runs. A batch has 1,024 environments and takes random
actions. Without --only, --usual, --all or --list everything is measured, other suites too, and the pages here are
written; --only with --write measures these rows of the page anew, on the machine of the others.

examples:
  python -m benchmarks.speed                        everything and every suite; writes results.json and README.md
  python -m benchmarks.speed --usual                FrozenLake and Sokoban, single and in batches: half a minute
  python -m benchmarks.speed --only 'lake text'     one measurement
  python -m benchmarks.speed --all --json > all.json   all of this suite's
  python -m benchmarks.speed --only regret --write  some rows of the page, with their ratios in this run
"""

_PACKAGES = ("numpy", "numba", "gymnasium")  # whose versions are noted

#: What ``--usual`` measures.
_USUAL = ("lake single", "boxes single", "lake grid", "lake text", "boxes grid", "boxes text")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements; the exit code.

    Raises:
        ValueError: a number out of range, or words that no measurement has.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="How many steps a second this machine plays, next to Gymnasium's own FrozenLake.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", metavar="WORDS", help="the measurements with these words in their key; see --list")
    which.add_argument("--usual", action="store_true", help="the six that are usually asked for")
    which.add_argument("--all", action="store_true", help="every measurement of this suite: some minutes")
    which.add_argument("--list", action="store_true", help="the keys of the measurements, and what they are")
    parser.add_argument("--runs", type=int, metavar="N", help="runs of each (default: 5; of everything 7)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="CPU time of a run (default: 0.3; of everything 0.5)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="with --only: write these rows into the pages")
    parser.add_argument("--no-peers", action="store_true", help="install and measure no other suite")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen-gym" / "peers"
    parser.add_argument("--cache", type=Path, default=cache, metavar="DIR", help="where the other suites are installed")
    arguments = parser.parse_args(argv)
    everything = not (arguments.only is not None or arguments.usual or arguments.all or arguments.list)
    if arguments.write and arguments.only is None:
        raise ValueError("--write needs --only: without both, everything is measured and written.")
    written = everything or arguments.write
    runs = (7 if written else 5) if arguments.runs is None else arguments.runs
    seconds = (0.5 if written else 0.3) if arguments.seconds is None else arguments.seconds
    if runs < 1 or not 0 < seconds <= 60:
        raise ValueError(f"--runs {runs} --seconds {seconds:g}: give 1 run or more, and from above 0 to 60 s.")
    if arguments.list:
        return _list(as_json=arguments.json)
    if everything:
        return _write_pages(runs, seconds, () if arguments.no_peers else PEERS, arguments.cache)
    tasks = _chosen(arguments.only, arguments.all)
    if arguments.write:
        return _write_rows([task for task in tasks if arguments.only.lower() in task.key], tasks, runs, seconds)
    return _print_some(tasks, runs, seconds, as_json=arguments.json)


def _list(*, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"key": task.key, "title": task.title, "unit": task.unit} for task in TASKS], indent=2))
    else:
        width = max(len(task.key) for task in TASKS)
        print(*(f"{task.key:{width}}  {task.title}" for task in TASKS), sep="\n")
    return 0


def _chosen(words: str | None, everything: bool) -> list[Task]:
    """The tasks asked for, after those of Gymnasium that they are compared with."""
    known = {task.key: task for task in TASKS}
    if words is not None:
        keys = [key for key in known if words.lower() in key]
        if not keys:
            raise ValueError(f"--only {words}: no measurement's key has that; they are {', '.join(known)}.")
    else:
        keys = list(known if everything else _USUAL)
    peers = [peer for key in keys for peer in known[key].peers if peer in known]
    tasks = [known[key] for key in dict.fromkeys([*peers, *keys])]
    return sorted(tasks, key=lambda task: not task.of_gymnasium)


def _print_some(tasks: list[Task], runs: int, seconds: float, *, as_json: bool) -> int:
    known = {task.key: task for task in tasks}
    rates: dict[str, dict[str, Any]] = {}
    results = {"machine": machine(*_PACKAGES), "runs": runs, "seconds": seconds, "rates": rates}
    code = 0
    if not as_json:
        print(f"{results['machine']}\n", flush=True)
    try:
        for row in measured(_announced(tasks, always=as_json), runs, seconds):
            key = row.pop("key")
            rates[key] = row
            row["times"] = ratios(known[key], rates)
            if not as_json:
                _print(row, rates)
    except KeyboardInterrupt:  # what is measured is printed all the same
        code = 130
    finally:
        _clear()
    if as_json:
        print(json.dumps(results, indent=2))
    return code


def _print(row: dict[str, Any], rates: dict[str, dict[str, Any]]) -> None:
    print(row["title"])
    print(
        f"  {number(row['rate'])} {row['unit']}/s  ({number(row['lowest'])} to {number(row['highest'])})",
        *(f"  {number(times)} times {rates[peer]['title']}" for peer, times in row["times"].items()),
        sep="\n",
        flush=True,
    )


def _announced(tasks: Sequence[Task], *, always: bool = False) -> Iterator[Task]:
    """The tasks, each announced on standard error before it is measured; elsewhere than on a terminal if ``always``."""
    for i, task in enumerate(tasks, 1):
        line = f"measuring {i} of {len(tasks)}: {task.title}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
        elif always:
            print(f"ragen-gym: {line}", file=sys.stderr, flush=True)
        yield task
        _clear()


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _write_pages(runs: int, seconds: float, peers: Sequence[str], cache: Path) -> int:
    """Measure everything; write ``results.json``, ``README.md`` and, with matplotlib, ``growth.svg`` in this folder."""
    rates: dict[str, Any] = {}
    for row in measured(_announced(list(TASKS)), runs, seconds):
        rates[row.pop("key")] = row
        _print({"times": {}, **row}, rates)
    results: dict[str, Any] = {"machine": machine(*_PACKAGES), "runs": runs, "rates": rates, "skipped": []}
    for found in (found for peer in peers for found in measure_peer(peer, cache)):
        if "skipped" in found:
            results["skipped"].append(found)
            print(f"{found['title']}: skipped: {found['skipped']}")
        else:
            rates[found.pop("key")] = row = found | row_of(found["rate"])
            _print({"times": {}, **row}, rates)
    results |= {"growth": growth(seconds), "sizes": sizes(seconds)}
    results |= {"imports": import_times(), "first": first_resets(), "memory": memory_per_env()}
    results["plot"] = "growth.svg" if plot(_HERE / "growth.svg", results) else None
    write_atomic(_HERE / "results.json", json.dumps(results, indent=1) + "\n")
    write_page(_HERE / "README.md", results)
    return 0


def _write_rows(wanted: Sequence[Task], tasks: Sequence[Task], runs: int, seconds: float) -> int:
    """Measure ``tasks``, and write the rows of those ``wanted`` into the pages, with their ratios in this run."""
    file, here = _HERE / "results.json", machine(*_PACKAGES)
    results = json.loads(file.read_text(encoding="utf-8"))
    if (here, runs) != (results["machine"], results["runs"]):
        raise ValueError(
            f"--write: the page is of {results['runs']} runs on {results['machine']}; these would be {runs} on {here}. "
            "Measure everything, without --only."
        )
    rates: dict[str, Any] = {}
    for row in measured(_announced(tasks), runs, seconds):
        rates[row.pop("key")] = row
        _print({"times": {}, **row}, rates)
    for task in wanted:
        results["rates"][task.key] = rates[task.key] | {"times": ratios(task, rates)}
    write_atomic(file, json.dumps(results, indent=1) + "\n")
    write_page(_HERE / "README.md", results)
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ValueError as mistake:
        raise SystemExit(f"benchmarks.speed: error: {mistake}") from None
