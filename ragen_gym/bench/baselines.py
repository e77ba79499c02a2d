"""Random, blind and optimal play of the instances of a split: the scale of scores and of published rates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ragen_gym.bench.suites import SUITES, Published, Split, Suite, load_suite, noise_seed
from ragen_gym.core.levels import Level
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.envs.episode_stream import stacked
from ragen_gym.envs.policies import PlayedEpisode, blind_value, oracle_policy, play_episode
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games._jit import compiled_with
from ragen_gym.games.kernels import next_word

#: Episodes of random play for each instance.
RANDOM_ROLLOUTS = 1000
#: The same of a text task, whose replies are not compiled.
TASK_ROLLOUTS = 100

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
    """Expected results of random, blind and optimal play on each instance of a split, arrays (instances,).

    Of a text task: what its random replies reach, and its optimal replies in one episode; None where it has none.
    """

    random_success: Floats | None  # share of ``random_rollouts`` episodes of uniformly random moves that succeed
    random_return: Floats | None  # mean sum of their rewards
    optimal_success: Floats | None  # exact chance of success of optimal play
    optimal_return: Floats | None  # the highest expected sum of rewards, exact
    blind_success: Floats | None = None  # exact chance of success of the game's blind script; None without one
    blind_return: Floats | None = None  # expected sum of its rewards, exact
    random_rollouts: int = RANDOM_ROLLOUTS  # episodes of each instance

    @property
    def means(self) -> dict[str, float | None]:
        """Means over the instances: success by player (``random``, ``blind``, ``optimal``), and ``random_return`` etc.

        None where it is unknown.
        """
        of = {
            "random": self.random_success,
            "blind": self.blind_success,
            "optimal": self.optimal_success,
            "random_return": self.random_return,
            "blind_return": self.blind_return,
            "optimal_return": self.optimal_return,
        }
        return {name: None if values is None else float(values.mean()) for name, values in of.items()}


def baseline(split: Split) -> Baseline:
    """Random, blind and optimal play of each instance; computed once in a process.

    Raises:
        ragen_gym.games.game.NotSolvedError: a board is too hard for the oracle.
    """
    key = hashlib.sha256(json.dumps(split.content(), sort_keys=True).encode()).hexdigest()
    if key not in _BASELINES:
        env = split.make_env()
        _BASELINES[key] = (
            _task_baseline(split, env)
            if isinstance(env, TaskEnv)
            else Baseline(*_random_play(split, env), *_optimal_play(split, env), *_blind_play(split, env))
        )
    return _BASELINES[key]


def oracle_episodes(suite: Suite, split: Split, rollout: int) -> tuple[PlayedEpisode, ...] | None:
    """Optimal play of each instance with the transition noise of that rollout; computed once in a process.

    None of a text task that has no oracle; the episodes of one that has have no actions.

    Raises:
        ragen_gym.games.game.NotSolvedError: a board is too hard for the oracle.
    """
    env = split.make_env()
    if isinstance(env, TaskEnv):
        if not env.has_oracle:
            return None
    elif not env.game.stochastic:
        rollout = 0  # without noise all rollouts are the same
    key = suite.hash, split.name, rollout
    if key not in _ORACLE_EPISODES:
        played = []
        for index in range(len(split.levels)):
            seed = noise_seed(suite, split, index, rollout)
            if isinstance(env, TaskEnv):
                played.append(_replied(split, env, index, seed, env.optimal_reply))
            else:
                split.begin(env.env, index, seed)
                played.append(play_episode(env.env, oracle_policy, env.action_budget))
        _ORACLE_EPISODES[key] = tuple(played)
    return _ORACLE_EPISODES[key]


_BASELINES: dict[str, Baseline] = {}
_ORACLE_EPISODES: dict[tuple[str, str, int], tuple[PlayedEpisode, ...]] = {}


def _replied(split: Split, env: TaskEnv, index: int, seed: int, reply: Callable[[], str]) -> PlayedEpisode:
    """An episode of a text task with these replies."""
    _, info = split.begin(env, index, seed)
    total = 0.0
    while not env.over:
        _, reward, _, _, info = env.step(reply())
        total += reward
    return PlayedEpisode(info["level_id"], (), total, info["success"])


def _task_baseline(split: Split, env: TaskEnv) -> Baseline:
    def means(reply: Callable[[], str], rollouts: int) -> tuple[Floats, Floats]:
        """Mean (success, return) of each instance; rollout k has the noise of seed k."""
        played = [
            [_replied(split, env, index, seed, reply) for seed in range(rollouts)] for index in range(len(split.levels))
        ]
        success = [np.mean([episode.success for episode in episodes]) for episodes in played]
        return np.array(success), np.array([np.mean([episode.total for episode in episodes]) for episodes in played])

    rng = np.random.default_rng(0)
    random = means(lambda: env.random_reply(rng), TASK_ROLLOUTS) if env.has_random_replies else (None, None)
    optimal = means(env.optimal_reply, 1) if env.has_oracle else (None, None)
    return Baseline(random[0], random[1], optimal[0], optimal[1], random_rollouts=TASK_ROLLOUTS)


def _exact(split: Split, turns: TurnEnv, value: Callable[[], tuple[float, float]]) -> tuple[Floats, Floats]:
    """Exact (success, return) of each instance, as ``value`` gives them of the level that ``turns`` stands in."""
    known: dict[Level, tuple[float, float]] = {}
    for level in dict.fromkeys(split.boards):
        turns.env.reset(options={"level": level})
        known[level] = value()
    success, total = np.array([known[level] for level in split.boards]).T
    return success, total


def _optimal_play(split: Split, turns: TurnEnv) -> tuple[Floats, Floats]:
    env, actions = turns.env, turns.action_budget

    def value() -> tuple[float, float]:
        solution = env.solution()
        return solution.success(*env.state, actions), solution.expected_return(*env.state, actions)

    return _exact(split, turns, value)


def _blind_play(split: Split, turns: TurnEnv) -> tuple[Floats, Floats] | tuple[None, None]:
    if not turns.has_blind:
        return None, None
    return _exact(split, turns, lambda: blind_value(turns.env, turns.action_budget))


def _random_play(split: Split, turns: TurnEnv) -> tuple[Floats, Floats]:
    """Mean (success, return) of ``RANDOM_ROLLOUTS`` random episodes of each instance."""
    sized = [turns.game.at_own_size(level) for level in split.boards]
    keys = episode_keys(stream_key(0, Stream.DYNAMICS), 0, len(sized))
    success, total = np.empty(len(sized)), np.empty(len(sized))
    for game in {id(game): game for game, _ in sized}.values():
        at = [place for place, (each, _) in enumerate(sized) if each is game]
        boards = stacked([sized[place][1] for place in at])
        numbers = len(game.Action), turns.action_budget, RANDOM_ROLLOUTS
        played = random_kernel(game.rule)(boards, game.starts(boards), game.params, *numbers, keys[at])
        success[at], total[at] = played
    return success, total


#: Published results of which there is no suite: what is reported, and why it cannot be reproduced.
NOT_REPRODUCED: dict[str, tuple[str, str]] = {
    "lmgame-bench Sokoban (github.com/lmgame-org/GamingAgent at 996d848)": (
        "o3 10 boxes on targets with its harness and 2 without; GPT-4.1 0 and 0",
        "its score is the boxes on targets over six hand-made levels played in a row, up to the first that is not "
        "solved: no success rate, and a file of levels that is not ours to give on",
    ),
    "rLLM's announcement (its issue 171 quotes it)": (
        "71 to 76 % on a slippery FrozenLake",
        "its settings are not given; on the lakes of its example, with 10 turns, optimal play reaches 38 %",
    ),
}


@dataclass(frozen=True)
class PublishedRate:
    """A published rate, and random, blind and optimal play of the same protocol."""

    suite: str
    published: Published
    n: int  # instances
    random: float  # success of uniformly random moves
    blind: float  # exact expected success of the game's blind script
    optimal: float  # exact expected success of optimal play

    @property
    def interval(self) -> Rate:
        """The published rate with its 95 % Wilson interval, as of one episode an instance."""
        return wilson(self.published.success * self.n, self.n)

    @property
    def verdict(self) -> str:
        """Comparison of the rate, in words; empty where it is above the blind script and not above optimal play."""
        rate = self.interval
        if rate.low > self.optimal:
            return "above optimal play: not this protocol"
        if rate.high < self.random:
            return "below random play"
        if rate.low <= self.random:
            return "not distinguishable from random play"
        return "not above the blind script" if rate.low <= self.blind else ""


def published_rates(names: Iterable[str] = SUITES, *, main_only: bool = False) -> list[PublishedRate]:
    """The published rates of these suites of the package, whose splits are played at random, blindly and optimally.

    Args:
        names: of suites; one without a published rate has no row.
        main_only: whether to keep only the first of those on the same splits.
    """
    rows: list[PublishedRate] = []
    for suite in map(load_suite, names):
        met = set[tuple[str, ...]]()
        for each in suite.published:
            if not (main_only and each.splits in met):
                rows.append(_rate(suite, each))
            met.add(each.splits)
    return rows


def _rate(suite: Suite, published: Published) -> PublishedRate:
    splits = [split for split in suite.splits if split.name in published.splits]
    n = sum(len(split.levels) for split in splits)
    means = [(len(split.levels), baseline(split).means) for split in splits]
    rates = {
        kind: sum(size * (mean[kind] or 0.0) for size, mean in means) / n for kind in ("random", "blind", "optimal")
    }
    return PublishedRate(suite.name, published, n, **rates)
