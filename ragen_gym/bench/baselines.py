"""Random and optimal play of the instances of a split: the scale on which a score is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.suites import Split, Suite, noise_seed
from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.envs.episode_stream import stacked
from ragen_gym.envs.policies import PlayedEpisode, oracle_policy, play_episode
from ragen_gym.games._jit import compiled_with
from ragen_gym.games.kernels import next_word

__all__ = ["RANDOM_ROLLOUTS", "Baseline", "baseline", "oracle_episodes", "random_kernel"]

#: Episodes of random play for each instance.
RANDOM_ROLLOUTS = 1000

Floats = npt.NDArray[np.float64]

_11 = np.uint64(11)
_TO_UNIT = 2.0**-53


def rule(board: Any, state: Any, action: int, u: float, params: Any) -> tuple[float, int]:
    """The rule of the game for which ``random_episodes`` is compiled."""
    raise NotImplementedError


def random_episodes(
    boards: np.ndarray, states: np.ndarray, params: Any, n_actions: int, actions: int, rollouts: int, keys: np.ndarray
) -> np.ndarray:
    """Mean success and return of random episodes of each board, float64 (2, n).

    Args:
        boards: first boards, uint8 (n, cells).
        states: the integers of each board, int32 (n, integers).
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
    """``random_episodes`` for this rule."""
    return compiled_with(random_episodes, rule=game_rule)


@dataclass(frozen=True)
class Baseline:
    """What random and optimal play are expected to reach on each instance of a split, four arrays (instances,)."""

    random_success: Floats  # share of ``RANDOM_ROLLOUTS`` episodes of uniformly random moves that succeed
    random_return: Floats  # mean sum of their rewards
    optimal_success: Floats  # exact chance of success of optimal play
    optimal_return: Floats  # the highest expected sum of rewards, exact


def baseline(split: Split) -> Baseline:
    """Random and optimal play of each instance; computed once in a process.

    Raises:
        ragen_gym.games.sokoban.solve.NotSolvedError: a board is too hard for the oracle.
    """
    key = hashlib.sha256(json.dumps(split.content(), sort_keys=True).encode()).hexdigest()
    if key not in _BASELINES:
        _BASELINES[key] = Baseline(*_random_play(split), *_optimal_play(split))
    return _BASELINES[key]


def oracle_episodes(suite: Suite, split: Split, rollout: int) -> tuple[PlayedEpisode, ...]:
    """Optimal play of each instance with the transition noise of that rollout; computed once in a process.

    Raises:
        ragen_gym.games.sokoban.solve.NotSolvedError: a board is too hard for the oracle.
    """
    env = split.make_env()
    rollout = rollout if env.game.stochastic else 0  # without noise all rollouts are the same
    key = suite.hash, split.name, rollout
    if key not in _ORACLE_EPISODES:
        played, actions = [], env.action_budget
        for index, level in enumerate(split.levels):
            seed = noise_seed(suite, split, index, rollout)
            env.env.reset(options={"level": level, "noise_seed": seed})
            played.append(play_episode(env.env, oracle_policy, actions))
        _ORACLE_EPISODES[key] = tuple(played)
    return _ORACLE_EPISODES[key]


_BASELINES: dict[str, Baseline] = {}
_ORACLE_EPISODES: dict[tuple[str, str, int], tuple[PlayedEpisode, ...]] = {}


def _optimal_play(split: Split) -> tuple[Floats, Floats]:
    """Exact (success, return) of optimal play of each instance."""
    turns = split.make_env()
    env, actions = turns.env, turns.action_budget
    known: dict[Level, tuple[float, float]] = {}
    for level in dict.fromkeys(split.levels):
        env.reset(options={"level": level})
        here, solution = env.state, env.solution()
        known[level] = solution.success(*here, actions), solution.expected_return(*here, actions)
    success, total = np.array([known[level] for level in split.levels]).T
    return success, total


def _random_play(split: Split) -> tuple[Floats, Floats]:
    """Mean (success, return) of ``RANDOM_ROLLOUTS`` random episodes of each instance."""
    turns = split.make_env()
    game = turns.game
    boards = stacked([game.board(level) for level in split.levels])
    keys = episode_keys(stream_key(0, Stream.DYNAMICS), 0, len(boards))
    numbers = len(game.Action), turns.action_budget, RANDOM_ROLLOUTS
    success, total = random_kernel(game.rule)(boards, game.starts(boards), game.params, *numbers, keys)
    return success, total
