"""Running the server: in this process for a command, or in a thread of it for a test or a notebook.

uvicorn waits for ever for a request's header and takes any number of connections, so its protocol is given
deadlines and limits here; what follows the header is limited by ``ragen_gym.serve.middleware``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from threading import Thread

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ragen_gym.serve.app import create_app
from ragen_gym.serve.errors import RequestError
from ragen_gym.serve.limits import Limits
from ragen_gym.serve.middleware import is_loopback

__all__ = ["LEAST_TOKEN", "allow_many_files", "bound_socket", "check_token", "run", "serving"]

#: Characters that a token must have at least.
LEAST_TOKEN = 16

_BACKLOG = 4096
#: Bytes of a request's header, and files that the server opens besides its connections.
_LARGEST_HEADER, _OTHER_FILES = 2**16, 64
#: Seconds in which a client must read what it is sent, and bytes that it may leave unread meanwhile.
_READ_SECONDS, _UNREAD = 30.0, 2**27


def check_token(host: str, token: str | None, variable: str) -> str | None:
    """The token, if the server may be bound to that host with it.

    Raises:
        ValueError: the host is not this machine alone and there is no token, or the token is too short to be one.
    """
    if not token:
        if is_loopback(host):
            return None
        raise ValueError(
            f"--host {host} lets other machines in, so clients must show a token: put one into the environment "
            f"variable {variable}, for example with export {variable}=$(openssl rand -hex 32)."
        )
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"the token in {variable} must have {LEAST_TOKEN} or more printable characters, no spaces.")
    return token


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to that address, 0 being any free port; uvicorn would end the process if it could not.

    Raises:
        OSError: the address cannot be had.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another port, 0 for any that is free."
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    """How clients reach that socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(bound: socket.socket, limits: Limits, token: str | None, started: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or a SIGTERM, then finish the requests that are under way.

    ``started`` is called with the URL once requests are answered; for ``token`` see ``ragen_gym.serve.create_app``.
    """
    server = _Server(_config(limits, token), lambda: started(url_of(bound)))
    server.run(sockets=[bound])


GRACE = 10.0  # seconds for the requests that are under way


@contextmanager
def serving(limits: Limits | None = None, token: str | None = None, port: int = 0) -> Iterator[str]:
    """The server in a thread of this process, on the loopback address; gives its URL. For tests and notebooks."""
    bound = bound_socket("127.0.0.1", port)
    server = uvicorn.Server(_config(limits or Limits(rate=0), token))
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
        thread.join(GRACE)
        server.force_exit = True  # a client that keeps its request open would keep us waiting for ever
        thread.join(GRACE)
        bound.close()


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config, said: Callable[[], None]) -> None:
        super().__init__(config)
        self._said = said

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._said()


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Uvicorn's protocol for one server: every header has a deadline, and connections beyond the limits are refused."""
    most = min(limits.max_connections, max(1, allow_many_files() - _OTHER_FILES))
    most_of_one = limits.max_connections_per_client or max(1, most // 2)
    open_of: Counter[str] = Counter()
    unread_of: Counter[str] = Counter()

    class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # h11's or httptools', by what is installed
        """One connection."""

        address: str | None = None  # None: it was refused
        unfinished = 0  # bytes of a header that has not ended
        deadline: asyncio.TimerHandle | None = None
        unread: asyncio.TimerHandle | None = None
        unread_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            address = str((transport.get_extra_info("peername") or ("",))[0])
            for used, allowed, what in (
                (open_of.total(), most, "connections"),
                (open_of[address], most_of_one, "connections of one client"),
            ):
                if used >= allowed:
                    self.refuse(RequestError("full", f"this server has {allowed} {what} at most: close some."))
                    return
            self.address = address
            open_of[address] += 1
            self.wait_for_header()

        def data_received(self, data: bytes) -> None:
            if self.address is None or self.transport.is_closing():
                return
            super().data_received(data)
            if self.under_way():
                self.stop_waiting()
                return
            if self.deadline is None:
                self.wait_for_header()
            self.unfinished += len(data)
            if self.unfinished > _LARGEST_HEADER:
                message = f"the header of a request may have {_LARGEST_HEADER} bytes."
                self.refuse(RequestError("header_too_large", message))

        def pause_writing(self) -> None:
            super().pause_writing()
            self.unread = self.loop.call_later(_READ_SECONDS, self.transport.abort)
            self.unread_bytes = self.transport.get_write_buffer_size()
            unread_of[self.address or ""] += self.unread_bytes
            if unread_of[self.address or ""] > _UNREAD or unread_of.total() > limits.max_memory:
                self.transport.abort()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.has_read()

        def has_read(self) -> None:
            if self.unread is not None:
                self.unread.cancel()
            unread_of[self.address or ""] -= self.unread_bytes
            self.unread_bytes = 0

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()  # which closes, but not before all is read
            self.loop.call_later(_READ_SECONDS, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            self.has_read()
            if self.address is not None:
                open_of[self.address] -= 1
                if not open_of[self.address]:
                    del open_of[self.address], unread_of[self.address]
            super().connection_lost(exc)

        def under_way(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def wait_for_header(self) -> None:
            self.deadline = self.loop.call_later(limits.header_timeout, self.give_up)

        def stop_waiting(self) -> None:
            self.unfinished = 0
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def give_up(self) -> None:
            if not self.under_way():
                words = f"the request's header did not arrive in {limits.header_timeout:g} seconds."
                self.refuse(RequestError("timeout", words))

        def refuse(self, error: RequestError) -> None:
            if self.transport.is_closing():
                return
            body = json.dumps(error.body()).encode()
            headers = {**error.headers(), "Content-Type": "application/json", "Content-Length": str(len(body))}
            lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
            self.transport.close()

    return Connection


def _config(limits: Limits, token: str | None) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(limits, token),
        http=_protocol(limits),
        log_level="warning",
        access_log=False,
        backlog=_BACKLOG,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=5,
        proxy_headers=False,  # a client could name any address as its own
        server_header=False,
        ws="none",
        lifespan="on",
    )


def allow_many_files() -> int:
    """Raise the limit on open files to what the system allows, as every connection is one; how many there may be."""
    if sys.platform == "win32":
        return 512
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
