"""Exact values of the states of a level: what is still possible in the moves that are left, and what a move gives away.

With n moves left, Q*(s, a) = E[r + V*(s')] over the transition noise, V*(s) = max_a Q*(s, a), and V* = 0 where the game
is over or no move is left (finite-horizon dynamic programming, Puterman 1994, section 4.3). From these follow, exactly:

- the regret of a move, V*(s) - Q*(s, a), never negative;
- what chance added, r + V*(s') - Q*(s, a), of mean zero.

Along an episode the two add up: the return is V*(s_0) less all regret plus all chance. Both are given twice, of the
return and of the probability of success, each with an optimum of its own.

The states are found by playing the rule from the start of an episode as far as its moves go, so the tables are exact
for every game whose levels are small enough: a lake of 40x40 cells in 1000 moves, a bandit of 2000 pulls, Sokoban of
8x8 cells and two boxes in 100 moves. Where there are more states than ``MAX_STATES``, or than tables of so many moves
have room for, the answer is NaN for every state of the episode: unknown, never wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, nan
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ragen_gym.games._jit import compiled_params
from ragen_gym.games.game import PLAYING, SUCCESS, Board, Game, Solution, listed
from ragen_gym.games.value_tables import Reached, backward, explorer

#: States of an episode that are looked at, at most.
MAX_STATES = 50_000
#: Values that the tables of an episode hold, at most: states x actions x moves. Two boxes in an open room of 8x8
#: cells have 8.6 million in 100 moves.
_MAX_ENTRIES = 9_000_000
#: Bytes of a state as a key, and of a level without states, about.
_OF_A_STATE = 300
#: Bytes of tables that are kept, about: the rollouts of a group play the same level.
_KEPT_BYTES = 2**28
#: Regret up to this is rounding: the tables are sums of some ten float64 numbers.
TOLERANCE = 1e-9

_POINTS = 60  # numbers in [0, 1) at which a rule is asked whose thresholds are not known

_Step = tuple[int, float, int]  # (next state, reward, outcome)

Script = Callable[[bytes, tuple[int, ...], int], list[tuple[float, int]]]
"""script(board, state, moves left) -> the probability of each action that it may choose, and the action."""


class Value(NamedTuple):
    """A pair of numbers: of the return, and of the probability of success. NaN where unknown."""

    total: float
    success: float

    def plus(self, other: Value) -> Value:
        """The sum, number by number."""
        return Value(self.total + other.total, self.success + other.success)

    def minus(self, other: Value) -> Value:
        """The difference, number by number."""
        return Value(self.total - other.total, self.success - other.success)


NOTHING = Value(0.0, 0.0)
UNKNOWN = Value(nan, nan)


class MoveValue(NamedTuple):
    """Regret of a move, and what chance added to it."""

    regret: Value
    chance: Value


class TurnValue(NamedTuple):
    """Value of a reply. A turn may play fewer moves than are left, so V* here never forces a move.

    Along an episode the game's return is ``before`` of the first turn less all ``regret`` plus all ``chance``.
    """

    before: Value  # V* before the turn, with the moves left then
    after: Value  # V* after it, with the moves left then; 0 where the episode is over
    regret: Value  # of its moves, and ``forfeited``
    chance: Value  # what chance added to its moves
    #: the part of the regret that no move has: moves that the budgets of turns and actions no longer allow, because the
    #: reply played none (a malformed one) or fewer than it could
    forfeited: Value
    #: E[sum of rewards + V* after] - V* before, over fresh transition noise: the turn's advantage over optimal play,
    #: never positive, whatever the noise of this episode was
    advantage: Value
    moves: tuple[MoveValue, ...]  # of each move


class LevelValues:
    """V* and Q* of every state of an episode of one level. The tables do not change, so threads may share them.

    Args:
        game: the game.
        start: board and integers of the state that the episode begins in.
        moves: of the episode.
        may_stop: whether an episode may end with moves left, at no cost: V* is then at least 0. A turn environment is
            so, as a reply may name few moves; the environment of single moves is not.

    Raises:
        ValueError: the chances of what a move does cannot be known; see ``Game.noise_intervals``.
    """

    def __init__(self, game: Game, start: tuple[Board, Sequence[int]], moves: int, *, may_stop: bool = False) -> None:
        self.game, self.start, self.moves, self.may_stop = game, start, moves, may_stop
        chances, draws = zip(*game.noise_intervals(), strict=True)
        self._chances, self._draws, actions = np.array(chances), np.array(draws), len(game.Action)
        begin, numbers = np.frombuffer(bytes(start[0]), np.uint8), np.array(start[1], np.int32)
        limit = min(MAX_STATES, _MAX_ENTRIES // (actions * max(1, moves)))
        question = begin, numbers, moves, compiled_params(game.params), self._draws, actions, limit
        self._reached = reached = Reached(*explorer(game.rule)(*question))
        steps = reached.after, reached.rewards, reached.outcomes
        #: By the moves left, of the return and of success: V*, float64 (moves, 2, states), and Q*, with actions.
        self._best, self._of_actions = backward(
            *steps, self._chances, actions, moves if len(reached.reach) else 0, may_stop
        )
        cells, flat = len(begin), reached.boards.tobytes()
        boards = [flat[i : i + cells] for i in range(0, len(flat), cells)]
        keys = zip(boards, map(tuple, reached.states.tolist()), strict=True)
        #: The rows of the states in the tables; none where they would be too many.
        self._rows = {key: row for row, key in enumerate(keys)}
        self._steps: dict[tuple[int, int], list[_Step]] = {}  # of a state and an action, once they are asked for
        arrays = self._best, self._of_actions, *reached
        #: Bytes of the tables, about.
        self.nbytes = _OF_A_STATE * (1 + len(self._rows)) + sum(array.nbytes for array in arrays)

    def __reduce__(self) -> Any:
        made = partial(LevelValues, may_stop=self.may_stop)  # soon made again
        return made, (self.game, self.start, self.moves)

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward of a move in any of the states; NaN where they would be too many."""
        rewards = self._reached.rewards[self._reached.reach > 0]
        return (float(rewards.min()), float(rewards.max())) if rewards.size else (nan, nan)

    def value(self, board: Board, state: Sequence[int], moves_left: int) -> Value:
        """V* of a state in which the game goes on: the highest expected return, the highest probability of success."""
        if moves_left <= 0:
            return NOTHING
        node = self._node(board, state, moves_left)
        if node is None:
            return UNKNOWN
        return Value(*self._best[moves_left, :, node].tolist())

    def actions(self, board: Board, state: Sequence[int], moves_left: int) -> tuple[Value, ...]:
        """Q* of each action in a state in which the game goes on.

        Raises:
            ValueError: no move is left.
        """
        if moves_left <= 0:
            raise ValueError(f"moves_left={moves_left}: an action needs a move; ask with 1 or more.")
        node = self._node(board, state, moves_left)
        if node is None:
            return (UNKNOWN,) * len(self.game.Action)
        return tuple(Value(*pair) for pair in self._of_actions[moves_left, :, node].T.tolist())

    def move(
        self,
        before: tuple[Board, Sequence[int]],
        moves_left: int,
        action: int,
        reward: float,
        after: tuple[Board, Sequence[int]] | None,
        success: bool = False,
    ) -> MoveValue:
        """Regret of a move that was played, and what chance added.

        Args:
            before: board and integers of the state that it was played in.
            moves_left: with that move.
            action: its id.
            reward: what it earned.
            after: the state that it led to, or None where the game was over with it.
            success: whether it was over with a success.
        """
        node = self._node(*before, moves_left)
        if node is None:
            return MoveValue(UNKNOWN, UNKNOWN)
        later = Value(0.0, float(success)) if after is None else self.value(*after, moves_left - 1)
        total, won = self._of_actions[moves_left, :, node, action].tolist()
        best_total, best_success = self._best[moves_left, :, node].tolist()
        regret = Value(best_total - total, best_success - won)
        return MoveValue(regret, Value(reward + later.total - total, later.success - won))

    def expected(
        self, board: Board, state: Sequence[int], actions: Sequence[int], moves_left: int, then_left: int
    ) -> Value:
        """E[rewards of these actions, in this order whatever happens, + V* after them], over the transition noise.

        Args:
            board: of a state in which the game goes on.
            state: its integers.
            actions: what is played, until the game is over.
            moves_left: before them.
            then_left: after them, where the game goes on.
        """
        node = self._node(board, state, max(moves_left, then_left))
        if node is None:
            return UNKNOWN
        total, success, here = 0.0, 0.0, {node: 1.0}
        for action in actions:
            there: dict[int, float] = {}
            for node, weight in here.items():
                results = self._results(node, action)
                for chance, (after, reward, outcome) in zip(self._chances.tolist(), results, strict=True):
                    total += weight * chance * reward
                    success += weight * chance * (outcome == SUCCESS)
                    if outcome == PLAYING:
                        there[after] = there.get(after, 0.0) + weight * chance
            here = there
        if then_left > 0:
            totals, successes = self._best[then_left].tolist()
            total += sum(weight * totals[node] for node, weight in here.items())
            success += sum(weight * successes[node] for node, weight in here.items())
        return Value(total, success)

    def _results(self, node: int, action: int) -> list[_Step]:
        found = self._steps.get((node, action))
        if found is None:
            some = slice(action * len(self._draws), (action + 1) * len(self._draws))
            columns = self._reached.after, self._reached.rewards, self._reached.outcomes
            found = list(zip(*[column[node, some].tolist() for column in columns], strict=True))
            self._steps[node, action] = found
        return found

    def _node(self, board: Board, state: Sequence[int], moves_left: int) -> int | None:
        """The state's row in the tables; None where they do not hold it, or do not reach so far from it."""
        row = self._rows.get((bytes(board), tuple(state)))
        return None if row is None or self._reached.reach[row] < moves_left else row


class _Kept(OrderedDict[tuple[Game, bytes, int, bool], LevelValues]):
    """Values by level, those that were asked for last at the end."""

    nbytes = 0  # of all


_kept = _Kept()
_lock = Lock()


def level_values(game: Game, board: Board, moves: int, *, may_stop: bool = False) -> LevelValues:
    """The values of an episode of so many moves on the level that starts with this board; see ``LevelValues``.

    Those of the levels that were asked for last are kept, 256 MiB of them.

    Raises:
        ValueError: see ``LevelValues``.
    """
    level = game, bytes(board), moves, may_stop
    state = game.starts(np.frombuffer(level[1], np.uint8)[None])[0].tolist()
    try:
        with _lock:
            if level in _kept:
                _kept.move_to_end(level)
                return _kept[level]
    except TypeError:  # an option that cannot be hashed, such as a list
        return LevelValues(game, (board, state), moves, may_stop=may_stop)
    values = LevelValues(game, (level[1], state), moves, may_stop=may_stop)
    with _lock:
        if level not in _kept:  # else another thread was faster
            _kept[level] = values
            _kept.nbytes += values.nbytes
        while _kept.nbytes > _KEPT_BYTES:
            _kept.nbytes -= _kept.popitem(last=False)[1].nbytes
    return values


def draws_of(game: Game) -> list[tuple[float, float]]:
    """(Probability, a draw) of all that the rule may do; of a game without exact values, a grid of draws."""
    return game.noise_intervals() if game.has_values else [(1 / _POINTS, (i + 0.5) / _POINTS) for i in range(_POINTS)]


def script_of(solution: Solution) -> Script:
    """The oracle's own moves as a script."""
    return lambda board, state, left: [(1.0, solution.action(board, state, left))]


def exact_play(
    game: Game, start: tuple[Board, Sequence[int]], moves: int, script: Script, most: float = inf
) -> tuple[list[float], float]:
    """(Probability of a success with each move, expected return) of a script from a state in which the game goes on.

    Raises:
        OverflowError: its moves begin in more than ``most`` states, each counted once for every number of moves left.
    """
    draws, params = draws_of(game), listed(game.params)
    here, won, total, met = {(bytes(start[0]), tuple(start[1])): 1.0}, list[float](), 0.0, 0
    for left in range(moves, 0, -1):
        met += len(here)
        if met > most:
            raise OverflowError(f"this play meets more than {most} states from here in {moves} moves.")
        there: dict[tuple[bytes, tuple[int, ...]], float] = {}
        success = 0.0
        for (board, state), weight in here.items():
            for share, action in script(board, state, left):
                for chance, u in draws:
                    cells, integers = bytearray(board), list(state)
                    reward, outcome = game.rule(cells, integers, action, u, params)
                    total += weight * share * chance * reward
                    success += weight * share * chance * (outcome == SUCCESS)
                    if outcome == PLAYING:
                        after = bytes(cells), tuple(integers)
                        there[after] = there.get(after, 0.0) + weight * share * chance
        here = there
        won.append(success)
    return won, total


def pivot(moves: Sequence[tuple[float, float]]) -> int | None:
    """Pivot of an episode: the first move with which the optimum drops, or after which it cannot be won.

    Args:
        moves: for each move its regret of the probability of success, and V* of it after the move (1 after a success).

    Returns:
        the index of the move, or None where there is none.
    """
    for index, (regret, after) in enumerate(moves):
        if regret > TOLERANCE or after <= TOLERANCE:
            return index
    return None
