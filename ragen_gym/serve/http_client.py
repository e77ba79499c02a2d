"""The HTTP client of the remote environments: requests with a token, and the server's errors as Python's."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing, suppress

import gymnasium
import httpx

from ragen_gym.serve.serialization import Json

__all__ = ["RemoteSession", "ServerError", "ServerRefused", "ServerUnreachable", "SessionLost"]

#: How often a request is repeated that exceeds the rate limit.
_RETRIES = 5


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
        As ``post``.
    """

    def __init__(self, url: str, body: Json, token: str | None, timeout: float) -> None:
        token = token or os.environ.get("RAGEN_GYM_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url, self.timeout = url.rstrip("/"), timeout
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        self._closed = False
        try:
            self.about: Json = self._send("POST", "/sessions", body).json()
        except BaseException:
            self._http.close()
            raise
        self.id: str = self.about["session"]
        self._path = f"/sessions/{self.id}"

    def post(self, operation: str, body: Json) -> Json:
        """Send a request to the session; what the server answers.

        A request that exceeds the server's rate limit is repeated, since it was not carried out. No other one is.

        Raises:
            ValueError: the server's library does not allow a value.
            gymnasium.error.ResetNeeded: the episode is over, or none was started.
            SessionLost: the server does not have the session.
            ServerError: any other error of the server.
            ServerUnreachable: no response came.
        """
        answer: Json = self._send("POST", f"{self._path}/{operation}", body).json()
        return answer

    def state(self) -> Json:
        """Boards, levels and conversation; raises as ``post`` does."""
        answer: Json = self._send("GET", self._path).json()
        return answer

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

    def _send(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        for _ in range(_RETRIES):
            answer = self._request(method, path, body)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            time.sleep(float(answer.headers.get("Retry-After", 1)))
        else:
            answer = self._request(method, path, body)
        if answer.is_error:
            raise _error(answer)
        return answer

    def _request(self, method: str, path: str, body: Json | None) -> httpx.Response:
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
        return ServerError("no_ragen_gym", f"{answer.url} answered {answer.status_code} and is no ragen-gym server.")
    if code == "unknown_session":
        return SessionLost(message)
    if code == "no_episode":
        return gymnasium.error.ResetNeeded(message)
    if code in ("bad_value", "bad_request", "too_large", "too_expensive", "not_rendering"):
        return ValueError(message)
    return ServerError(code, message)
