"""Running the server: in this process for a command, or in a thread of it for a test or a notebook."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ragen_gym.serve.app import create_app, is_loopback
from ragen_gym.serve.schemas import RequestError

#: Characters that a token must have at least.
LEAST_TOKEN = 16

_BACKLOG = 4096
_HEADER_SECONDS = 10.0  # in which a request's header must arrive
_GRACE = 10.0  # seconds for the requests that are under way


def check_token(host: str, token: str | None) -> str | None:
    """The token, if the server may be bound to that host with it.

    Raises:
        ValueError: the host is not this machine alone and there is no token, or the token is too short to be one.
    """
    if not token:
        if is_loopback(host):
            return None
        raise ValueError(
            f"--host {host} lets other machines in, so clients must show a token: "
            "export RAGEN_GYM_TOKEN=$(openssl rand -hex 32)."
        )
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"RAGEN_GYM_TOKEN must have {LEAST_TOKEN} or more printable characters, no spaces.")
    return token


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to that address, 0 being any free port; uvicorn would end the process if it could not.

    Raises:
        OSError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def run(bound: socket.socket, app: FastAPI) -> None:
    """Serve until Ctrl-C or a SIGTERM, then finish the requests that are under way."""
    uvicorn.Server(_config(app)).run(sockets=[bound])


@contextmanager
def serving(token: str | None = None, port: int = 0, **limits: Any) -> Iterator[str]:
    """The server in a thread of this process, on the loopback address; gives its URL. For tests and notebooks.

    ``limits`` are those of ``create_app``.
    """
    server = uvicorn.Server(_config(create_app(token, **limits)))
    bound = bound_socket("127.0.0.1", port)
    thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            if not thread.is_alive():
                raise RuntimeError("the server did not start; its log says why.")
        yield url_of(bound)
    finally:
        server.should_exit = True
        thread.join(_GRACE)
        server.force_exit = True  # a client that keeps its request open would keep us waiting for ever
        thread.join(_GRACE)
        bound.close()


def url_of(bound: socket.socket) -> str:
    """The address that clients reach that socket by."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # h11's or httptools', by what is installed
    """A connection with a deadline for each request's header, for which uvicorn would wait for ever."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.deadline = self.loop.call_later(_HEADER_SECONDS, self.give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_waiting()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(_HEADER_SECONDS, self.give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        super().connection_lost(exc)

    def stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def give_up(self) -> None:
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return
        error = RequestError("timeout", f"the request's header did not arrive in {_HEADER_SECONDS:g} seconds.")
        body = json.dumps(error.body()).encode()
        head = f"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        self.transport.close()


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Connection,
        log_level="warning",
        access_log=False,
        backlog=_BACKLOG,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=5,
        server_header=False,
        ws="none",
        lifespan="on",
    )
