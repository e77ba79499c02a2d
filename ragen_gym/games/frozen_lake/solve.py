"""The oracle of FrozenLake: exact success probabilities by dynamic programming over the actions left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ragen_gym.games.frozen_lake.rules import Tile
from ragen_gym.games.game import Solution

if TYPE_CHECKING:
    from ragen_gym.games.frozen_lake import FrozenLake
    from ragen_gym.games.game import Board

__all__ = ["FrozenLakeSolution"]

_TIE = 1e-12


class FrozenLakeSolution(Solution):
    """For every cell and every number of actions left: the best chance of reaching the goal, and how.

    Among the actions with the best chance it takes one with the least expected number of actions; where no chance is
    left it takes one whose intended direction is nearest to the goal.
    """

    def __init__(self, game: FrozenLake, board: Board) -> None:
        tiles = np.frombuffer(bytes(board), np.uint8)
        self._over = np.isin(tiles, (Tile.HOLE, Tile.GOAL, Tile.PLAYER_IN_HOLE, Tile.PLAYER_ON_GOAL))
        goal = np.isin(tiles, (Tile.GOAL, Tile.PLAYER_ON_GOAL))
        moves, intended, _ = game.params
        #: (cells, actions, 3): where an action leads when it goes straight, and when it slips to either side.
        self._targets = np.array(moves, np.intp).reshape(-1, len(game.Action), 3)
        self._targets[self._over] = np.flatnonzero(self._over)[:, None, None]
        cells = len(tiles)
        self._chances = np.array([intended, (1 - intended) / 2, (1 - intended) / 2])
        self._success = [goal.astype(np.float64)]
        self._steps = [np.zeros(cells)]
        self._actions: list[npt.NDArray[np.intp]] = [self._towards(goal)]

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The highest chance of reaching the goal."""
        self._extend(actions_left)
        return float(self._success[actions_left][state[0]])

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The same number: the goal is the only reward, and it is 1. Zero once the episode is over."""
        return 0.0 if self._over[state[0]] else self.success(board, state, actions_left)

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The best action; see the class."""
        self._extend(actions_left)
        return int(self._actions[actions_left][state[0]])

    def _extend(self, actions_left: int) -> None:
        while len(self._success) <= actions_left:
            chance = self._success[-1][self._targets] @ self._chances
            steps = self._steps[-1][self._targets] @ self._chances + ~self._over[:, None]
            best = chance.max(1)
            action = np.where(chance >= best[:, None] - _TIE, steps, np.inf).argmin(1)
            action = np.where(best > 0, action, self._actions[0])
            self._success.append(best)
            self._steps.append(np.take_along_axis(steps, action[:, None], 1)[:, 0])
            self._actions.append(action)

    def _towards(self, goal: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """For each cell, the action whose intended direction lies on a shortest way over ice."""
        distance = np.where(goal, 0.0, np.inf)
        while True:
            nearer = distance[self._targets[:, :, 0]].min(1) + 1
            nearer = np.where(self._over, distance, np.minimum(distance, nearer))
            if np.array_equal(nearer, distance):
                nearest: npt.NDArray[np.intp] = distance[self._targets[:, :, 0]].argmin(1)
                return nearest
            distance = nearer
