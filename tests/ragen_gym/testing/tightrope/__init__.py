"""A game of the tests' own, as anyone would add one: a folder, and a row in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.seeding import Stream, uniforms
from ragen_gym.core.text import Vocabulary
from ragen_gym.core.validation import check_number
from ragen_gym.games.game import Board, Boards, Solution
from ragen_gym.games.grid import GridGame
from tests.ragen_gym.testing.tightrope import rules
from tests.ragen_gym.testing.tightrope.solve import TightropeSolution

__all__ = ["Tightrope"]


@dataclass(frozen=True)
class Tightrope(GridGame):
    """Walk along a rope to the flag without falling.

    ## Arguments
    width: length of the rope.
    grip: probability that a step forward does not end in a fall.
    """

    height: int = 1
    width: int = 7
    grip: float = 0.8

    name = "Tightrope"
    Action = rules.Action
    Tile = rules.Tile
    noise = Stream.DYNAMICS
    rule = staticmethod(rules.step)
    blind = staticmethod(rules.forward)
    vocabularies: ClassVar[dict[str, Vocabulary]] = {
        "own": Vocabulary("own", "-FAX"),
        "plain": Vocabulary("plain", "0123"),
    }
    description = "You stand on a tightrope. Walk to the flag."

    def __post_init__(self) -> None:
        check_number(self.name, "height", self.height, 1, 1, whole=True)
        check_number(self.name, "width", self.width, 2, 20, whole=True)
        check_number(self.name, "grip", self.grip, 0, 1)

    @property
    def params(self) -> tuple[float]:
        """(P(a step forward holds),)."""
        return (float(self.grip),)

    def generate(self, keys: npt.NDArray[np.uint64], split: str | None) -> Boards:
        """The acrobat and the flag somewhere to the right."""
        boards = np.zeros((len(keys), self.cells), np.uint8)
        for board, key in zip(boards, keys, strict=True):
            for first in range(0, 2000, 2):
                one, other = uniforms(np.array([key]), first, 2)[0]
                start = int(one * (self.width - 1))
                board[:] = rules.Tile.ROPE
                board[start] = rules.Tile.ACROBAT
                board[start + 1 + int(other * (self.width - 1 - start))] = rules.Tile.FLAG
                if self.owns(split, board.tobytes()):
                    break
            else:
                raise ValueError(f"{self.name}: no rope of width={self.width} belongs to split={split!r}.")
        return boards

    def starts(self, boards: Boards) -> npt.NDArray[np.int32]:
        """Where the acrobat stands, int32 (n, 1)."""
        cells: npt.NDArray[np.int32] = (boards == rules.Tile.ACROBAT).argmax(1, keepdims=True).astype(np.int32)
        return cells

    def action_mask(self, board: Board, state: Sequence[int]) -> npt.NDArray[np.int8]:
        """Nobody steps back from the rope's end."""
        return np.array([state[0] > 0, 1], np.int8)

    def conserved(self, board: Board) -> tuple[int, ...]:
        """One acrobat."""
        return (board.count(rules.Tile.ACROBAT) + board.count(rules.Tile.FALLEN),)

    def over(self, board: Board) -> bool:
        """Whether the acrobat fell or took the flag."""
        return rules.Tile.FLAG not in board or rules.Tile.ACROBAT not in board

    def solve(self, board: Board) -> Solution:
        """Forward, while there is time."""
        return TightropeSolution(self.grip, board.index(rules.Tile.FLAG))

    def rewards(self) -> tuple[tuple[str, Any], ...]:
        """What is rewarded."""
        return (("taking the flag", 1.0), ("falling", -0.5))
