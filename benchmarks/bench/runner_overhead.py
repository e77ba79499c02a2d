"""What the benchmark's runner costs by itself: ``python -m benchmarks.bench.runner_overhead [--out FILE]``.

Two rates, each against what is promised:

- episodes a second of a scripted agent in this process that says the same in each of five turns, everything on: games,
  messages, parsing, records, ``episodes.jsonl``;
- requests a second through the official OpenAI client, all else likewise, against a server in another process of this
  machine that answers at once.

Both are measured on the wall and by the CPU time of this process, since the runner is one thread and other work on the
machine takes its share of the first; the medians of some runs are reported, and written as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode_plan import RunOptions, Timeouts
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.core.storage import write_atomic

__all__ = ["main", "measure"]

SPLITS = ("sokoban", "new_vocab", "large_sokoban")  # where nothing that is said ends an episode before its fifth turn
REPLY = "<think>The goal is above, so I go up.</think><answer>Up</answer>"
PROMISED = {"episodes": 2000.0, "requests": 300.0}
LIMITS = Timeouts(request=120.0, episode=1800.0)


class Scripted:
    """Says the same in every turn, as an agent of one's own would: in a coroutine, with counts."""

    name = "scripted"

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The same."""
        return Answer(REPLY, prompt_tokens=0, completion_tokens=0)


def measure(runs: int = 5) -> dict[str, Any]:
    """The rates: {"episodes": …, "requests": …}, each with {"wall", "cpu", "promised", "turns", "units"}."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    os.environ["PYTHONSAFEPATH"] = "1"  # as child_python: a spawned process imports nothing from the current folder
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(writer,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{reader.recv()}/v1"
    os.environ.pop("OPENAI_API_KEY", None)
    try:
        return {
            "episodes": _rate("episodes", Scripted, runs, rollouts=4, per_turn=False),
            "requests": _rate(
                "requests", lambda: make_agent("openai:m", base_url=url), runs, rollouts=1, limit=60, per_turn=True
            ),
        }
    finally:
        server.terminate()
        server.join()


def _rate(what: str, make: Callable[[], Any], runs: int, per_turn: bool, **asked: Any) -> dict[str, Any]:
    suite = load_suite("ragen-v1")
    found: list[tuple[float, float]] = []
    units = turns = 0
    for _ in range(runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            request = RunOptions(splits=SPLITS, timeouts=LIMITS, **asked)
            wall, cpu = time.perf_counter(), time.process_time()
            outcome = run_suite(suite, make(), Path(folder) / "run", request)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            lines = (Path(folder) / "run" / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
            records = [json.loads(line) for line in lines]
        assert outcome.played == len(records)
        assert not outcome.failures
        turns = sum(len(record["turns"]) for record in records)
        units = turns if per_turn else len(records)
        found.append((units / spent[0], units / spent[1]))
    walls, cpus = zip(*found[1:], strict=True)  # the first run compiles and imports
    return {
        "wall": statistics.median(walls),
        "cpu": statistics.median(cpus),
        "promised": PROMISED[what],
        "turns": turns,
        "units": units,
    }


def _serve(port: Connection) -> None:
    """Answer every request with the same completion, at once."""
    completion = {
        "id": "1",
        "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320},
    }
    body = json.dumps(completion).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                _, found, length = head.partition(b"content-length:")
                await reader.readexactly(int(length.split(b"\r\n")[0]) if found else 0)
                writer.write(answer)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print JSON, and write it where asked; 1 where a promise is not kept by CPU time."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench.runner_overhead", description="The runner's overhead."
    )
    parser.add_argument("--runs", type=int, default=5, help="runs to take the median of (default: 5)")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    arguments = parser.parse_args(argv)
    results = measure(arguments.runs)
    text = json.dumps(results, indent=2) + "\n"
    if arguments.out is not None:
        write_atomic(arguments.out, text)
    sys.stdout.write(text)
    return int(any(rate["cpu"] < rate["promised"] for rate in results.values()))


if __name__ == "__main__":
    sys.exit(main())
