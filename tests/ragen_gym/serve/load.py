"""Clients of a server in a process of its own, over bare asyncio streams, since an HTTP client would be slower."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ragen_gym.core.child_python import child_environment, child_python

__all__ = ["Player", "hundreds", "started"]


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

    async def close(self) -> None:
        """Close the session and the connection."""
        await self.ask("DELETE", self.path)
        self._writer.close()
        await self._writer.wait_closed()

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


def hundreds(players: list[Player]) -> Iterator[list[Player]]:
    """A hundred at a time: a server's queue of new connections is not endless."""
    for first in range(0, len(players), 100):
        yield players[first : first + 100]


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
