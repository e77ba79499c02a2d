"""The rules of the bandits, run as Python by the single environment and compiled by the batch; the arms' names."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

__all__ = ["SPLIT_OF_PAIR", "Action", "Arm", "legal", "step"]

_LISTS = {
    "train": """
        Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker Engineer/RealEstateAgent
        Pharmacist/Musician Clerk/Freelancer Technician/Youtuber Planner/Artist Postman/Pilot""",
    "validation": "Banker/VentureCapitalist Gardener/Cryptominer",
    "test": """
        Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant SocialWorker/Photographer Mechanic/GameDesigner
        Secretary/Entrepreneur Cashier/DataScientist CivilServant/StartupAccelerator""",
}

#: Split of each pair (low, high).
SPLIT_OF_PAIR: dict[tuple[str, str], str] = {
    (low, high): split
    for split, names in _LISTS.items()
    for low, _, high in (pair.partition("/") for pair in names.split())
}


class Action(IntEnum):
    """Which of the two arms, in the order in which the board names them."""

    FIRST = 0
    SECOND = 1


class Arm(IntEnum):
    """What the parity of an arm's code says; ``code // 2`` is the number of its pair."""

    LOW = 0
    HIGH = 1


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Pull an arm; see ``ragen_gym.games.game.Rule``. ``state`` is [pulls so far]."""
    low, high, high_prob, pulls, swapped = params
    risky = (board[action] & 1) != swapped
    reward = low if not risky else (high if u < high_prob else 0.0)
    state[0] += 1
    if state[0] < pulls:
        return reward, 0
    mean, other = (high * high_prob, low) if risky else (low, high * high_prob)
    return reward, 2 if mean >= other else 1


def legal(board: Any, state: Any, params: Any) -> int:
    """Bit a is set when arm a can be pulled: both always."""
    return 3
