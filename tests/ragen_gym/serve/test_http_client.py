"""What a server may do to its clients: no flood of bytes, no words for the terminal, no endless wait."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ragen_gym.serve import RemoteEnv, ServerError, ServerUnreachable

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


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Bytes without an end."""
    handler.send_response(201)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 2**20)


def test_a_program_without_a_server_ends_in_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    program = f"from ragen_gym.serve import RemoteEnv; RemoteEnv({url!r}, 'FrozenLake')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"no answer from {url} to POST /sessions (ConnectError: " in done.stderr.splitlines()[-1]
    assert "Start it with ragen-gym serve, or correct the address" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1, "the frames of the HTTP library say nothing to its user"


def test_what_is_compressed_is_never_unpacked() -> None:
    bomb = gzip.compress(b"[" + b" " * 2**28)
    with hostile(reply(bomb, Content_Encoding="gzip")) as url:
        tracemalloc.start()
        try:
            with pytest.raises(ServerError, match="compressed"):
                RemoteEnv(url, "FrozenLake")
            assert tracemalloc.get_traced_memory()[1] < 2**26
        finally:
            tracemalloc.stop()


def test_an_answer_has_a_greatest_size() -> None:
    with hostile(endless) as url, pytest.raises(ServerError, match="MiB"):
        RemoteEnv(url, "FrozenLake")


def test_an_answer_that_drips_is_not_waited_for() -> None:
    stop = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(201)
        handler.end_headers()
        while not stop.wait(0.05):
            handler.wfile.write(b" ")

    with hostile(drip) as url:
        with pytest.raises(ServerUnreachable, match="no answer"):
            RemoteEnv(url, "FrozenLake", timeout=0.5)
        stop.set()


def test_an_address_a_token_and_a_timeout_that_are_none_are_refused() -> None:
    for url in (None, "localhost:8000", "ftp://localhost", "http://localhost:port", "http://\ud800"):
        with pytest.raises(ValueError, match=r"is no address: (.*; )?write it as http://127\.0\.0\.1:8000"):
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
    [b"<html>", b"[]", b"{}", b'{"session": 3}', b'{"session": "a"}', b"\xff", b"9" * 5000, b"[" * 10**5],
    ids=lambda body: str(body)[:20],
)
@pytest.mark.parametrize("status", [201, 404, 500])
def test_an_answer_that_is_none(body: bytes, status: int) -> None:
    with hostile(reply(body, status)) as url, pytest.raises(ServerError, match="is no ragen-gym server"):
        RemoteEnv(url, "FrozenLake")


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Box", "low": 0, "high": 5, "shape": [2**13, 2**13], "dtype": "uint8"},
        {"type": "Dict", "spaces": {name: {"type": "Box", "shape": [2**23]} for name in "abc"}},
        {"type": "Box", "low": 0, "high": 5, "shape": [4], "dtype": "U9"},
        {"type": "Text"},
        {"type": "Discrete", "n": 10**400},
        3,
    ],
    ids=str,
)
def test_a_space_that_no_game_has_is_not_made(space: Any) -> None:
    about = dict.fromkeys(("action_names", "grain", "instructions", "max_episode_steps"))
    about |= {"session": "a", "env": "ragen/FrozenLake-v0", "action_space": {"type": "Discrete", "n": 4}}
    body = json.dumps({**about, "observation_space": space}).encode()
    with hostile(reply(body)) as url, pytest.raises(ValueError, match="described a space that cannot be made"):
        RemoteEnv(url, "FrozenLake")


@pytest.mark.parametrize("wait", ["1e9", "nan", "-3", "soon", "inf", "0"])
def test_how_long_a_client_waits_is_its_own_decision(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    body = b'{"error": {"code": "too_many_requests", "message": "slow down"}}'
    with hostile(reply(body, 429, Retry_After=wait)) as url, pytest.raises(ServerError, match="slow down"):
        RemoteEnv(url, "FrozenLake")
    assert slept
    assert all(0.05 <= seconds <= 60 for seconds in slept)
