"""Limits of the server."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_gym.core.settings import check_settings, setting

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Raises:
        ValueError: a number out of range.
    """

    max_sessions: int = setting(1024, "sessions that may be open", low=1)
    session_ttl: float = setting(
        900.0, "seconds without a request after which a session is closed", above=0, unit="seconds"
    )
    max_body: int = setting(2**18, "bytes of a request's body", low=1, unit="bytes")

    def __post_init__(self) -> None:
        check_settings(self)
