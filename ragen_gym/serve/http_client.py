"""The HTTP client of the remote environments: requests with a token, and the server's errors as Python's."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress

import gymnasium
import httpx

from ragen_gym.core.text import without_controls
from ragen_gym.core.validation import check_number, shown
from ragen_gym.serve.serialization import Json, request_json

__all__ = ["RemoteSession", "ServerError", "ServerUnreachable", "SessionLost"]

_VALUE_ERRORS = ("bad_value", "bad_request")


class ServerUnreachable(ConnectionError):
    """No response came: the server is not there, or the connection broke. Whether a move was played is not known."""


class SessionLost(RuntimeError):
    """The server no longer has the session: it expired, was closed, or the server was restarted.

    Its episode is lost; a new environment plays it again from its seed.
    """


class ServerError(RuntimeError):
    """The server has a reason of its own not to carry a request out: it is full, or wants a token.

    Attributes:
        code: the server's code of the reason.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteSession:
    """A session on a server, and the kept-alive connection to it.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        body: the request that creates the session.
        token: the server's token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds to wait for a response.

    Attributes:
        id: the session's.
        about: the server's description of the session.

    Raises:
        As ``post``, and a ValueError for a wrong url, token or timeout.
    """

    def __init__(self, url: str, body: Json, token: str | None, timeout: float) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"url={shown(url)} is not an address: write it as http://127.0.0.1:8000.")
        check_number("a remote environment", "timeout", timeout, 0.001)
        token = token or os.environ.get("RAGEN_GYM_TOKEN")
        if token and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise ValueError("a token has printable ASCII characters alone: give it as a text, without a line break.")
        self.url, self.timeout = url.rstrip("/"), timeout
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise ValueError(
                f"url={shown(url)} is not an address: {error}; write it as http://127.0.0.1:8000."
            ) from None
        self._closed = False
        try:
            self.about = self._json(self._send("POST", "/sessions", body))
            self.id: str = self.about["session"]
        except BaseException:
            self._http.close()
            raise
        self._path = f"/sessions/{self.id}"

    def post(self, operation: str, body: Json) -> Json:
        """Send a request to the session; what the server answers.

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
        """The session as it stands: board and level; raises as ``post`` does."""
        return self._json(self._send("GET", self._path))

    def picture(self) -> bytes:
        """A PNG of the board; raises as ``post`` does."""
        return self._send("GET", f"{self._path}/render.png").content

    def close(self) -> None:
        """Close the session; a server that is gone has closed it already."""
        if self._closed:
            return
        self._closed = True
        with closing(self._http), suppress(ConnectionError, RuntimeError):
            self._send("DELETE", self._path)

    def _send(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        if self._http.is_closed:
            raise gymnasium.error.ClosedEnvironmentError("this environment was closed: make a new one.")
        try:
            answer = self._http.request(method, path, content=None if body is None else request_json(body))
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"no answer from {self.url} to {method} {path} ({type(error).__name__}: {error}): is the server "
                "running? Start it with ragen-gym serve, or correct the address; a server's sessions end with it, so "
                "make a new environment then."
            ) from None  # the causes are the HTTP library's own frames, and end in the words that are quoted
        if answer.is_error:
            raise self._error(answer)
        return answer

    def _json(self, answer: httpx.Response) -> Json:
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found.keys() & {"session", "observation", "error"}:
            raise ServerError("no_ragen_gym", f"{self.url} answered {answer.status_code} and is no ragen-gym server.")
        return found

    def _error(self, answer: httpx.Response) -> Exception:
        """The Python exception for a server's refusal, in words that are safe to print."""
        problem = self._json(answer).get("error")
        fields = problem if isinstance(problem, dict) else {}
        code, message = (without_controls(str(fields.get(key))) for key in ("code", "message"))
        if code == "unknown_session":
            return SessionLost(message)
        if code == "no_episode":
            return gymnasium.error.ResetNeeded(message)
        return ValueError(message) if code in _VALUE_ERRORS else ServerError(code, message)
