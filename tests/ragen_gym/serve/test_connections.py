"""Connections that ask for nothing: deadlines for the header and the body of every request."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from ragen_gym.serve import serving

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[str]:
    """A server that waits for half a second for a header."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ragen_gym.serve.server._HEADER_SECONDS", 0.5)
        with serving() as url:
            yield url


def connected(url: str) -> socket.socket:
    """A connection; whatever it waits for comes within a minute, or the test fails."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), 60)


def until_end(link: socket.socket) -> bytes:
    """All that still comes before the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := link.recv(65536):
            received += part
    return received


def answer(link: socket.socket) -> bytes:
    """One answer with its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += link.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += link.recv(65536)
    return head + b"\r\n\r\n" + body


def nothing(link: socket.socket) -> None:
    """A client that connects and is silent."""


def half_a_header(link: socket.socket) -> None:
    link.sendall(GET[:-2])


def drops(link: socket.socket) -> None:
    """A header that grows by a byte now and then, without an end."""
    with contextlib.suppress(ConnectionError):
        link.sendall(GET[:-2])
        for _ in range(1200):
            link.sendall(b"X: y\r\n")
            time.sleep(0.05)
            link.setblocking(False)
            try:
                if link.recv(1, socket.MSG_PEEK) is not None:
                    break
            except BlockingIOError:
                pass
            finally:
                link.settimeout(60)


def half_a_second_request(link: socket.socket) -> None:
    link.sendall(GET)
    assert answer(link).startswith(b"HTTP/1.1 200")
    link.sendall(GET[:20])


@pytest.mark.parametrize("behave", [nothing, half_a_header, drops, half_a_second_request])
def test_a_header_that_does_not_end_is_not_waited_for(hasty: str, behave: Callable[[socket.socket], None]) -> None:
    with connected(hasty) as link:
        behave(link)
        said = until_end(link)
    assert said.startswith(b"HTTP/1.1 408 "), said
    assert b'"code": "timeout"' in said


def test_a_request_that_is_under_way_has_its_time(hasty: str) -> None:
    """A body may take longer than a header may, and so may the next request on a connection that is kept."""
    body = b'{"env": "FrozenLake"}'
    with connected(hasty) as link:
        for _ in range(2):
            head = f"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            link.sendall(head.encode() + body[:5])
            time.sleep(0.8)
            link.sendall(body[5:])
            assert b" 422 " in answer(link)[:20]  # no Content-Type
            time.sleep(0.8)
        link.sendall(GET)
        assert answer(link).startswith(b"HTTP/1.1 200")


def test_the_rest_of_a_body_that_is_too_large_is_no_header(server: str) -> None:
    size = 400_000
    with connected(server) as link:
        link.sendall(f"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + b"x")
        time.sleep(0.2)
        link.sendall(b"x" * (size - 1))
        said = until_end(link)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert said.count(b"HTTP/1.1 ") == 1, "one answer for one request"


def test_a_body_that_does_not_end_is_not_waited_for(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_gym.serve.app._BODY_SECONDS", 0.3)
    with connected(server) as link:
        link.sendall(b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
        said = until_end(link)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"body did not arrive" in said
