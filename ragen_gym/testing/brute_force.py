"""Optimal play of small games by trying everything: slow, and plain enough to be believed.

The chances of what an action does follow from ``Game.params``. Where a game keeps them to itself
(``Game.noise_in_params``), the rule is asked at ``DRAWS`` draws across [0, 1), and where two neighbours differ the draw
that separates them is found by bisection: exact, unless something happens only on draws between two neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import nextafter
from typing import Any

from ragen_gym.games.game import PLAYING, SUCCESS, Board, Game

__all__ = ["DRAWS", "Search", "TooLarge"]

#: Draws at which a rule is asked whose chances are not known.
DRAWS = 1024
#: Changes between neighbouring draws up to which each is found exactly; with more, the result varies continuously.
_MOST_CHANGES = 32
#: Nodes that it costs to ask a rule at all these draws.
_NODES_OF_DRAWS = 32

#: policy(board, state, actions_left) -> action.
Policy = Callable[[bytes, Sequence[int], int], int]


class TooLarge(Exception):
    """The game has more states than the search was allowed to look at."""


class Search:
    """The value of every state of a game, from the rule alone.

    Args:
        game: the game.
        max_nodes: how many (board, state, actions left) to look at in all.
    """

    def __init__(self, game: Game, max_nodes: int = 100_000) -> None:
        self.game = game
        self._intervals = game.noise_intervals() if game.has_values else None
        self._asked: dict[tuple[bytes, tuple[int, ...], int], list[tuple[float, Any]]] = {}
        self._left = max_nodes
        self._best: dict[tuple[bytes, tuple[int, ...], int], tuple[float, float]] = {}

    def outcomes(self, board: Board, state: Sequence[int], action: int) -> Iterator[tuple[float, Any]]:
        """(probability, (board, state, reward, outcome)) of each thing that an action can do.

        Raises:
            TooLarge: more than ``max_nodes`` states were looked at.
        """
        if self._intervals is not None:
            yield from ((chance, self._played(board, state, action, u)) for chance, u in self._intervals)
            return
        asked = bytes(board), tuple(state), action
        if asked not in self._asked:
            self._spend(_NODES_OF_DRAWS)
            self._asked[asked] = self._by_draws(*asked)
        yield from self._asked[asked]

    def _played(self, board: Board, state: Sequence[int], action: int, u: float) -> Any:
        next_board, next_state = bytearray(board), list(state)
        reward, outcome = self.game.rule(next_board, next_state, action, u, self.game.params)
        return bytes(next_board), tuple(next_state), reward, outcome

    def _by_draws(self, board: bytes, state: tuple[int, ...], action: int) -> list[tuple[float, Any]]:
        """``outcomes`` of a rule whose chances are not known."""
        points = [*(place / DRAWS for place in range(DRAWS)), nextafter(1, 0)]
        results = [(u, self._played(board, state, action, u)) for u in points]
        changes = [pair for pair in pairwise(results) if pair[0][1] != pair[1][1]]
        found: dict[Any, list[float]] = {}
        start = 0.0
        for (low, before), (high, after) in [*changes, ((1.0, results[-1][1]), (1.0, None))]:
            for _ in range(52 * (len(changes) <= _MOST_CHANGES and after is not None)):
                middle = (low + high) / 2
                same = self._played(board, state, action, middle) == before
                low, high = (middle, high) if same else (low, middle)
            chance = (low + high) / 2 - start
            start += chance
            next_board, next_state, reward, outcome = before
            total = found.setdefault((next_board, next_state, outcome), [0.0, 0.0])
            total[0] += chance
            total[1] += chance * reward
        return [
            (chance, (next_board, next_state, total / chance, outcome))
            for (next_board, next_state, outcome), (chance, total) in found.items()
            if chance > 0
        ]

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

    def _spend(self, nodes: int = 1) -> None:
        self._left -= nodes
        if self._left < 0:
            raise TooLarge(f"{self.game.name}: too many states to try them all; give a smaller board or fewer actions.")
