"""Random and optimal play of the very instances of a split, between which a score stands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.suite import Split, Suite, noise_seed
from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.envs.episode_stream import stacked
from ragen_gym.envs.step import StepEnv
from ragen_gym.games._jit import compiled_with, next_word

__all__ = ["RANDOM_ROLLOUTS", "Baseline", "OracleEpisode", "actions_of", "baseline", "oracle_episodes", "random_kernel"]

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


#: Episodes of random play for each instance.
RANDOM_ROLLOUTS = 1000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """What random and optimal play are expected to reach on each instance of a split, four arrays (instances,).

    Attributes:
        random_success: share of `RANDOM_ROLLOUTS` episodes of uniformly random moves that succeed.
        random_return: mean sum of their rewards.
        optimal_success: exact chance of success of optimal play.
        optimal_return: the highest expected sum of rewards, exact.
    """

    random_success: Floats
    random_return: Floats
    optimal_success: Floats
    optimal_return: Floats


@dataclass(frozen=True)
class OracleEpisode:
    """What optimal play makes of one instance with the luck that every agent meets there.

    Attributes:
        success: whether it reached the goal.
        moves: how many moves it took.
    """

    success: bool
    moves: int


def actions_of(split: Split) -> int:
    """The most moves of an episode, within all budgets."""
    env = split.make_env()
    return min(env.max_actions, env.max_turns * env.max_actions_per_turn)


def baseline(split: Split) -> Baseline:
    """Random and optimal play of each instance; computed once in a process.

    Raises:
        ragen_gym.games.sokoban.solve.NotSolvedError: a board is too hard for the oracle.
    """
    key = hashlib.sha256(json.dumps(split.content(), sort_keys=True).encode()).hexdigest()
    if key not in _BASELINES:
        _BASELINES[key] = Baseline(*_random_play(split), *_optimal_play(split))
    return _BASELINES[key]


def oracle_episodes(suite: Suite, split: Split, rollout: int) -> tuple[OracleEpisode, ...]:
    """Optimal play of each instance with the luck of that rollout; computed once in a process.

    Raises:
        ragen_gym.games.sokoban.solve.NotSolvedError: a board is too hard for the oracle.
    """
    env = split.make_env()
    rollout = rollout if env.game.stochastic else 0  # without luck all rollouts are the same
    key = suite.hash, split.name, rollout
    if key not in _ORACLE_EPISODES:
        seeds = [noise_seed(suite, split, index, rollout) for index in range(len(split.levels))]
        actions = actions_of(split)
        played = (_play(env.env, level, seed, actions) for level, seed in zip(split.levels, seeds, strict=True))
        _ORACLE_EPISODES[key] = tuple(played)
    return _ORACLE_EPISODES[key]


_BASELINES: dict[str, Baseline] = {}
_ORACLE_EPISODES: dict[tuple[str, str, int], tuple[OracleEpisode, ...]] = {}


def _play(env: StepEnv, level: Level, seed: int, actions: int) -> OracleEpisode:
    env.reset(options={"level": level, "noise_seed": seed})
    for left in range(actions, 0, -1):
        _, _, terminated, _, info = env.step(env.oracle_action(left))
        if terminated:
            return OracleEpisode(bool(info["success"]), actions - left + 1)
    return OracleEpisode(False, actions)


def _optimal_play(split: Split) -> tuple[Floats, Floats]:
    """Exact (success, return) of optimal play of each instance."""
    env, actions = split.make_env().env, actions_of(split)
    known: dict[Level, tuple[float, float]] = {}
    for level in dict.fromkeys(split.levels):
        env.reset(options={"level": level})
        here, solution = env.state, env.solution()
        known[level] = solution.success(*here, actions), solution.expected_return(*here, actions)
    success, total = np.array([known[level] for level in split.levels]).T
    return success, total


def _random_play(split: Split) -> tuple[Floats, Floats]:
    """Mean (success, return) of `RANDOM_ROLLOUTS` random episodes of each instance."""
    from ragen_gym.bench.baselines import random_kernel

    game = split.make_env().game
    boards = stacked([game.board(level) for level in split.levels])
    keys = episode_keys(stream_key(0, Stream.DYNAMICS), 0, len(boards))
    numbers = len(game.Action), actions_of(split), RANDOM_ROLLOUTS
    success, total = random_kernel(game.rule)(boards, game.starts(boards), game.params, *numbers, keys)
    return success, total
