"""Random and optimal success of an environment on the same levels, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ragen_gym.cli.progress import tracked
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import Row

__all__ = ["Rate", "budget", "measure", "wilson"]


@dataclass(frozen=True)
class Rate:
    """A share of successes.

    Attributes:
        rate: successes / n.
        low: lower end of its interval.
        high: upper end of its interval.
        n: episodes.
    """

    rate: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


def wilson(successes: int, n: int, confidence: float = 0.95) -> Rate:
    """A rate with Wilson's score interval (Wilson, JASA 22, 1927; the two-sided interval without correction).

    Raises:
        ValueError: ``n`` is below 1, or ``successes`` is not from 0 to ``n``.
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes of {n}: give n from 1 on, and successes from 0 to n.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return Rate(rate, low, 1.0 if successes == n else min(1.0, centre + half), n)


def budget(env: StepEnv) -> int:
    """Actions in an episode: the id's horizon, the rules' own limit where it has none, at most 1,000."""
    return env.row.horizon or env.game.longest or 1000


def measure(row: Row, chosen: dict[str, Any], levels: int, seed: int = 0) -> dict[str, Rate]:
    """Success of uniformly random and of optimal play, on the first ``levels`` episodes of ``seed``.

    Both meet the same levels and the same noise, within the `budget` of the id.

    Args:
        row: the environment.
        chosen: arguments of `StepEnv`.
        levels: number of episodes, from 1 on.
        seed: seed of the levels, the noise and the random play.
    """
    if levels < 1:
        raise ValueError(f"cannot measure on {levels} levels: give 1 or more.")
    env = StepEnv(row.name, **chosen)
    rng = np.random.default_rng(seed)
    actions = len(env.game.Action)
    rates = {}
    for player in ("random", "optimal"):
        successes = 0
        for episode in tracked(range(levels), levels, f"episodes of {player} play"):
            env.reset(seed=seed if episode == 0 else None)
            for left in range(budget(env), 0, -1):
                action = int(rng.integers(actions)) if player == "random" else env.oracle_action(left)
                _, _, terminated, _, info = env.step(action)
                if terminated:
                    successes += info["success"]
                    break
        rates[player] = wilson(successes, levels)
    return rates
