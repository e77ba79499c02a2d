"""The games over HTTP: a server (``ragen-gym serve``), and clients that are themselves Gymnasium environments.

``create_app`` makes the FastAPI application, ``serving`` runs it in a thread of this process. ``RemoteEnv`` plays
single moves, ``RemoteTurnEnv`` whole replies, ``RemoteBatchEnv`` a batch, each as the local environment of the same
arguments does. The server needs the extra ``serve``; the clients need only httpx of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ragen_gym.core.settings import check_settings, setting

if TYPE_CHECKING:
    from ragen_gym.serve.app import create_app
    from ragen_gym.serve.client import RemoteBatchEnv, RemoteEnv, RemoteTurnEnv
    from ragen_gym.serve.http_client import ServerError, ServerUnreachable, SessionLost
    from ragen_gym.serve.server import serving

__all__ = [
    "Limits",
    "RemoteBatchEnv",
    "RemoteEnv",
    "RemoteTurnEnv",
    "ServerError",
    "ServerUnreachable",
    "SessionLost",
    "create_app",
    "serving",
]

_HOMES = {
    "create_app": "app",
    "serving": "server",
    **dict.fromkeys(("RemoteBatchEnv", "RemoteEnv", "RemoteTurnEnv"), "client"),
    **dict.fromkeys(("ServerError", "ServerUnreachable", "SessionLost"), "http_client"),
}


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Raises:
        ValueError: a number out of range.
    """

    max_memory: int = setting(2**31, "bytes that all open sessions may come to hold", low=1, unit="bytes")
    session_ttl: float = setting(
        900.0, "seconds without a request after which a session is closed", above=0, unit="seconds"
    )
    max_body: int = setting(2**18, "bytes of a request's body", low=1, unit="bytes")
    max_reply: int = setting(2**18, "characters of all replies of an episode", low=1)

    def __post_init__(self) -> None:
        check_settings(self)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a client needs no server, and costs no import of one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ImportError as error:
        if error.name not in ("fastapi", "httpx", "pydantic", "starlette", "uvicorn"):
            raise
        raise ImportError(f"{name} needs {error.name}: run `pip install 'ragen-gym[serve]'`.") from error
