"""Uniformly random play, compiled: a million moves take a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ragen_gym.games._jit import compiled_with, next_word

__all__ = ["random_kernel"]

_11 = np.uint64(11)
_TO_UNIT = 2.0**-53


def rule(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """The rule of the game for which `random_episodes` is compiled."""
    raise NotImplementedError


def random_episodes(
    boards: np.ndarray, states: np.ndarray, params: Any, n_actions: int, actions: int, rollouts: int, keys: np.ndarray
) -> np.ndarray:
    """Mean success and return of random episodes of each board, float64 (2, n).

    Args:
        boards: first boards, uint8 (n, cells).
        states: the integers beside them, int32 (n, integers).
        params: the rule's numbers.
        n_actions: actions of the game.
        actions: the most moves of an episode.
        rollouts: episodes of each board.
        keys: of each board's random numbers, uint64 (n,).
    """
    means = np.zeros((2, boards.shape[0]))
    for i in range(boards.shape[0]):
        key = keys[i]
        for _ in range(rollouts):
            board, state = boards[i].copy(), states[i].copy()
            for _ in range(actions):
                key, word = next_word(key)
                action = int(word % np.uint64(n_actions))
                key, word = next_word(key)
                reward, outcome = rule(board, state, action, np.float64(word >> _11) * _TO_UNIT, params)
                means[1, i] += reward
                if outcome:
                    means[0, i] += outcome == 2
                    break
    return means / rollouts


@cache
def random_kernel(game_rule: Callable[..., Any]) -> Callable[..., Any]:
    """`random_episodes` for this rule."""
    return compiled_with(random_episodes, rule=game_rule)
