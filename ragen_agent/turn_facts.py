"""What a turn was, beside its reward: was the reply well formed, how many moves were played, did they do anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

__all__ = ["TurnFacts", "board_of", "turn_facts"]


@dataclass(frozen=True)
class TurnFacts:
    """One turn.

    Attributes:
        problem: what was wrong with the reply (`ragen_gym.envs.reply.Problem`), or the empty text.
        named: how many actions the answer named, known or not.
        played: how many of them were played.
        effective: whether the turn changed the board or ended the game.
        observation_right, prediction_right: whether the board that the reply describes, or expects, is the true one;
            None where the environment does not ask for it.
    """

    problem: str
    named: int
    played: int
    effective: bool
    observation_right: bool | None = None
    prediction_right: bool | None = None


def turn_facts(info: Mapping[str, Any], before: str | None, after: str | None, terminated: bool) -> TurnFacts | None:
    """The facts of a turn from the turn environment's information and its boards; None from one that has no replies."""
    reply = info.get("reply")
    if reply is None:
        return None
    played = len(info.get("actions", ()))
    return TurnFacts(
        str(reply.problem or ""),
        len(reply.names),
        played,
        played > 0 and (terminated or before != after),
        info.get("observation_right"),
        info.get("prediction_right"),
    )


def board_of(env: gymnasium.Env[str, str]) -> str | None:
    """The board as it stands, of an environment that shows one."""
    try:
        return str(env.get_wrapper_attr("board"))
    except AttributeError:
        return None
