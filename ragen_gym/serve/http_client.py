"""What the clients share: requests with a token, and the server's errors as Python's."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import gymnasium
import httpx

__all__ = ["Connection", "ServerRefused", "ServerUnreachable", "SessionLost"]

_WAITS = 5


class ServerUnreachable(ConnectionError):
    """No answer came: the server is not there, or the connection broke. Whether a move was played is not known."""


class SessionLost(RuntimeError):
    """The server no longer has the session: it expired, was closed, or the server was started anew.

    Its episode is lost; a new environment plays it again from its seed.
    """


class ServerRefused(RuntimeError):
    """The server refused for a reason of its own: it is full, wants a token, or the client is too fast.

    Attributes:
        code: the server's code of the reason.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """One kept-alive connection.

    Args:
        url: where the server is, such as ``"http://127.0.0.1:8000"``.
        token: its token; None is what the environment variable RAGEN_GYM_TOKEN holds, if anything.
        timeout: seconds after which an answer is no longer waited for.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        token = token or os.environ.get("RAGEN_GYM_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request; what the server answers, as JSON values.

        A request that came too early by the server's rate is repeated, since it was not carried out. No other one is.

        Raises:
            ValueError: the server's library refuses a value.
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            SessionLost: the server does not have the session.
            ServerRefused: any other refusal.
            ServerUnreachable: no answer came.
        """
        answer = self._send(method, path, body)
        return None if answer.status_code == httpx.codes.NO_CONTENT else answer.json()

    def picture(self, path: str) -> bytes:
        """A PNG; raises as `ask` does."""
        return self._send("GET", path, None).content

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        answer = self._sent(method, path, body)
        for _ in range(_WAITS):
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            time.sleep(float(answer.headers.get("Retry-After", 1)))
            answer = self._sent(method, path, body)
        if answer.is_error:
            raise _error(answer)
        return answer

    def _sent(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"no answer from {self.url} ({type(error).__name__}: {error}): is the server running? Its sessions end "
                "with it; make a new environment when it is back."
            ) from error


def _error(answer: httpx.Response) -> Exception:
    try:
        problem = answer.json()["error"]
        code, message = str(problem["code"]), str(problem["message"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return ServerRefused("no_ragen_gym", f"{answer.url} answered {answer.status_code} and is no ragen-gym server.")
    if code == "unknown_session":
        return SessionLost(message)
    if code == "no_episode":
        return gymnasium.error.ResetNeeded(message)
    if code in ("bad_value", "bad_request", "too_large", "too_expensive", "not_rendering"):
        return ValueError(message)
    return ServerRefused(code, message)
