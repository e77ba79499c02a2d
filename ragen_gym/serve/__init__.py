"""The games over HTTP: a server (``ragen-gym serve``), and clients that are themselves Gymnasium environments.

``create_app`` makes the FastAPI application, ``serving`` runs it in a thread of this process. ``RemoteEnv`` plays
single moves, ``RemoteTurnEnv`` whole replies, each as the local environment of the same arguments does. The server
needs the extra ``serve``; the clients need only httpx of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen_gym.serve.app import create_app
    from ragen_gym.serve.client import RemoteEnv, RemoteTurnEnv, ServerError, ServerUnreachable, SessionLost
    from ragen_gym.serve.server import serving

__all__ = [
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
    **dict.fromkeys(("RemoteEnv", "RemoteTurnEnv", "ServerError", "ServerUnreachable", "SessionLost"), "client"),
}


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
