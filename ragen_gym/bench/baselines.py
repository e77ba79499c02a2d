"""Random and optimal play of the very instances of a split, between which a score stands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.suite import Split, Suite, noise_seed
from ragen_gym.envs.episodes import stacked
from ragen_gym.envs.step import StepEnv
from ragen_gym.levels import Level
from ragen_gym.seeding import Stream, episode_keys, stream_key

__all__ = ["RANDOM_ROLLOUTS", "Baseline", "OracleEpisode", "actions_of", "baseline", "oracle_episodes"]

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
    from ragen_gym.bench.random_play import random_kernel

    game = split.make_env().game
    boards = stacked([game.board(level) for level in split.levels])
    keys = episode_keys(stream_key(0, Stream.DYNAMICS), 0, len(boards))
    numbers = len(game.Action), actions_of(split), RANDOM_ROLLOUTS
    success, total = random_kernel(game.rule)(boards, game.starts(boards), game.params, *numbers, keys)
    return success, total
