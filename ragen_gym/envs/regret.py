"""Regret of an episode's moves, for the infos of environments; the values are those of ``games.values``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragen_gym.core.validation import plain_number
from ragen_gym.games.game import Game
from ragen_gym.games.registry import GameSpec
from ragen_gym.games.values import NOTHING, UNKNOWN, MoveValue, TurnValue, Value, level_values

#: The entries of ``info`` of a move.
REGRET_KEYS = ("regret", "chance", "success_regret", "success_chance")

_State = tuple[bytes, tuple[int, ...]]


def moves_valued(regret: bool | int, spec: GameSpec, game: Game) -> int:
    """The moves of an episode that are valued, 0 for none.

    Args:
        regret: the argument of an environment: whether, or for how many moves.
        spec: the environment's entry in the table.
        game: its game.

    Raises:
        ValueError: no number of moves from 0 on, no limit of moves to value, or a game without exact values.
    """
    regret = plain_number(regret)
    if isinstance(regret, bool):
        found = (spec.horizon or game.longest) if regret else 0
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


def _turn_info(value: TurnValue) -> dict[str, Any]:
    return {"regret": value.regret.total, "turn_value": value}
