"""Optimal play of small games by trying everything: slow, and plain enough to be believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ragen_gym.games.game import PLAYING, SUCCESS, Board, Game

__all__ = ["Search", "TooLarge"]

#: policy(board, state, actions_left) -> action.
Policy = Callable[[bytes, Sequence[int], int], int]


class TooLarge(Exception):
    """The game has more states than the search was allowed to look at."""


class Search:
    """The value of every state of a game, from the rule alone.

    Args:
        game: the game.
        max_nodes: how many (board, state, actions left) to look at in all.

    Raises:
        ValueError: the chances of what an action does are not known; see ``Game.noise_in_params``.
    """

    def __init__(self, game: Game, max_nodes: int = 100_000) -> None:
        self.game = game
        self._intervals = game.noise_intervals()
        self._left = max_nodes
        self._best: dict[tuple[bytes, tuple[int, ...], int], tuple[float, float]] = {}

    def outcomes(self, board: Board, state: Sequence[int], action: int) -> Iterator[tuple[float, Any]]:
        """(probability, (board, state, reward, outcome)) of each thing that an action can do."""
        for chance, u in self._intervals:
            next_board, next_state = bytearray(board), list(state)
            reward, outcome = self.game.rule(next_board, next_state, action, u, self.game.params)
            yield chance, (bytes(next_board), tuple(next_state), reward, outcome)

    def best(self, board: Board, state: Sequence[int], actions_left: int) -> tuple[float, float]:
        """The highest chance of success and the highest expected return of a state in which the game goes on.

        Raises:
            TooLarge: more than ``max_nodes`` states were looked at.
        """
        if not actions_left:
            return 0.0, 0.0
        node = bytes(board), tuple(state), actions_left
        if node not in self._best:
            self._spend()
            values = [self._after(board, state, action, actions_left, self.best) for action in self.game.Action]
            self._best[node] = max(success for success, _ in values), max(total for _, total in values)
        return self._best[node]

    def value(self, board: Board, state: Sequence[int], actions_left: int, policy: Policy) -> tuple[float, float]:
        """The chance of success and the expected return of a policy.

        Raises:
            TooLarge: more than ``max_nodes`` states were looked at.
        """
        known: dict[tuple[bytes, tuple[int, ...], int], tuple[float, float]] = {}

        def follow(board: Board, state: Sequence[int], actions_left: int) -> tuple[float, float]:
            if not actions_left:
                return 0.0, 0.0
            node = bytes(board), tuple(state), actions_left
            if node not in known:
                self._spend()
                known[node] = self._after(board, state, policy(*node), actions_left, follow)
            return known[node]

        return follow(board, state, actions_left)

    def _after(
        self,
        board: Board,
        state: Sequence[int],
        action: int,
        actions_left: int,
        value: Callable[[Board, Sequence[int], int], tuple[float, float]],
    ) -> tuple[float, float]:
        success = total = 0.0
        for chance, (next_board, next_state, reward, outcome) in self.outcomes(board, state, action):
            later = value(next_board, next_state, actions_left - 1) if outcome == PLAYING else (outcome == SUCCESS, 0.0)
            success += chance * later[0]
            total += chance * (reward + later[1])
        return success, total

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooLarge(f"{self.game.name}: too many states to try them all; give a smaller board or fewer actions.")
