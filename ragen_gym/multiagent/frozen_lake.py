"""FrozenLake as a race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ragen_gym.core.text import Vocabulary
from ragen_gym.games.frozen_lake import FrozenLake
from ragen_gym.games.game import OVER, PLAYING, SUCCESS
from ragen_gym.multiagent.parallel import ParallelGame, with_others


class Tile(IntEnum):
    """FrozenLake's tiles, and the others': one that has fallen into a hole is not seen again."""

    ICE = 0
    HOLE = 1
    GOAL = 2
    PLAYER = 3
    PLAYER_IN_HOLE = 4
    PLAYER_ON_GOAL = 5
    OTHER = 6
    OTHER_ON_GOAL = 7


_OTHER_ON: dict[int, int] = {Tile.ICE: Tile.OTHER, Tile.GOAL: Tile.OTHER_ON_GOAL}


@dataclass(frozen=True)
class SharedLake(FrozenLake):
    """FrozenLake with tiles for other players."""

    Tile = Tile  # type: ignore[assignment]  # an enum with members cannot be subclassed
    vocabularies: ClassVar[dict[str, Vocabulary]] = with_others(FrozenLake.vocabularies, Tile)
    painter = "ragen_gym.multiagent.frames:SHARED_LAKE"
    description = (
        "You race others over a frozen lake. Be the first on the goal and keep out of the holes. "
        "You cannot leave the board."
    )

    def check(self, board: bytes) -> None:
        """Raise a ValueError unless there is one player, one goal and nobody else."""
        super().check(board)
        if Tile.OTHER in board or Tile.OTHER_ON_GOAL in board:
            raise ValueError("FrozenLake: a level of a race shows one player; all start there.")


class FrozenLakeRace(ParallelGame):
    """FrozenLake with several players on one lake: the first on the goal wins.

    ## Description
    All start on the level's start. The ice carries any number: players pass each other and may share a cell. Each slips
    by noise of its own, so that until somebody wins each walks as it would walk alone.

    ## Observation Space
    A player sees itself as in FrozenLake, whoever shares its cell; others that are on the ice or on the goal are
    ``OTHER`` and ``OTHER_ON_GOAL``, however many there are. A hole hides who fell into it.

    ## Rewards
    1 for each player that reaches the goal in the first cycle in which any does, 0 for anything else.

    ## Episode End
    A player in a hole is out (terminated). The first success terminates all; those that arrive in that cycle succeed
    together. Truncated after ``max_cycles``.
    """

    shared = "ragen_gym.multiagent.frozen_lake:SharedLake"

    def _begin(self, board: bytes, state: list[int], level_key: int, *, fixed: bool) -> None:
        self._boards = [bytearray(board) for _ in range(self.players)]
        self._states = [list(state) for _ in range(self.players)]

    def _play(self, moves: dict[int, int], draws: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
        rule, params = self.game.rule, self.game.params
        played = {i: rule(self._boards[i], self._states[i], move, draws[i], params) for i, move in moves.items()}
        rewards = {i: reward for i, (reward, _) in played.items()}
        outcomes = {i: outcome for i, (_, outcome) in played.items()}
        if SUCCESS in outcomes.values():
            outcomes = {i: outcome if outcome != PLAYING else OVER for i, outcome in outcomes.items()}
        return rewards, outcomes

    def _view(self, player: int) -> bytearray:
        board = bytearray(self._boards[player])
        for other, (cell,) in enumerate(self._states):
            if other != player:
                board[cell] = _OTHER_ON.get(board[cell], board[cell])
        return board

    def _picture(self) -> tuple[bytearray, list[int | None]]:
        board = bytearray(self._boards[0])
        for own, (cell,) in zip(self._boards, self._states, strict=True):
            board[cell] = own[cell]
        return board, [cell for (cell,) in self._states]

    def _mask(self, player: int) -> npt.NDArray[np.int8]:
        return self.game.action_mask(self._boards[player], self._states[player])
