"""The HTTP server between programs and training: replies in the forms of several APIs, and the game to play.

Each program has its own address, ``http://127.0.0.1:PORT/KEY``. Below it are the paths of ``DIALECTS``, OpenAI's
``/v1/models``, and the paths of ``ragen-gym serve`` for games with whole replies: ``POST /sessions``, ``POST
/sessions/{session}/reset``, ``POST /sessions/{session}/turn``, ``DELETE /sessions/{session}``.
Training chooses the level and the sampling; requests cannot change them.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol

from ragen_agent.programs.dialects import CHAT, DIALECTS
from ragen_agent.programs.request import Completion, Request, RequestError

#: Maximum bytes of a request.
LARGEST = 16 * 2**20


class Player(Protocol):
    """Handler of a program's requests. Each method may raise a ``RequestError``."""

    def complete(self, request: Request, gone: Callable[[], bool]) -> Completion:
        """A reply; ``gone()`` is True once the client has closed the connection."""
        ...

    def begin(self) -> dict[str, Any]:
        """Begin a session: the next episode."""
        ...

    def reset(self) -> dict[str, Any]:
        """The episode's first message."""
        ...

    def turn(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Play a reply in the game."""
        ...

    def end(self) -> None:
        """End the episode at the program's request."""
        ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.players: dict[str, Player] = {}


class Endpoint:
    """The server, in threads of this process; a context manager."""

    def __init__(self) -> None:
        self._server = _Server()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def start(self) -> None:
        """Serve until the process ends, or until the context manager exits."""
        self._thread.start()

    def add(self, player: Player) -> str:
        """Serve the player at a new, unguessable address, and return it."""
        key = secrets.token_hex(16)
        self._server.players[key] = player
        return f"http://127.0.0.1:{self._server.server_port}/{key}"

    def remove(self, url: str) -> None:
        """Stop serving the player at this address."""
        self._server.players.pop(url.rpartition("/")[2], None)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 600  # seconds until an idle connection is closed

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: a run has its own log."""

    def _serve(self, method: str) -> None:
        key, *path = self.path.partition("?")[0].strip("/").split("/")
        kind = "application/json"
        try:
            status, answer = self._answer(method, key, path)
        except RequestError as error:
            status, answer = error.status, self._refusal(path, error)
        except Exception as error:  # a bug or a game's error: reported to the program and in the episode
            wrong = RequestError(500, "internal", f"{type(error).__name__}: {error}")
            status, answer = 500, self._refusal(path, wrong)
        if isinstance(answer, str):
            kind, content = "text/event-stream", answer.encode()
        else:
            content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status >= 400:
            self.send_header("x-should-retry", "false")  # else OpenAI's and Anthropic's clients retry 409 and 500
        with suppress(ConnectionError):  # the client has left
            self.end_headers()
            self.wfile.write(content)

    def _refusal(self, path: list[str], error: RequestError) -> dict[str, Any]:
        return DIALECTS.get("/".join(path), CHAT).refusal(error)

    def _answer(self, method: str, key: str, path: list[str]) -> tuple[int, dict[str, Any] | str | None]:
        """Status and content of the answer: a JSON object, server-sent events, or nothing."""
        player = self.server.players.get(key)
        if player is None:
            self.close_connection = True  # the body is not read
            raise RequestError(404, "not_found", "no program has this address: use OPENAI_BASE_URL and RAGEN_GYM_URL.")
        body = self._body()
        dialect = DIALECTS.get("/".join(path)) if method == "POST" else None
        if dialect is not None:
            reply = player.complete(dialect.read(body), self._gone)
            return 200, (dialect.stream if body.get("stream") else dialect.answer)(body, reply)
        match (method, *path):
            case ("GET", "v1", "models"):
                return 200, {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "ragen"}]}
            case ("POST", "sessions"):
                return 201, player.begin()
            case ("POST", "sessions", _, "reset"):
                return 200, player.reset()
            case ("POST", "sessions", _, "turn"):
                return 200, player.turn(body)
            case ("DELETE", "sessions", _):
                player.end()
                return 204, None
        raise RequestError(404, "not_found", f"there is no {method} /{'/'.join(path)} here.")

    def _gone(self) -> bool:
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            with suppress(OSError):
                self.connection.settimeout(self.timeout)

    def _body(self) -> dict[str, Any]:
        try:
            text = self._content()
        except RequestError:
            self.close_connection = True  # the rest of the body is not read
            raise
        if not text:
            return {}
        try:
            body = json.loads(text)
        except ValueError as error:
            raise RequestError(400, "bad_json", f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RequestError(400, "bad_json", "the body must be a JSON object.")
        return body

    def _content(self) -> bytes:
        """The bytes of a body of known length, or in chunks (RFC 9112, section 7.1)."""
        coding = self.headers.get("Transfer-Encoding")
        if coding is None:
            return self._read(self.headers.get("Content-Length", "0"), 10, LARGEST)
        if coding.lower() != "chunked":
            raise RequestError(501, "unsupported", f"Transfer-Encoding must be chunked (got {coding!r:.100}).")
        content = bytearray()
        while chunk := self._read(self._line().partition(";")[0], 16, LARGEST - len(content)):
            content += chunk
            self._line()
        while self._line():  # trailers
            pass
        return bytes(content)

    def _line(self) -> str:
        return self.rfile.readline(2**16).decode("latin-1").strip()

    def _read(self, size: str, base: int, most: int) -> bytes:
        """As many bytes as ``size`` says in this ``base``, if they are at most ``most``."""
        if not re.fullmatch("[0-9]+" if base == 10 else "[0-9a-fA-F]+", size):
            raise RequestError(400, "bad_length", f"the length of the body is {size!r:.100}; it must be a number.")
        if len(size) > 12 or int(size, base) > most:
            raise RequestError(413, "too_large", f"a request has a body of at most {LARGEST} bytes.")
        return self.rfile.read(int(size, base))
