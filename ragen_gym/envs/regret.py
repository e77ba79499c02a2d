"""Regret of an episode's moves, for the infos of environments; the values are those of ``games.values``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.core.validation import plain_number
from ragen_gym.games.game import Game
from ragen_gym.games.registry import GameSpec
from ragen_gym.games.values import NOTHING, UNKNOWN, LevelValues, MoveValue, Replies, TurnValue, Value, level_values

__all__ = ["REGRET_KEYS", "BatchRegret", "LazyRegret", "StepRegret", "TurnRegret", "moves_valued"]

#: The entries of ``info`` of a move.
REGRET_KEYS = ("regret", "chance", "success_regret", "success_chance")

_State = tuple[bytes, tuple[int, ...]]


def moves_valued(regret: bool | int, spec: GameSpec, game: Game, horizon: int | None = None) -> int:
    """The moves of an episode that are valued, 0 for none.

    Args:
        regret: the argument of an environment: whether, or for how many moves.
        spec: the environment's entry in the table.
        game: its game.
        horizon: the environment's own limit of moves, if it has one.

    Raises:
        ValueError: no number of moves from 0 on, no limit of moves to value, or a game without exact values.
    """
    regret = plain_number(regret)
    if isinstance(regret, bool):
        found = (horizon or spec.horizon or game.longest) if regret else 0
        if found is None:
            raise ValueError(
                f"regret=True needs a number of moves, since what is possible depends on those that are left, and "
                f"{spec.name} has no horizon: give regret=100, or another number of moves."
            )
        moves = found
    elif isinstance(regret, int) and regret > 0:
        moves = regret
    else:
        raise ValueError(f"regret={regret!r} must be True, False, or the number of moves of an episode, from 1 on.")
    if moves:
        game.noise_intervals()  # raises where the game has no exact values
    return moves


def _move_info(move: MoveValue) -> dict[str, float]:
    numbers = move.regret.total, move.chance.total, move.regret.success, move.chance.success
    return dict(zip(REGRET_KEYS, numbers, strict=True))


class StepRegret:
    """Regret of each move of an episode, move by move.

    Args:
        game: the game.
        moves: of an episode; what is played after them is unknown.
    """

    def __init__(self, game: Game, moves: int) -> None:
        self._game, self._moves = game, moves

    def begin(self, board: bytes) -> dict[str, float]:
        """Start an episode on a level; the entries of ``info`` before the first move."""
        self._values = level_values(self._game.for_board(board), board, self._moves)
        self._left = self._moves
        return dict.fromkeys(REGRET_KEYS, 0.0)

    def info(self, before: _State, action: int, reward: float, after: _State | None, success: bool) -> dict[str, float]:
        """The entries of ``info`` of the next move; the arguments are those of ``LevelValues.move``."""
        left, self._left = self._left, self._left - 1
        if left <= 0:
            return _move_info(MoveValue(UNKNOWN, UNKNOWN))
        return _move_info(self._values.move(before, left, action, reward, after, success))


class TurnRegret:
    """Regret of each turn of an episode. An episode may end with moves left, so no value forces a move."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def begin(self, state: _State, left: int) -> dict[str, Any]:
        """Start an episode of so many moves on this state's level; the entries of ``info`` before the first turn."""
        self._values = level_values(self._game.for_board(state[0]), state[0], left, may_stop=True)
        value = self._values.value(*state, left)
        return _turn_info(TurnValue(value, value, NOTHING, NOTHING, NOTHING, NOTHING, ()))

    def start(self, state: _State, left: int) -> None:
        """Start a turn, with so many moves left."""
        self._before, self._left, self._state = state, left, state
        self._moves: list[MoveValue] = []
        self._ended: Value | None = None

    def move(self, action: int, reward: float, state: _State, *, over: bool, success: bool) -> None:
        """Value a move of the turn; ``over``: whether the game was over with it."""
        left = self._left - len(self._moves)
        self._moves.append(self._values.move(self._state, left, action, reward, None if over else state, success))
        self._state = state
        if over:
            self._ended = Value(0.0, float(success))

    def info(self, planned: Sequence[int], left: int, then_left: int) -> dict[str, Any]:
        """End the turn: the entries of its ``info``.

        Args:
            planned: the actions that the reply plays unless the game is over before.
            left: moves left after the turn; 0 where the episode is over.
            then_left: moves left after all of ``planned``.
        """
        before, after, forfeited = self._values.value(*self._before, self._left), self._ended, NOTHING
        if after is None:
            after = self._values.value(*self._state, left)
            forfeited = self._values.value(*self._state, self._left - len(self._moves)).minus(after)
        regret, chance = forfeited, NOTHING
        for move in self._moves:
            regret, chance = regret.plus(move.regret), chance.plus(move.chance)
        advantage = self._values.expected(*self._before, planned, self._left, then_left).minus(before)
        return _turn_info(TurnValue(before, after, regret, chance, forfeited, advantage, tuple(self._moves)))

    def attainable(self, state: _State, left: int, turns: int, replies: Replies) -> Value:
        """See ``LevelValues.attainable``."""
        return self._values.attainable(*state, left, turns, replies)

    def avoidable(
        self, state: _State, planned: Sequence[int], left: int, then_left: int, turns: int, replies: Replies
    ) -> Value:
        """Regret of a reply that plays ``planned``, against ``attainable``, over fresh transition noise."""
        kept = self._values.expected(*state, planned, left, then_left, turns - 1, replies)
        return self.attainable(state, left, turns, replies).minus(kept)


class BatchRegret:
    """Regret of a batch's moves; each environment keeps the tables of the level that it plays."""

    def __init__(self, game: Game, moves: int, num_envs: int) -> None:
        self._game, self._moves, self._num_envs = game, moves, num_envs
        self._tables: list[tuple[bytes, LevelValues] | None] = [None] * num_envs

    def of_moves(
        self,
        levels: Sequence[bytes],
        before: Sequence[_State],
        after: Sequence[_State],
        elapsed: npt.NDArray[np.int64],
        moved: npt.NDArray[np.bool_],
        actions: npt.NDArray[np.int64],
        results: tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]],
    ) -> npt.NDArray[np.float64]:
        """float64 (4, num_envs): the entries of ``REGRET_KEYS`` of every environment, 0 where no move was played.

        Args:
            levels: the first board of each episode.
            before: all states before the step.
            after: all states after it, before any episode is begun anew.
            elapsed: moves of each episode before the step.
            moved: the environments that played a move.
            actions: ids.
            results: rewards, whether the game is over, whether it is won.
        """
        out = np.zeros((len(REGRET_KEYS), self._num_envs))
        rewards, terminated, success = (result.tolist() for result in results)
        for i in np.flatnonzero(moved).tolist():
            left, then = self._moves - int(elapsed[i]), None if terminated[i] else after[i]
            move = MoveValue(UNKNOWN, UNKNOWN)
            if left > 0:
                values = self._values(i, levels[i])
                move = values.move(before[i], left, int(actions[i]), rewards[i], then, success[i])
            out[:, i] = list(_move_info(move).values())
        return out

    def _values(self, i: int, board: bytes) -> LevelValues:
        kept = self._tables[i]
        if kept is None or kept[0] != board:
            kept = self._tables[i] = board, level_values(self._game, board, self._moves)
        return kept[1]


class LazyRegret:
    """The entries of ``regret`` of one step of a batch, all computed when the first of them is read.

    Args:
        compute: gives float64 (4, num_envs), in the order of ``REGRET_KEYS``.
        which: the environments whose entries are kept, bool (num_envs,); the others have 0.
    """

    def __init__(self, compute: Callable[[], npt.NDArray[np.float64]], which: npt.NDArray[np.bool_]) -> None:
        self._compute, self._which = compute, which

    def of(self, key: str) -> npt.NDArray[np.float64]:
        """One of the entries, float64 (num_envs,)."""
        return np.where(self._which, self._compute()[REGRET_KEYS.index(key)], 0.0)


def _turn_info(value: TurnValue) -> dict[str, Any]:
    return {"regret": value.regret.total, "turn_value": value}
