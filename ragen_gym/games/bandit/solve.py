"""The oracle of the bandits: the means are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragen_gym.games.game import Solution

if TYPE_CHECKING:
    from ragen_gym.games.bandit import Bandit
    from ragen_gym.games.game import Board

__all__ = ["BanditSolution"]


class BanditSolution(Solution):
    """Pull the arm with the higher mean, as often as there are pulls; the first-named arm where both are equal."""

    def __init__(self, game: Bandit, board: Board) -> None:
        low, high, high_prob, self._pulls, swapped = game.params
        self._means = [high * high_prob if (arm & 1) != swapped else low for arm in board]

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """1 if there are actions left for all pulls, since the last one decides."""
        return float(0 < self._pulls - state[0] <= actions_left)

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The higher mean, for each pull left."""
        return max(self._means) * min(actions_left, self._pulls - state[0])

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The arm with the higher mean."""
        return self._means.index(max(self._means))
