"""Wrong addresses, and answers that are not a server of games."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ragen_gym.serve import RemoteEnv, ServerError

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def hostile(answer: Answer) -> Iterator[str]:
    """A server that answers every POST like that; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                answer(self)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def reply(body: bytes, status: int = 201, **headers: str) -> Answer:
    """An answer of these bytes."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


def test_a_program_without_a_server_ends_in_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    program = f"from ragen_gym.serve import RemoteEnv; RemoteEnv({url!r}, 'FrozenLake')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"no answer from {url} to POST /sessions (ConnectError: " in done.stderr.splitlines()[-1]
    assert "Start it with ragen-gym serve, or correct the address" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, "the frames of the HTTP library say nothing to its user"


def test_an_address_a_token_and_a_timeout_that_are_none_are_refused() -> None:
    for url in (None, "localhost:8000", "ftp://localhost", "http://localhost:port", "http://\ud800"):
        with pytest.raises(ValueError, match=r"is not an address: (.*; )?write it as http://127\.0\.0\.1:8000"):
            RemoteEnv(url, "FrozenLake")  # type: ignore[arg-type]
    for token in ("secret\n", "s\u00e9cret", b"secret", 3):
        with pytest.raises(ValueError, match="a token has printable ASCII characters alone") as error:
            RemoteEnv("http://127.0.0.1:1", "FrozenLake", token=token)  # type: ignore[arg-type]
        assert "cret" not in str(error.value)
    for timeout in (float("nan"), -1, 0, "x", None):
        with pytest.raises(ValueError, match=r"timeout=.* must be a number from 0\.001 on"):
            RemoteEnv("http://127.0.0.1:1", "FrozenLake", timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["bad_value", "no_episode", "unknown_session", "full", "\x1b]0;mine\x07"])
def test_an_error_says_nothing_to_the_terminal(code: str) -> None:
    body = json.dumps({"error": {"code": code, "message": "\x1b[2J\x1b]0;mine\x07 all is well\r"}}).encode()
    with hostile(reply(body, 422)) as url, pytest.raises(Exception, match="all is well") as error:
        RemoteEnv(url, "FrozenLake")
    assert str(error.value).isprintable()
    assert getattr(error.value, "code", "").isprintable()


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b"{}", b"\xff", b"9" * 5000, b"[" * 10**5],
    ids=lambda body: str(body)[:20],
)
@pytest.mark.parametrize("status", [201, 404, 500])
def test_an_answer_that_is_none(body: bytes, status: int) -> None:
    with hostile(reply(body, status)) as url, pytest.raises(ServerError, match="is no ragen-gym server"):
        RemoteEnv(url, "FrozenLake")
