"""The benchmark's runner and the server, measured, as data and as a page: ``python -m benchmarks.bench``.

It writes ``results.json`` and ``README.md`` in its folder; with ``--page`` only the page, of the data that is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench import runner_overhead, serve_load
from ragen_gym.core.storage import write_atomic

__all__ = ["main", "page"]

HERE = Path(__file__).parent

RUNNER = {
    "episodes": "episodes of a scripted agent in the same process, five turns each",
    "requests": "requests through the OpenAI client, to a server that answers at once",
}

PAGE = """\
# The benchmark's runner and the server

Written by `python -m benchmarks.bench`, which measures all of this anew.

Machine: {machine}. The cores were shared with other work, so rates by wall-clock time are lower
bounds; CPU time says what the work itself costs.

## The runner

What `ragen-gym bench run` costs besides the model: games, messages, parsing, records and their file. Medians of
{runs} runs of `python -m benchmarks.bench.runner_overhead`.

| what | per second | per second of CPU time | target |
|---|---|---|---|
{runner}

## The server

`ragen-gym serve`, one process, played over the loopback address by `python -m benchmarks.bench.serve_load` from another
process of the same machine: {seconds:g} seconds of each kind. FrozenLake, unless something else is said. "At once":
each session asks again as soon as it is answered, so the latency is their number divided by the rate. "That pause":
they ask 500 times a second in all, or, of eight, each waits a twentieth of a second between requests.

| sessions | requests/s | moves/s | median, ms | 99 %, ms | server's CPU, ms a request |
|---|---|---|---|---|---|
{server}

A session takes {memory:g} kB, its connection and an episode included. A request costs far more than a move: a batch
moves all its environments with one.
"""


def page(results: Mapping[str, Any]) -> str:
    """The page of the results."""
    runner = [
        f"| {label} | {rate['wall']:,.0f} | {rate['cpu']:,.0f} | {rate['promised']:,.0f} |"
        for rate, label in ((results["runner"][name], label) for name, label in RUNNER.items())
    ]
    server = []
    for name, task in results["server"]["tasks"].items():
        moves = task.get("steps_per_second", task["requests_per_second"])
        cpu = task.get("server_cpu_us_per_request")
        cells = [f"{task['requests_per_second']:,}", f"{moves:,}", f"{task['p50_ms']:,.1f}", f"{task['p99_ms']:,.1f}"]
        server.append(f"| {name} | {' | '.join(cells)} | {'' if cpu is None else f'{cpu / 1000:.2f}'} |")
    return PAGE.format(
        machine=results["machine"],
        runs=results["runs"],
        runner="\n".join(runner),
        server="\n".join(server),
        seconds=results["server"]["seconds"],
        memory=results["server"]["kb_per_session"],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", action="store_true", help="write the page of the data that is there")
    parser.add_argument("--runs", type=int, default=5, help="runs of the runner to take the median of (default: 5)")
    arguments = parser.parse_args(argv)
    data = HERE / "results.json"
    if not arguments.page:
        results = {
            "machine": machine(),
            "runs": arguments.runs,
            "runner": runner_overhead.measure(arguments.runs),
            "server": serve_load.measure(),
        }
        write_atomic(data, json.dumps(results, indent=1) + "\n")
    write_atomic(HERE / "README.md", page(json.loads(data.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
