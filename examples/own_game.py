# Shows:    a game of your own, Lights Out: a rule, a generator, an exact oracle; the suite gives it the rest.
# Install:  pip install ragen-gym hypothesis
# Run:      python examples/own_game.py    checks every contract of the suite and plays a level by the oracle's moves.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from ragen_gym import make_turn, register
from ragen_gym.core.seeding import Keys, Stream, uniforms
from ragen_gym.core.text import Vocabulary
from ragen_gym.envs.policies import plan_moves, reply_for
from ragen_gym.games.game import Board, Boards, Solution
from ragen_gym.games.grid import GridGame
from ragen_gym.games.registry import GameSpec
from ragen_gym.testing import check_env, check_game

Action = IntEnum("Action", "A1 B1 C1 A2 B2 C2 A3 B3 C3", start=0)  # the lamps, by column and row
Lamp = IntEnum("Lamp", "DARK LIT", start=0)


def press(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """Flip a lamp and its neighbours; returns the reward and 0 (goes on), 1 (over) or 2 (won).

    ``board`` has one byte a cell and 255 between rows, ``state`` is [lamps lit]; both change in place. The batch
    compiles this function with numba: indexing and arithmetic only. ``u`` is the noise, which this game ignores.
    """
    stride, cells = params
    lamp = action // 3 * stride + action % 3
    for cell in (lamp, lamp - 1, lamp + 1, lamp - stride, lamp + stride):
        if 0 <= cell < cells and board[cell] != 255:
            board[cell] = 1 - board[cell]
            state[0] += 2 * board[cell] - 1
    return (1.0, 2) if state[0] == 0 else (0.0, 0)


def pressed(lamps: Sequence[int]) -> bytes:
    """The board that these presses make of a dark one."""
    board = bytearray(b"\0\0\0\xff" * 3)[:-1]
    for lamp in lamps:
        press(board, [0], lamp, 0.0, (4, 11))
    return bytes(board)


#: On this board every pattern is made by exactly one set of presses, and undone by the same one.
PRESSES = {pressed(lamps): lamps for n in range(10) for lamps in combinations(range(9), n)}


class LightsOutSolution(Solution):
    """The one set of presses that darkens the board; their order does not matter."""

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        return float(len(PRESSES[bytes(board)]) <= actions_left)

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        return self.success(board, state, actions_left) if state[0] else 0.0

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        return PRESSES[bytes(board)][0] if state[0] else 0


@dataclass(frozen=True)
class LightsOut(GridGame):
    """Press lamps, each of which flips its neighbours too, until all are dark; a level needs ``presses`` of them."""

    height: int = 3
    width: int = 3
    presses: int = 4

    name = "LightsOut"
    Action, Tile, noise, stochastic = Action, Lamp, Stream.DYNAMICS, False
    rule = staticmethod(press)
    vocabularies: ClassVar[dict[str, Vocabulary]] = {"lamps": Vocabulary("lamps", ".*")}
    description = "Nine lamps in a square. Pressing a lamp flips it and its neighbours. Make all of them dark."

    @property
    def params(self) -> tuple[int, int]:
        return self.width + 1, self.cells

    def generate(self, keys: Keys, split: str | None) -> Boards:
        rows = [self._board(keys[i : i + 1], split) for i in range(len(keys))]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(len(keys), self.cells)

    def _board(self, key: Keys, split: str | None) -> bytes:
        boards = (pressed(uniforms(key, 9 * n, 9)[0].argsort()[: self.presses].tolist()) for n in range(1000))
        return next(board for board in boards if self.owns(split, board))

    def starts(self, boards: Boards) -> np.ndarray[Any, np.dtype[np.int32]]:
        return (boards == Lamp.LIT).sum(axis=1, keepdims=True).astype(np.int32)

    def action_mask(self, board: Board, state: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int8]]:
        return np.ones(9, np.int8)

    def over(self, board: Board) -> bool:
        return Lamp.LIT not in board

    def solve(self, board: Board) -> Solution:
        return LightsOutSolution()

    def rewards(self) -> tuple[tuple[str, float], ...]:
        return (("all lamps dark", 1.0), ("anything else", 0.0))


# The commands take the same name: ragen-agent train --game own_game:LightsOut
register(GameSpec("LightsOut", "own_game:LightsOut", horizon=10, summary="make nine lamps dark"))

if __name__ == "__main__":
    from own_game import LightsOut as Registered  # the class as the registry imports it, not the one of this script

    check_game(Registered())
    check_env("LightsOut")
    turns = make_turn("LightsOut", max_turns=3, split="test")
    print(turns.reset(seed=0)[0])
    while not turns.over:
        print(*turns.step(reply_for(turns, plan_moves(turns, moves=5)))[:2], sep="\nreward ")
