"""The oracle of the tightrope."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_gym.games.game import Board, Solution


class TightropeSolution(Solution):
    """The only way to the flag is forward, each step of which may be the last."""

    def __init__(self, grip: float, flag: int) -> None:
        self._grip, self._flag = grip, flag

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        distance = self._flag - state[0]
        return self._grip**distance if distance <= actions_left else 0.0

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        return max(0.0, 1.5 * self.success(board, state, actions_left) - 0.5)

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        return int(self._flag - state[0] <= actions_left)
