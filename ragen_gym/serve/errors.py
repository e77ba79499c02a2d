"""HTTP errors: every one is a status, a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gymnasium.error import DependencyNotInstalled, ResetNeeded

__all__ = ["STATUS", "RequestError", "library_errors", "shorten"]

#: The HTTP status of each code.
STATUS = {
    "bad_request": 422,  # the body or a parameter is not of the documented form
    "bad_value": 422,  # an unknown game or option, an action out of range, a wrong board
    "too_large": 422,  # allowed by the library, too large for a server
    "too_expensive": 422,  # its levels take too long to generate
    "bad_json": 400,
    "unauthorized": 401,
    "foreign_host": 403,
    "not_found": 404,
    "unknown_session": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "no_episode": 409,  # a step before reset, or after the end
    "wrong_grain": 409,
    "not_rendering": 409,
    "body_too_large": 413,
    "conversation_full": 413,
    "too_many_requests": 429,
    "header_too_large": 431,
    "internal": 500,
    "not_installed": 501,
    "full": 503,
    "busy": 503,
}


_LONGEST_MESSAGE = 2_000


def shorten(message: str) -> str:
    """A message without its middle, where it repeats what a client sent at length."""
    half = _LONGEST_MESSAGE // 2
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]} … {message[-half:]}"


class RequestError(Exception):
    """A request that is not carried out: a key of ``STATUS``, words for people, seconds before another try."""

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after = code, shorten(message), retry_after

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> dict[str, dict[str, str]]:
        """What is sent: a ``ragen_gym.serve.schemas.Error``."""
        return {"error": {"code": self.code, "message": self.message}}

    def headers(self) -> dict[str, str]:
        """The headers that go with it."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        # Who may not come in may not keep a connection either; of a body too large or too slow there may be a rest.
        if self.code in ("unauthorized", "foreign_host", "timeout", "body_too_large"):
            headers["Connection"] = "close"
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        return headers


@contextmanager
def library_errors(options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn the library's errors into ``RequestError``: to be put around calls of it and nothing else.

    With ``options``, a client's options of a game that is being made, every exception is one of theirs: a value of a
    type that the game does not expect.
    """
    try:
        yield
    except ResetNeeded as error:
        raise RequestError("no_episode", str(error)) from error
    except DependencyNotInstalled as error:
        raise RequestError("not_installed", str(error)) from error
    except ValueError as error:
        raise RequestError("bad_value", str(error)) from error
    except Exception as error:
        if not options or isinstance(error, RequestError):
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise RequestError(
            "bad_value", f"no game can be made with {given} ({type(error).__name__}: {error})."
        ) from error
