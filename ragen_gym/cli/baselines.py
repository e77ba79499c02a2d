"""Random and optimal success of an environment on the same levels, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from ragen_gym.cli.progress import tracked
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.envs.step import StepEnv
from ragen_gym.games.registry import GameSpec

__all__ = ["budget", "measure"]


def budget(env: StepEnv) -> int:
    """Actions in an episode: the id's horizon, the rules' own limit where it has none, at most 1,000."""
    return env.game_spec.horizon or env.game.longest or 1000


def measure(spec: GameSpec, chosen: dict[str, Any], levels: int, seed: int = 0) -> dict[str, Rate]:
    """Success of uniformly random and of optimal play, on the first ``levels`` episodes of ``seed``.

    Both meet the same levels and the same noise, within the `budget` of the id.

    Args:
        spec: the environment.
        chosen: arguments of `StepEnv`.
        levels: number of episodes, from 1 on.
        seed: seed of the levels, the noise and the random play.
    """
    if levels < 1:
        raise ValueError(f"cannot measure on {levels} levels: give 1 or more.")
    env = StepEnv(spec.name, **chosen)
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
