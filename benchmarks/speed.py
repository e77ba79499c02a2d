"""Measure the speed of everything and of everyone: `python -m benchmarks.speed`.

Writes ``results.json``, ``README.md`` and, with matplotlib, ``growth.svg`` beside this file. ``--only WORD`` measures
the tasks with that word in their key, prints them and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import plot, write_page
from benchmarks.peers import PEERS, measure
from benchmarks.startup import first_resets, import_times, memory_per_env
from ragen_gym.speed.measuring import machine, measured, row_of
from ragen_gym.speed.tasks import GROWTH, LAKE, SIZES, TASKS, batch
from ragen_gym.speed.timer import number, rate

__all__ = ["main"]

_HERE = Path(__file__).parent


def main(argv: list[str] | None = None) -> int:
    """Run the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", metavar="WORD", help="only the tasks with this in their key; write nothing")
    parser.add_argument("--quick", action="store_true", help="short runs, for a first look")
    parser.add_argument("--no-peers", action="store_true", help="install and measure nobody else")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ragen-gym" / "peers"
    parser.add_argument("--cache", type=Path, default=cache, help="where the peers are installed")
    arguments = parser.parse_args(argv)
    runs, seconds = (3, 0.1) if arguments.quick else (7, 0.5)
    rates: dict[str, Any] = {}
    chosen = [task for task in TASKS if arguments.only is None or arguments.only in task.key]
    for row in measured(chosen, runs, seconds):
        rates[row.pop("key")] = row
        _say(row)
    if arguments.only is not None:
        return 0
    results: dict[str, Any] = {"machine": machine(), "runs": runs, "rates": rates, "skipped": []}
    for peer in () if arguments.no_peers else PEERS:
        for found in measure(peer, arguments.cache):
            if "skipped" in found:
                results["skipped"].append(found)
                print(f"{found['title']}: skipped: {found['skipped']}")
            else:
                rates[found.pop("key")] = row = found | row_of(found["rate"])
                _say(row)
    results |= {"growth": _growth(seconds), "sizes": _sizes(seconds)}
    results |= {"imports": import_times(), "first": first_resets(), "memory": memory_per_env()}
    results["plot"] = "growth.svg" if plot(_HERE / "growth.svg", results) else None
    (_HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page(_HERE / "README.md", results)
    return 0


def _say(row: dict[str, Any]) -> None:
    target = f" (promised: {number(row['target'])})" if row.get("target") else ""
    print(f"{row['title']}: {number(row['rate'])} {row['unit']}/s{target}", flush=True)


def _growth(seconds: float) -> dict[str, dict[str, float]]:
    """Steps per second of FrozenLake by the number of environments."""
    return {
        observation: {str(n): rate(*batch(LAKE, n, observation=observation), 3, seconds)[0] for n in GROWTH}
        for observation in ("grid", "text")
    }


def _sizes(seconds: float) -> dict[str, dict[str, float]]:
    """Steps per second of FrozenLake by the side of the board; empty lakes, so that making them is no part of it."""
    found: dict[str, dict[str, float]] = {"grid": {}, "text": {}}
    for observation, rates in found.items():
        for side in SIZES:
            lake = np.full((side, side), "_")
            lake[0, 0], lake[-1, -1] = "P", "G"
            levels = ["\n".join("".join(row) for row in lake)]
            play, work = batch(LAKE, size=side, levels=levels, observation=observation, max_episode_steps=100)
            rates[str(side)] = rate(play, work, 3, seconds)[0]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
