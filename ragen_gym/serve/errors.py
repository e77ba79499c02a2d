"""HTTP errors: each has a status, a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gymnasium.error import DependencyNotInstalled, ResetNeeded

__all__ = ["STATUS", "RequestError", "library_errors"]

#: The HTTP status of each code.
STATUS = {
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
    "bad_request": 422,  # the body or a parameter is not of the documented form
    "bad_value": 422,  # an unknown game or option, an action out of range, a wrong board
    "too_large": 422,  # more than the server's memory
    "internal": 500,
    "not_installed": 501,
    "full": 503,
}
_LONGEST_MESSAGE = 2_000


class RequestError(Exception):
    """A refused request: a key of ``STATUS`` and a message, without its middle where it repeats a long value."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        half = _LONGEST_MESSAGE // 2
        self.code = code
        self.message = message if len(message) <= 2 * half else f"{message[:half]} … {message[-half:]}"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def body(self) -> dict[str, dict[str, str]]:
        """The JSON of the answer."""
        return {"error": {"code": self.code, "message": self.message}}


@contextmanager
def library_errors(options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn the library's errors into ``RequestError``: to be put around calls of it and nothing else.

    With ``options``, a client's options of a game that is being made, every exception is blamed on them: a value of a
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
