"""How many requests one server takes: ``python -m benchmarks.bench.serve_load`` prints JSON.

It starts ``ragen-gym serve`` in a process of its own and plays it over the loopback address from this one, each session
on a connection of its own that asks again as soon as it is answered. Requests go over bare asyncio streams, since a
full HTTP client would be slower than the server. CPU time is the server's, all threads, where the system tells it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks import machine
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.storage import write_atomic
from ragen_gym.serve.server import allow_many_files

__all__ = ["Played", "Player", "Server", "hundreds", "main", "measure", "played", "soak", "started"]

Play = Callable[["Player", float], Awaitable[None]]
Background = tuple[int, dict[str, Any], Play]

_LAKE: dict[str, Any] = {"env": "FrozenLake"}
_SERVER = ("--port", "0", "--rate", "0", "--max-memory", str(2**34), "--max-connections", "40000")


class Server(NamedTuple):
    """A server in a process of its own."""

    port: int
    pid: int

    def cpu(self) -> float | None:
        """Seconds of CPU time that it has taken, where the system tells."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float | None:
        """Bytes of memory that it holds, where the system tells."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Played(NamedTuple):
    """What sessions that played at once found."""

    taken: list[float]  # seconds of each timed request, sorted
    spent: float  # seconds in all
    cpu: float | None  # seconds of CPU time of the server, where the system tells

    def summary(self, steps: int = 1) -> dict[str, float]:
        """Rates, and latencies in milliseconds; ``steps`` is how many environments a request moves."""
        taken = self.taken
        out = {
            "requests": len(taken),
            "requests_per_second": round(len(taken) / self.spent),
            "p50_ms": round(1000 * taken[len(taken) // 2], 2),
            "p99_ms": round(1000 * taken[int(0.99 * len(taken))], 2),
            "max_ms": round(1000 * taken[-1], 2),
        }
        if steps > 1:
            out["steps_per_second"] = round(steps * len(taken) / self.spent)
        if self.cpu is not None:
            out["server_cpu_us_per_request"] = round(1e6 * self.cpu / len(taken))
        return out


class Player:
    """One connection to the server, and one session on it.

    Args:
        port: of the server.
        number: seed of what it plays.

    Attributes:
        seconds: how long each request took that was timed.
    """

    def __init__(self, port: int, number: int = 0) -> None:
        self._port, self.number = port, number
        self.seconds: list[float] = []
        self.path = ""

    async def open(self, body: dict[str, Any]) -> dict[str, Any]:
        """Connect, and make a session."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        made = await self.ask("POST", "/sessions", body)
        self.path = f"/sessions/{made['session']}"
        return made

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and time it; what was answered.

        Raises:
            RuntimeError: the server refused.
        """
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        began = time.perf_counter()
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        start = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", start, re.IGNORECASE)
        answer = await self._reader.readexactly(int(length[1])) if length else b""
        self.seconds.append(time.perf_counter() - began)
        if not start.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{method} {path}: {start[:40]!r} {answer[:300]!r}")
        return json.loads(answer) if answer.startswith((b"{", b"[")) else {}

    async def close(self) -> None:
        """Close the session and the connection."""
        await self.ask("DELETE", self.path)
        self._writer.close()
        await self._writer.wait_closed()

    def drop(self) -> None:
        """Close the connection, in the midst of whatever it was."""
        self._writer.transport.abort()

    async def steps(self, until: float, pause: float = 0.0) -> None:
        """Play single moves, and a new episode whenever one is over.

        Args:
            until: when to stop, by the clock.
            pause: mean seconds between an answer and the next request.
        """
        rng = np.random.default_rng(self.number)
        await asyncio.sleep(pause * rng.random())
        await self.ask("POST", f"{self.path}/reset", {})
        while time.perf_counter() < until:
            answer = await self.ask("POST", f"{self.path}/step", {"action": int(rng.integers(4))})
            if answer["terminated"] or answer["truncated"]:
                await self.ask("POST", f"{self.path}/reset", {})
            if pause:
                await asyncio.sleep(2 * pause * rng.random())

    async def turns(self, until: float, pause: float = 0.0) -> None:
        """Give replies of two moves, and play a new episode whenever one is over."""
        await self.ask("POST", f"{self.path}/reset", {})
        reply = f"<think>{'The goal is below. ' * 20}</think><answer>Down || Right</answer>"
        while time.perf_counter() < until:
            answer = await self.ask("POST", f"{self.path}/turn", {"reply": reply})
            if answer["terminated"] or answer["truncated"]:
                await self.ask("POST", f"{self.path}/reset", {})
            await asyncio.sleep(pause)

    async def batch_steps(self, until: float, num_envs: int, pause: float = 0.0) -> None:
        """Move every environment of a batch."""
        await self.ask("POST", f"{self.path}/batch/reset", {"seed": 0})
        actions = [i % 4 for i in range(num_envs)]
        while time.perf_counter() < until:
            await self.ask("POST", f"{self.path}/batch/step", {"actions": actions})
            actions.append(actions.pop(0))
            await asyncio.sleep(pause)

    async def resets(self, until: float) -> None:
        """Start episode after episode."""
        while time.perf_counter() < until:
            await self.ask("POST", f"{self.path}/reset", {})

    async def pictures(self, until: float) -> None:
        """Ask for pictures of a board."""
        await self.ask("POST", f"{self.path}/reset", {})
        while time.perf_counter() < until:
            await self.ask("GET", f"{self.path}/render.png")


async def played(
    server: Server,
    count: int,
    body: dict[str, Any],
    play: Play,
    seconds: float,
    background: tuple[Background, ...] = (),
) -> Played:
    """Have ``count`` sessions play at once.

    Args:
        server: the server.
        count: sessions.
        body: what makes each.
        play: what each does until the clock shows that time.
        seconds: how long.
        background: (sessions, body, play) of others that play meanwhile and are not timed.
    """
    groups = [(count, body, play), *background]
    players = [[Player(server.port, i) for i in range(many)] for many, _, _ in groups]
    for (_, made_of, _), group in zip(groups, players, strict=True):
        for some in hundreds(group):
            await asyncio.gather(*(player.open(made_of) for player in some))
            for player in some:
                player.seconds.clear()
    began, before = time.perf_counter(), server.cpu()
    playing = [play(p, began + seconds) for (_, _, play), group in zip(groups, players, strict=True) for p in group]
    await asyncio.gather(*playing)
    spent, after = time.perf_counter() - began, server.cpu()
    taken = sorted(second for player in players[0] for second in player.seconds)
    for some in hundreds([player for group in players for player in group]):
        await asyncio.gather(*(player.close() for player in some))
    return Played(taken, spent, None if before is None or after is None else after - before)


def hundreds(players: list[Player]) -> Iterator[list[Player]]:
    """A hundred at a time: a server's queue of new connections is not endless."""
    for first in range(0, len(players), 100):
        yield players[first : first + 100]


@contextmanager
def started(*options: str) -> Iterator[Server]:
    """A server with these options."""
    command = child_python("-m", "ragen_gym.cli", "serve", *options)
    process = subprocess.Popen(command, env=child_environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:  # where nothing is compiled yet, it says first what it waits for
            lines.append(line)
            if found := re.search(r"http://\S+:(\d+)", line):
                yield Server(int(found[1]), process.pid)
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(lines)}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def main(argv: list[str] | None = None) -> int:
    """Run the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench.serve_load", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default: 5)")
    parser.add_argument("--most", type=int, default=4000, help="sessions of the largest crowd (default: 4000)")
    parser.add_argument("--soak", type=float, help="instead: so many seconds of 200 clients, and the memory")
    parser.add_argument("--out", type=Path, help="write the JSON there and not to the output")
    arguments = parser.parse_args(argv)
    results = soak(arguments.soak) if arguments.soak else measure(arguments.seconds, arguments.most)
    text = json.dumps(results, indent=1) + "\n"
    if arguments.out is None:
        print(text, end="")
    else:
        write_atomic(arguments.out, text)
    return 0


def measure(seconds: float = 5.0, most: int = 4000) -> dict[str, Any]:
    """All measurements.

    Args:
        seconds: length of each.
        most: sessions of the largest crowd, where the system allows as many open files.

    Returns:
        {"machine", "seconds", "tasks": {name: rates and latencies}, "kb_per_session"}.
    """
    most = min(most, allow_many_files() - 100)
    with started(*_SERVER) as server:
        memory = asyncio.run(_memory(server, min(2000, most)))  # before the server holds memory that it has no use for
        tasks = _measured(server, seconds, most)
    return {"machine": machine("fastapi", "uvicorn"), "seconds": seconds, "tasks": tasks, "kb_per_session": memory}


def soak(seconds: float, clients: int = 200, samples: int = 10) -> dict[str, Any]:
    """What clients that come, play and go leave behind in a server's memory.

    Each makes a session of moves, of replies or of a batch, plays it for 5 to 10 seconds with pauses, gives it up one
    time in four without closing it, and makes the next.

    Args:
        seconds: how long.
        clients: how many at once.
        samples: how often the memory is read.

    Returns:
        {"clients", "seconds", "sessions", "requests", "mb": memory before the first session and after each part}.
    """
    kinds: list[tuple[dict[str, Any], Play]] = [
        (_LAKE, _paced(0.5)),
        ({"env": "Sokoban"}, _paced(0.5)),
        ({**_LAKE, "grain": "turn"}, lambda player, until: player.turns(until, 0.5)),
        ({**_LAKE, "num_envs": 16}, lambda player, until: player.batch_steps(until, 16, 0.5)),
    ]
    played: list[int] = []

    async def client(server: Server, number: int, until: float) -> None:
        rng = np.random.default_rng(number)
        while time.perf_counter() < until:
            player, (body, play) = Player(server.port, number), kinds[rng.integers(len(kinds))]
            await player.open(body)
            await play(player, min(until, time.perf_counter() + rng.uniform(5, 10)))
            if rng.random() < 0.25:
                player.drop()
            else:
                await player.close()
            played.append(len(player.seconds))

    async def crowd(server: Server) -> list[float | None]:
        began, memory = time.perf_counter(), [server.memory()]
        playing = [asyncio.create_task(client(server, i, began + seconds)) for i in range(clients)]
        for part in range(1, samples + 1):
            await asyncio.sleep(began + part * seconds / samples - time.perf_counter())
            memory.append(server.memory())
        await asyncio.gather(*playing)
        return memory

    with started(*_SERVER, "--session-ttl", "20") as server:
        memory = [None if found is None else round(found / 1e6, 1) for found in asyncio.run(crowd(server))]
    found = {"clients": clients, "seconds": seconds, "sessions": len(played), "requests": sum(played), "mb": memory}
    return {"machine": machine("fastapi", "uvicorn"), **found}


def _measured(server: Server, seconds: float, most: int) -> dict[str, Any]:
    dear = {"env": "Sokoban", "env_options": {"size": 10, "boxes": 3}}
    large, drawn = {**_LAKE, "num_envs": 1024}, {**_LAKE, "render": True}
    background: dict[str, tuple[Background, ...]] = {
        "nothing else": (),
        "next to 4 that generate costly levels": ((4, dear, Player.resets),),
        "next to 2 that draw": ((2, drawn, Player.pictures),),
        "next to 2 batches of 1,024": ((2, large, _batch(1024)),),
    }
    tasks: list[tuple[str, int, int, dict[str, Any], Play, tuple[Background, ...]]] = [
        *((f"step, {n} at once", 1, n, _LAKE, Player.steps, ()) for n in (1, 32, min(1000, most), most)),
        *((f"step, {n} that pause, 500/s in all", 1, n, _LAKE, _paced(n / 500), ()) for n in (min(1000, most), most)),
        ("turn, 32 at once", 1, 32, {**_LAKE, "grain": "turn"}, Player.turns, ()),
        *((f"batch of {n}", n, 1, {**_LAKE, "num_envs": n}, _batch(n), ()) for n in (16, 256, 1024)),
        *((f"step, 8 that pause, {what}", 1, 8, _LAKE, _paced(0.05), others) for what, others in background.items()),
    ]
    console, results = Console(stderr=True), {}
    for key, steps, count, body, play, others in tasks:
        console.print(f"{key} …", highlight=False)
        results[key] = asyncio.run(played(server, count, body, play, seconds, others)).summary(steps)
    return results


def _batch(num_envs: int) -> Play:
    return lambda player, until: player.batch_steps(until, num_envs)


def _paced(pause: float) -> Play:
    return lambda player, until: player.steps(until, pause)


async def _memory(server: Server, count: int) -> float | None:
    """Kilobytes that a session takes of the server, its connection and an episode included."""
    before, players = server.memory(), [Player(server.port) for _ in range(count)]
    for some in hundreds(players):
        await asyncio.gather(*(player.open({**_LAKE, "start": {}}) for player in some))
    after = server.memory()
    for some in hundreds(players):
        await asyncio.gather(*(player.close() for player in some))
    return None if before is None or after is None else round((after - before) / count / 1000, 1)


if __name__ == "__main__":
    sys.exit(main())
