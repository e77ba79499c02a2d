"""The rules of the tightrope."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Action(IntEnum):
    BACK = 0
    FORWARD = 1


class Tile(IntEnum):
    ROPE = 0
    FLAG = 1
    ACROBAT = 2
    FALLEN = 3


def step(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """``state`` is [where the acrobat stands]."""
    cell = state[0]
    if action == 0:
        if cell > 0:
            board[cell] = 0
            board[cell - 1] = 2
            state[0] = cell - 1
        return 0.0, 0
    if u >= params[0]:
        board[cell] = 3
        return -0.5, 1
    taken = board[cell + 1] == 1
    board[cell] = 0
    board[cell + 1] = 2
    state[0] = cell + 1
    return (1.0, 2) if taken else (0.0, 0)


def forward(board: Any, state: Any, params: Any) -> int:
    """The blind script: the flag lies ahead."""
    return 1
