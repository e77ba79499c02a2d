"""A chat-completions server that misbehaves on purpose, on a thread of its own; written on bare sockets, since no
library would let it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

GOOD = "<think>On we go.</think><answer>Up || Left</answer>"

Behave = Callable[[int, dict[str, Any]], str]
"""From the number of a request, from 0, and its body to one of the ways below."""

_REFUSALS: dict[str, tuple[str, dict[str, str], Any]] = {
    "401": ("401 Unauthorized", {}, {"error": {"message": "no such key", "code": "invalid_api_key"}}),
    "404": ("404 Not Found", {}, {"error": {"message": "The model `m` does not exist."}}),
    "413": ("413 Request Entity Too Large", {"Content-Type": "text/html"}, "<html>413</html>"),
    "413 rate": (
        "413 Payload Too Large",
        {},
        {"error": {"message": "Request too large on tokens per minute (TPM): Limit 6000, Requested 7000"}},
    ),
    "429": ("429 Too Many Requests", {}, {"error": {"message": "slow down"}}),
    "500": ("500 Internal Server Error", {}, {"error": {"message": "CUDA error: an illegal memory access"}}),
    "503 wait": ("503 Service Unavailable", {"Retry-After": "0.01"}, {"error": {"message": "starting"}}),
    "overflow code": (
        "400 Bad Request",
        {},
        {"error": {"message": "Your input is too much.", "code": "context_length_exceeded"}},
    ),
    "overflow vllm": (
        "400 Bad Request",
        {},
        {
            "object": "error",
            "message": "This model's maximum context length is 512 tokens. However, you requested 700 tokens.",
            "code": 400,
        },
    ),
    "overflow text": ("400 Bad Request", {}, {"error": "the input length exceeds the context length"}),
    "overflow gateway": (
        "400 Bad Request",
        {},
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": "This model's maximum context length is 4096 tokens."},
            }
        },
    ),
    "400": ("400 Bad Request", {}, {"error": {"message": "Unknown field: seed"}}),
    "no system": (
        "400 Bad Request",
        {},
        {"error": {"message": "Developer instruction is not enabled for models/gemma-3-27b-it"}},
    ),
    # The rest are answers with status 200.
    "no json": ("200 OK", {"Content-Type": "text/html"}, "<html>Welcome!</html>"),
    "half json": ("200 OK", {}, '{"choices": [{"mess'),
    "no choices": ("200 OK", {}, {"choices": []}),
    "null choices": ("200 OK", {}, {"choices": None, "usage": None}),
    "no message": ("200 OK", {}, {"choices": [{"finish_reason": "stop"}]}),
    "list": ("200 OK", {}, [1, 2]),
    "an error inside": ("200 OK", {}, {"error": {"message": "upstream gone", "code": 502}}),
    "escapes": ("400 Bad Request", {}, {"error": {"message": "\x1b[2J\x1b]0;owned\x07gone\x9b31m"}}),
}


def completion(content: str | None = GOOD, **message: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content, **message}}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


class BadServer:
    """Answers ``/v1/chat/completions`` as `behave` says; a context manager.

    Ways beside those of the table: ``"good"``, ``"slow"`` (good after `delay` seconds), ``"hang"``, ``"cut"`` (no
    answer), ``"cut body"`` (half of one), ``"echo"`` (a reply that quotes the
    request's headers), ``"echo 500"`` (an error that does).

    Attributes:
        arrivals: when each request came, on the monotonic clock.
        bodies: what it said.
        most: the most requests that were open at once.
        answer: what ``"good"`` answers, unless a real server stands behind: then it answers.
        refusals: the ways of the table.

    Args:
        behave: the way of each request, or of all.
        delay: seconds that ``"slow"`` waits.
        upstream: the address of a real server, such as ``"http://127.0.0.1:8000/v1"``.
        model: the name of the model that it lists.
    """

    def __init__(
        self, behave: Behave | str = "good", delay: float = 0.02, upstream: str = "", model: str = "m"
    ) -> None:
        self.behave: Behave = behave if callable(behave) else lambda number, body: behave
        self.delay, self.upstream, self.model = delay, upstream, model
        self.arrivals: list[float] = []
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most = 0
        self.answer = completion()
        self.refusals = dict(_REFUSALS)
        self._started = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> BadServer:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if first.startswith("GET"):
                    models = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
                    writer.write(_response("200 OK", {}, models))
                    continue
                self.open += 1
                self.most = max(self.most, self.open)
                try:
                    if not await self._answer(writer, headers, json.loads(body)):
                        return
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, headers: Mapping[str, str], body: dict[str, Any]) -> bool:
        """Answer one request; whether the connection goes on."""
        way = self.behave(len(self.arrivals), body)
        self.arrivals.append(time.monotonic())
        self.bodies.append(body)
        if way == "hang":
            await self._stop.wait()
            return False
        if way == "slow":
            await asyncio.sleep(self.delay)
        if self.upstream and way in ("good", "slow", "cut body"):
            whole = await self._forward(json.dumps(body).encode())
        else:
            whole = self._response(way, headers)
        if way in ("cut", "cut body"):
            writer.write(whole[: len(whole) // 2 if way == "cut body" else 0])
            return False
        writer.write(whole)
        await writer.drain()
        return True

    async def _forward(self, body: bytes) -> bytes:
        """What the real server answers, on a connection for this request alone."""
        place = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(
            f"POST {place.path}/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"\r\ncontent-length:")
        content = await reader.readexactly(int(length.split(b"\r\n")[0]))
        writer.close()
        return head.replace(b"connection: close\r\n", b"") + content

    def _response(self, way: str, headers: Mapping[str, str]) -> bytes:
        if way in self.refusals:
            return _response(*self.refusals[way])
        if way == "echo 500":
            return _response("500 Internal Server Error", {}, {"error": {"message": f"bad headers: {dict(headers)}"}})
        quoted = f"<think>{dict(headers)}</think><answer>Up</answer>"
        return _response("200 OK", {}, completion(quoted) if way == "echo" else self.answer)


def _response(status: str, headers: Mapping[str, str], content: Any) -> bytes:
    body = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
    body = json.dumps(content).encode() if body is None else body
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body
