"""Arguments and actions, taken as they come and refused with the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ragen_gym.games.game import Game

__all__ = ["check", "check_count", "moves_of"]


def check(what: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise a ValueError unless the value is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{what}={value!r} is not known: choose one of {', '.join(map(repr, allowed))}.")


def check_count(what: str, value: Any, most: int | None = None) -> None:
    """Raise a ValueError unless the value is an integer from 1 on, up to ``most`` where that is given."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{what}={value!r} must be an integer from 1 {f'to {most}' if most else 'on'}.")


def moves_of(
    actions: Mapping[str, Any], numbers: Mapping[str, int], agents: Sequence[str], game: Game, name: str
) -> dict[int, int]:
    """The moves by player, in the order of their numbers.

    Args:
        actions: action of each agent.
        numbers: number of each agent.
        agents: those that are to act.
        game: their game.
        name: what messages call it.

    Raises:
        ValueError: an action is missing, not one of the game's, or of an agent that is not to act.
    """
    if set(actions) != set(agents):
        raise ValueError(
            f"actions are given for {', '.join(map(str, actions)) or 'nobody'}; "
            f"give one for each agent that is left: {', '.join(agents)}."
        )
    for agent in agents:
        action = actions[agent]
        integer = not np.ndim(action) and np.issubdtype(np.asarray(action).dtype, np.integer)
        if not integer or not 0 <= int(action) < len(game.Action):
            known = ", ".join(f"{a.value} {a.name}" for a in game.Action)
            raise ValueError(f"{agent}: action {action!r} is not one of {name}'s: {known}.")
    return {numbers[agent]: int(actions[agent]) for agent in agents}
