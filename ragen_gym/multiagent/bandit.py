"""Bandit and BanditRev as a contest for the arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ragen_gym.games.game import OVER, PLAYING, SUCCESS
from ragen_gym.multiagent.parallel import ParallelGame


class BanditContest(ParallelGame):
    """Bandit with several players at the same two arms: who pulls an arm together shares what it pays.

    ## Description
    All choose at the same time. An arm pays once a cycle, as in Bandit, and the players that chose it get equal parts
    of that. What the risky arm pays in a cycle is settled before the choice, by the single environment's noise: it is
    the same whoever pulls it.

    ## Observation Space
    The arms, the same for all; a player learns of the others only by what it is paid.

    ## Rewards
    The player's part of what its arm pays. The rewards of a cycle sum to the pay of the arms that were chosen.

    ## Episode End
    Terminated for all after ``pulls`` cycles. A player succeeds if in the last one the other arm would not have given
    it more on average, the others' choices being what they were; alone, that is to choose the arm with the higher mean.
    """

    def _begin(self, board: bytes, state: list[int], level_key: int, *, fixed: bool) -> None:
        self._board, self._state = board, state
        self._chosen: list[int | None] = [None] * self.players

    def _play(self, moves: dict[int, int], draws: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
        crowd = Counter(moves.values())
        self._chosen = [moves[i] for i in range(self.players)]
        before, played = self._state, {}
        for arm in crowd:
            self._state = before.copy()
            played[arm] = self.game.rule(self._board, self._state, arm, draws[0], self.game.params)
        rewards = {i: played[arm][0] / crowd[arm] for i, arm in moves.items()}
        if all(outcome == PLAYING for _, outcome in played.values()):
            return rewards, dict.fromkeys(moves, PLAYING)
        means = self._means()
        best = {arm: means[arm] / crowd[arm] >= means[1 - arm] / (crowd[1 - arm] + 1) for arm in crowd}
        return rewards, {i: SUCCESS if best[arm] else OVER for i, arm in moves.items()}

    def _means(self) -> list[float]:
        low, high, high_prob, _, reversed_names = self.game.params
        return [high * high_prob if (code & 1) != reversed_names else low for code in self._board]

    def _view(self, player: int) -> bytes:
        return self._board

    def _picture(self) -> tuple[bytes, list[int | None]]:
        return self._board, self._chosen

    def _mask(self, player: int) -> npt.NDArray[np.int8]:
        return self.game.action_mask(self._board, self._state)
