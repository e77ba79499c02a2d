"""The HTTP server between programs and training: chat completions in OpenAI's form, and the game to play.

Each program has its own address, ``http://127.0.0.1:PORT/KEY``. Below it are ``/v1/chat/completions`` and
``/v1/models`` of OpenAI's interface, and the paths of ``ragen-gym serve`` for games with whole replies: ``POST
/sessions``, ``POST /sessions/{session}/reset``, ``POST /sessions/{session}/turn``, ``DELETE /sessions/{session}``.
Training chooses the level and the sampling; requests cannot change them.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol

__all__ = ["Endpoint", "Player", "RequestError", "completion"]

#: Maximum bytes of a request.
LARGEST = 16 * 2**20


class RequestError(Exception):
    """A refused request, with its HTTP ``status``."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Player(Protocol):
    """Handler of a program's requests. Each method may raise a ``RequestError``."""

    def complete(self, body: Mapping[str, Any], gone: Callable[[], bool]) -> dict[str, Any]:
        """A chat completion; ``gone()`` is True once the client has closed the connection."""
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


def completion(model: str, text: str, prompt_tokens: int, completion_tokens: int, stopped: bool) -> dict[str, Any]:
    """A chat completion: a reply's text, the token counts of prompt and reply, and ``stopped``, False at the limit."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "stop" if stopped else "length",
        "logprobs": None,
    }
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


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
        try:
            status, answer = self._answer(method)
        except RequestError as error:
            status = error.status
            answer = {"error": {"message": str(error), "type": "invalid_request_error", "code": error.code}}
        except Exception as error:  # a bug or a game's error: reported to the program and in the episode
            status = 500
            answer = {"error": {"message": f"{type(error).__name__}: {error}", "type": "server_error", "code": None}}
        content = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status >= 400:
            self.send_header("x-should-retry", "false")  # else OpenAI's clients retry 409 and 500
        with suppress(ConnectionError):  # the client has left
            self.end_headers()
            self.wfile.write(content)

    def _answer(self, method: str) -> tuple[int, dict[str, Any] | None]:
        key, *path = self.path.partition("?")[0].strip("/").split("/")
        player = self.server.players.get(key)
        if player is None:
            self.close_connection = True  # the body is not read
            raise RequestError(404, "not_found", "no program has this address: use OPENAI_BASE_URL and RAGEN_GYM_URL.")
        body = self._body()
        match (method, *path):
            case ("POST", "v1", "chat", "completions"):
                return 200, player.complete(body, self._gone)
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
        size = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not size.isdigit() or int(size) > LARGEST:
            self.close_connection = True  # the body is not read
            raise RequestError(413, "too_large", f"a request needs a Content-Length of at most {LARGEST} bytes.")
        text = self.rfile.read(int(size))
        if not text:
            return {}
        try:
            body = json.loads(text)
        except ValueError as error:
            raise RequestError(400, "bad_json", f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RequestError(400, "bad_json", "the body must be a JSON object.")
        return body
