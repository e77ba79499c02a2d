"""The oracle of Sokoban: exact answers by search, kept so that following a plan searches once."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ragen_gym.core.validation import check_number, plain_number
from ragen_gym.games._jit import in_time
from ragen_gym.games.game import Board, NotSolvedError, Solution
from ragen_gym.games.sokoban.rules import BOXES, Tile, legal, step
from ragen_gym.games.sokoban.search import SOLVED, TOO_MANY, Memory, make_memory, path, search

if TYPE_CHECKING:
    from ragen_gym.games.sokoban import Sokoban

#: Nodes that a search makes at most unless another number is given.
MAX_NODES = 2_000_000

_FIRST_NODES, _GROWTH = 4_000, 8
_FARTHEST = 2**62  # moves; more than any plan has, and the compiled search counts up to 2**63


class Plan(NamedTuple):
    """A best plan.

    Attributes:
        actions: ids of the actions, from the first to the one that ends the game.
        pushes: how many of them push a box.
    """

    actions: tuple[int, ...]
    pushes: int

    @property
    def moves(self) -> int:
        """The number of actions."""
        return len(self.actions)


def find_plan(board: Board, width: int, *, within: int | None = None, max_nodes: int = MAX_NODES) -> Plan | None:
    """The plan with the fewest moves, or None where there is none (within that many of them).

    Args:
        board: a state of the game: ``height`` rows of ``width`` tiles, one byte between two rows.
        width: columns of the board.
        within: the most moves that are of interest, from 0 on; None for any number.
        max_nodes: limit of the search.

    Raises:
        NotSolvedError: the search took more than ``max_nodes`` nodes.
        ValueError: ``within`` that is no integer from 0 on, or ``max_nodes`` that is none from 1 on.
    """
    within = plain_number(within)
    check_number("Sokoban", "within", within, 0, whole=True, none=True)  # the search takes a bound below 0 for none
    end, last, memory = _search(board, width, within, 0, max_nodes)
    if end != SOLVED:
        return None
    actions, pushes = path(width + 1, last, memory)
    return Plan(tuple(actions.tolist()), int(pushes))


def _search(board: Board, width: int, within: int | None, goal: int, max_nodes: int) -> tuple[int, int, Memory]:
    """Search with little memory first, then with more: (how it ended, last node, memory)."""
    check_number("Sokoban", "max_nodes", max_nodes, 1, whole=True)
    cells = np.frombuffer(bytes(board), np.uint8)
    boxes = int(((cells == Tile.BOX) | (cells == Tile.BOX_ON_TARGET)).sum())
    nodes, bound = min(_FIRST_NODES, max_nodes), -1 if within is None else min(within, _FARTHEST)
    while True:
        memory = make_memory(len(cells), boxes, nodes)
        end, last, _ = in_time(search, cells, width + 1, bound, goal, memory)
        if end != TOO_MANY:
            return int(end), int(last), memory
        if nodes == max_nodes:
            raise NotSolvedError(max_nodes)
        nodes = min(_GROWTH * nodes, max_nodes)


class SokobanSolution(Solution):
    """Best play from every state, by a move-optimal search when a state is asked about for the first time.

    Sokoban is deterministic, so a state can be solved within the actions left or it cannot: ``success`` is 1 or 0.

    Args:
        game: the game.
        board: the level's first board.
        max_nodes: limit of each search.

    Raises (every method):
        NotSolvedError: a search was left undecided within ``max_nodes`` nodes.
    """

    def __init__(self, game: Sokoban, board: Board, *, max_nodes: int = MAX_NODES) -> None:
        self._params, self._width = game.params, game.width
        self.max_nodes = max_nodes
        #: Per state: the fewest moves (infinite where there is no solution), and the first of them.
        self._moves: dict[bytes, float] = {}
        self._first: dict[bytes, int] = {}
        #: Per state: a number of moves within which it is known to have no solution.
        self._beyond: dict[bytes, int] = {}

    def moves(self, board: Board, state: Sequence[int], within: int | None = None) -> float:
        """The fewest moves to the end; infinite where it cannot be reached (within that many moves)."""
        key = bytes(board)
        if not state[1]:
            return 0
        if key not in self._moves and (within is None or self._beyond.get(key, -1) < within):
            plan = find_plan(key, self._width, within=within, max_nodes=self.max_nodes)
            if plan is not None:
                self._remember(key, state, plan.actions)
            elif within is None:
                self._moves[key] = inf
            else:
                self._beyond[key] = within
        fewest = self._moves.get(key, inf)
        return fewest if within is None or fewest <= within else inf

    def winnable(self, board: Board, state: Sequence[int]) -> bool | None:
        """True if every box can still be on a target; None where the search is left undecided."""
        try:
            return self.moves(board, state) < inf
        except NotSolvedError:
            return None

    def success(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """1 where every box can be on a target within the actions left, else 0."""
        return float(self.moves(board, state, actions_left) <= actions_left)

    def expected_return(self, board: Board, state: Sequence[int], actions_left: int) -> float:
        """The highest sum of rewards of an episode that goes on until it is solved or the actions are spent.

        Pushes onto and off targets add up to the change in the number of boxes on targets. So the best plan that solves
        the board is the shortest one, and where the actions do not suffice for any, the best one ends with as many
        boxes on targets as can be.
        """
        if not state[1]:
            return 0.0
        moves = self.moves(board, state, actions_left)
        if moves <= actions_left:
            return float(state[1] + 10 - moves / 10)
        if actions_left and self._must_push(board, state):
            return max(self._after(board, state, action, actions_left) for action in range(4))
        return float(state[1] - self._fewest_off(board, state, actions_left) - actions_left / 10)

    def action(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The first move of a shortest plan, whether or not the actions left suffice for it.

        Where the board has no solution any more: the first action that moves the player, or 0.
        """
        if self.moves(board, state, actions_left) > actions_left:
            self.moves(board, state)
        key = bytes(board)
        if key in self._first:
            return self._first[key]
        can_move = legal(board, state, self._params)
        return (can_move & -can_move).bit_length() - 1 if can_move else 0

    def _must_push(self, board: Board, state: Sequence[int]) -> bool:
        """True if every action pushes a box, so that the player cannot bide its time."""
        around = (board[state[0] + offset] in BOXES for offset in self._params)
        return all(around) and legal(board, state, self._params) == 0b1111

    def _after(self, board: Board, state: Sequence[int], action: int, actions_left: int) -> float:
        changed, now = bytearray(board), list(state)
        reward, _ = step(changed, now, action, 0.0, self._params)
        return reward + self.expected_return(changed, now, actions_left - 1)

    def _fewest_off(self, board: Board, state: Sequence[int], actions_left: int) -> int:
        """The fewest boxes off target after that many actions, none of which ends the game."""
        for goal in range(1, state[1]):
            if _search(board, self._width, actions_left, goal, self.max_nodes)[0] == SOLVED:
                return goal
        return state[1]

    def _remember(self, key: bytes, state: Sequence[int], actions: Sequence[int]) -> None:
        """Every state on the way of a shortest plan is solved by the rest of it."""
        board, now = bytearray(key), list(state)
        for done, action in enumerate(actions):
            here = bytes(board)
            self._moves[here], self._first[here] = len(actions) - done, action
            step(board, now, action, 0.0, self._params)
