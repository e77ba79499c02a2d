"""The HTTP client of the remote environments: requests with a token, and the server's errors as Python's.

A server is not trusted: its answers are bounded in bytes and, once their header is there, in seconds; they are never
unpacked, and its words are printable.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress
from typing import NamedTuple

import gymnasium
import httpx

from ragen_gym.core.text import without_controls
from ragen_gym.core.validation import check_number, shown
from ragen_gym.serve.errors import shorten
from ragen_gym.serve.serialization import Json, request_json

__all__ = ["RemoteSession", "ServerError", "ServerRefused", "ServerUnreachable", "SessionLost"]

#: How often a request is repeated that exceeds the rate limit, and the seconds between, whatever the server asks for.
_RETRIES, _SHORTEST_WAIT, _LONGEST_WAIT = 5, 0.05, 60.0
#: Bytes of an answer: several times those of the largest batch.
_LARGEST_ANSWER = 2**26
_JSON = {"Content-Type": "application/json"}
#: What a server says of every environment that it makes.
_DESCRIBED = {"env", "grain", "action_names", "action_space", "observation_space", "max_episode_steps", "instructions"}


class ServerUnreachable(ConnectionError):
    """No response came: the server is not there, or the connection broke. Whether a move was played is not known."""


class SessionLost(RuntimeError):
    """The server no longer has the session: it expired, was closed, or the server was restarted.

    Its episode is lost; a new environment plays it again from its seed.
    """


class ServerError(RuntimeError):
    """The server has a reason of its own not to carry a request out: it is full, wants a token, or is too busy.

    Attributes:
        code: the server's code of the reason.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


#: The name that it had first.
ServerRefused = ServerError


class _Answer(NamedTuple):
    status: int
    headers: httpx.Headers
    content: bytes


class RemoteSession:
    """A session on a server, and the kept-alive connection to it.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        body: the request that creates the session.
        token: the server's token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds to wait for a response.

    Attributes:
        id: the session's.
        about: what the server said when it created the session.

    Raises:
        As ``post``, and a ValueError for a url, a token or a timeout that is none.
    """

    def __init__(self, url: str, body: Json, token: str | None, timeout: float) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"url={shown(url)} is no address: write it as http://127.0.0.1:8000.")
        check_number("a remote environment", "timeout", timeout, 0.001)
        token = token or os.environ.get("RAGEN_GYM_TOKEN")
        if token and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise ValueError("a token has printable ASCII characters alone: give it as a text, without a line break.")
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.url, self.timeout = url.rstrip("/"), timeout
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise ValueError(f"url={shown(url)} is no address: {error}; write it as http://127.0.0.1:8000.") from None
        self._closed = False
        try:
            self.about = self._json(self._send("POST", "/sessions", body))
            self.id: str = self.about.get("session", "")
            if not isinstance(self.id, str) or not self.id.isalnum() or not self.about.keys() >= _DESCRIBED:
                raise self._no_ragen_gym(httpx.codes.CREATED)
        except BaseException:
            self._http.close()
            raise
        self._path = f"/sessions/{self.id}"

    def post(self, operation: str, body: Json) -> Json:
        """Send a request to the session; what the server answers.

        A request that exceeds the server's rate limit is repeated, since it was not carried out. No other one is.

        Raises:
            ValueError: the server's library does not allow a value.
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            gymnasium.error.ClosedEnvironmentError: ``close`` was called.
            SessionLost: the server does not have the session.
            ServerError: any other error of the server.
            ServerUnreachable: no response came.
        """
        return self._json(self._send("POST", f"{self._path}/{operation}", body))

    def state(self) -> Json:
        """Boards, levels and conversation; raises as ``post`` does."""
        return self._json(self._send("GET", self._path))

    def picture(self, index: int) -> bytes:
        """A PNG of an environment's board; raises as ``post`` does."""
        return self._send("GET", f"{self._path}/render.png?index={index}").content

    def close(self) -> None:
        """Close the session; a server that is gone has closed it already."""
        if self._closed:
            return
        self._closed = True
        with closing(self._http), suppress(ConnectionError, RuntimeError):
            self._send("DELETE", self._path)

    def _send(self, method: str, path: str, body: Json | None = None) -> _Answer:
        for _ in range(_RETRIES):
            answer = self._request(method, path, body)
            if answer.status != httpx.codes.TOO_MANY_REQUESTS:
                break
            time.sleep(_seconds(answer.headers.get("Retry-After", "")))
        else:
            answer = self._request(method, path, body)
        if answer.status >= httpx.codes.BAD_REQUEST:
            raise self._error(answer)
        return answer

    def _request(self, method: str, path: str, body: Json | None) -> _Answer:
        if self._http.is_closed:
            raise gymnasium.error.ClosedEnvironmentError("this environment was closed: make a new one.")
        deadline, content = time.monotonic() + self.timeout, bytearray()
        sent = None if body is None else request_json(body)
        try:
            with self._http.stream(method, path, content=sent, headers=_JSON if sent else None) as answer:
                if "Content-Encoding" in answer.headers:
                    raise ServerError("compressed", f"{self.url} sent a compressed answer, which was not asked for.")
                for part in answer.iter_raw():
                    content += part
                    if len(content) > _LARGEST_ANSWER:
                        most = f"{_LARGEST_ANSWER >> 20} MiB"
                        raise ServerError("answer_too_large", f"{self.url} answered with more than {most}.")
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout(f"the answer took more than {self.timeout:g} seconds")
                return _Answer(answer.status_code, answer.headers, bytes(content))
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"no answer from {self.url} to {method} {path} ({type(error).__name__}: {error}): is the server "
                "running? Start it with ragen-gym serve, or correct the address; a server's sessions end with it, so "
                "make a new environment then."
            ) from None  # the causes are the HTTP library's own frames, and end in the words that are quoted

    def _json(self, answer: _Answer) -> Json:
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):  # no JSON, no UTF-8, thousands of digits or of brackets
            found = None
        if not isinstance(found, dict):
            raise self._no_ragen_gym(answer.status)
        return found

    def _no_ragen_gym(self, status: int) -> ServerError:
        return ServerError("no_ragen_gym", f"{self.url} answered {status} and is no ragen-gym server.")

    def _error(self, answer: _Answer) -> Exception:
        """What a server's refusal is in Python, in words that are safe to print."""
        problem = self._json(answer).get("error")
        if not isinstance(problem, dict) or not problem.keys() >= {"code", "message"}:
            return self._no_ragen_gym(answer.status)
        code, message = (shorten(without_controls(str(problem[key]))) for key in ("code", "message"))
        if code == "unknown_session":
            return SessionLost(message)
        if code == "no_episode":
            return gymnasium.error.ResetNeeded(message)
        if code in ("bad_value", "bad_request", "too_large", "too_expensive", "not_rendering"):
            return ValueError(message)
        return ServerError(code, message)


def _seconds(retry_after: str) -> float:
    """How long to wait before a request is repeated."""
    try:
        wanted = float(retry_after)
    except ValueError:  # none, or a date
        wanted = 1.0
    return min(_LONGEST_WAIT, max(_SHORTEST_WAIT, wanted))  # in this order NaN is the shortest
