"""Multi-turn reinforcement learning of language-model agents on the games of `ragen_gym`.

Importing this package is cheap: torch and transformers are imported when a name that needs them is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragen_agent.tokens.chat import ChatFormat
    from ragen_agent.tokens.token_mdp import TokenMDP
    from ragen_agent.tokens.trajectory import Trajectory

__all__ = ["ChatFormat", "TokenMDP", "Trajectory"]

_HOMES = {
    "ChatFormat": "ragen_agent.tokens.chat",
    "TokenMDP": "ragen_agent.tokens.token_mdp",
    "Trajectory": "ragen_agent.tokens.trajectory",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
