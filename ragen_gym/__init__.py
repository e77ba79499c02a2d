"""Text-rendered games for language-model agents, with exact seeds, oracles and held-out splits.

Importing this package registers every ``ragen/…`` id with Gymnasium::

    import gymnasium, ragen_gym

    env = gymnasium.make("ragen/FrozenLake-v0", split="train")

``make_turn`` gives the same games one grain coarser: an action is a whole reply of a language model. ``register``
adds a game of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen_gym.envs import register, register_all

if TYPE_CHECKING:
    from ragen_gym.core.levels import Level
    from ragen_gym.core.text import Vocabulary
    from ragen_gym.envs.reply import Reply
    from ragen_gym.envs.step import StepEnv
    from ragen_gym.envs.task import TaskEnv
    from ragen_gym.envs.trial import TrialEnv
    from ragen_gym.envs.turn import TurnEnv, make_turn
    from ragen_gym.envs.vector import BatchEnv
    from ragen_gym.wrappers import Curriculum

__all__ = [
    "BatchEnv",
    "Curriculum",
    "Level",
    "Reply",
    "StepEnv",
    "TaskEnv",
    "TrialEnv",
    "TurnEnv",
    "Vocabulary",
    "__version__",
    "make_turn",
    "register",
]

__version__ = "0.1.0"

_HOMES = {
    "BatchEnv": "envs.vector",
    "Curriculum": "wrappers",
    "Level": "core.levels",
    "Reply": "envs.reply",
    "StepEnv": "envs.step",
    "TaskEnv": "envs.task",
    "TrialEnv": "envs.trial",
    "TurnEnv": "envs.turn",
    "Vocabulary": "core.text",
    "make_turn": "envs.turn",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package stays quick."""
    from importlib import import_module

    if name == "wrappers":
        return import_module(f"{__name__}.wrappers")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


register_all()
