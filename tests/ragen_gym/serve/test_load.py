"""Requests that take long beside many that do not.

The clients use bare asyncio streams, since an HTTP client would be slower.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.serve import Limits
from ragen_gym.serve.schemas import CreateRequest
from ragen_gym.serve.served_envs import ServedTurn
from ragen_gym.serve.service import Service

LAKE: dict[str, Any] = {"env": "FrozenLake"}


class Player:
    """One connection to the server, and one session on it.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.path = ""

    async def open(self, body: dict[str, Any]) -> dict[str, Any]:
        """Connect, and make a session."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        made = await self.ask("POST", "/sessions", body)
        self.path = f"/sessions/{made['session']}"
        return made

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request; what was answered.

        Raises:
            RuntimeError: the server refused.
        """
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        start = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", start, re.IGNORECASE)
        answer = await self._reader.readexactly(int(length[1])) if length else b""
        if not start.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{method} {path}: {start[:40]!r} {answer[:300]!r}")
        return json.loads(answer) if answer.startswith((b"{", b"[")) else {}

    def drop(self) -> None:
        """Close the connection, in the midst of whatever it was."""
        self._writer.transport.abort()

    async def batch_steps(self, until: float, num_envs: int) -> None:
        """Move every environment of a batch."""
        await self.ask("POST", f"{self.path}/reset", {"seed": 0})
        actions = [i % 4 for i in range(num_envs)]
        while time.perf_counter() < until:
            await self.ask("POST", f"{self.path}/step", {"action": actions})
            actions.append(actions.pop(0))


@contextmanager
def started(*options: str) -> Iterator[int]:
    """The port of a server with these options, in a process of its own."""
    command = child_python("-m", "ragen_gym.cli", "serve", *options)
    process = subprocess.Popen(command, env=child_environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:  # where nothing is compiled yet, it says first what it waits for
            lines.append(line)
            if found := re.search(r"http://\S+:(\d+)", line):
                yield int(found[1])
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(lines)}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_dear_requests_hold_up_nobody() -> None:
    """While a block of dear levels is generated, and batches move, single moves are answered.

    A server that generates in its event loop answers one during a reset at the most.
    """
    dear: dict[str, Any] = {"env": "Sokoban", "env_options": {"size": 10, "boxes": 3}}

    async def most_moves_during_a_reset(port: int) -> int:
        generating, moving, batch = Player(port), Player(port), Player(port)
        await asyncio.gather(generating.open(dear), moving.open(LAKE), batch.open({**LAKE, "num_envs": 1024}))
        moves: list[float] = []

        async def move() -> None:
            while True:
                await moving.ask("POST", f"{moving.path}/reset", {"seed": 0})
                await moving.ask("POST", f"{moving.path}/step", {"action": 1})
                moves.append(time.perf_counter())

        others = [asyncio.create_task(move()), asyncio.create_task(batch.batch_steps(math.inf, 1024))]
        resets = []
        for _ in range(86):  # levels come in blocks, so most resets find theirs ready
            began = time.perf_counter()
            await generating.ask("POST", f"{generating.path}/reset", {})
            resets.append((began, time.perf_counter()))
        for other in others:
            other.cancel()
        await asyncio.wait(others)
        for player in (generating, moving, batch):
            player.drop()
        return max(sum(began < at < ended for at in moves) for began, ended in resets)

    with started("--port", "0") as port:
        assert asyncio.run(most_moves_during_a_reset(port)) >= 3


@pytest.mark.parametrize(
    ("thread", "options"),
    [
        ("MainThread", {}),
        ("levels", {"budgets": {"grounding": True}}),
        ("levels", {"budgets": {"observation": "image"}}),
    ],
)
def test_replies_that_take_long_to_read_hold_up_nobody(thread: str, options: dict[str, Any]) -> None:
    async def thread_of_a_turn() -> str:
        service, request = Service(Limits()), CreateRequest(env="FrozenLake", grain="turn", **options)
        session = json.loads(await service.create(request))["session"]
        env = service.store.get(session).env
        assert isinstance(env, ServedTurn)
        env.turn = lambda reply: {"thread": threading.current_thread().name}  # type: ignore[method-assign]
        return str(await service.ask(session, lambda env: env.turn("Up"), light=True))

    assert thread in asyncio.run(thread_of_a_turn())
