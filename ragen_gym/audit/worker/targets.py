"""Which adapter a target's name asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .gym_like import CallableTarget, GymnasiumTarget, ServerTarget
from .hubs import OpenEnvTarget, VerifiersTarget
from .protocol import Target
from .text_libraries import GemTarget, ReasoningGymTarget, SkyRLTarget, TextArenaTarget

__all__ = ["PREFIXES", "open_target"]

Adapter = Callable[[str, dict[str, Any], list[Any]], Target]

#: Adapters by the prefix that chooses one; a name without a prefix is recognised by its form.
PREFIXES: dict[str, Adapter] = {
    "gymnasium": GymnasiumTarget,
    "callable": CallableTarget,
    "textarena": TextArenaTarget,
    "gem": GemTarget,
    "skyrl": SkyRLTarget,
    "reasoning-gym": ReasoningGymTarget,
    "openenv": OpenEnvTarget,
    "verifiers": VerifiersTarget,
}
_ID = re.compile(r"(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+")


def open_target(name: str, options: dict[str, Any], menu: list[Any]) -> Target:
    """The target of a name.

    Args:
        name: a Gymnasium id, ``module:callable``, an address ``http://HOST:PORT/GAME`` of this project's server, or
            ``PREFIX:NAME`` with one of ``PREFIXES``.
        options: arguments of its constructor.
        menu: actions to choose from, where the environment does not list them.

    Raises:
        ValueError: the name has none of these forms, or names nothing.
    """
    prefix, _, rest = name.partition(":")
    if prefix in PREFIXES and rest:
        return PREFIXES[prefix](rest, options, menu)
    if name.startswith(("http://", "https://")):
        return ServerTarget(name, options, menu)
    if _ID.fullmatch(name):
        return GymnasiumTarget(name, options, menu)
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        return CallableTarget(name, options, menu)
    raise ValueError(
        f"{name} is not a target: give a Gymnasium id (FrozenLake-v1), module:callable, http://HOST:PORT/GAME, or one of "
        f"{', '.join(f'{each}:NAME' for each in PREFIXES)}."
    )
