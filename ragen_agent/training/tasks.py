"""What a run trains on: one game, several games drawn by weight, or one game whose knobs change on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ragen_agent.config import Config, with_settings
from ragen_agent.training.policy import derive_seed

__all__ = ["GAMES", "MixtureGame", "all_settings", "draw_games", "games_at"]

GAMES = 20  # the second number of `derive_seed`


@dataclass(frozen=True)
class MixtureGame:
    """One game of a run: its settings, as those of a run on it alone, and its weight among the others."""

    config: Config
    weight: float = 1.0


def games_at(config: Config, iteration: int) -> list[MixtureGame]:
    """The games that levels are drawn from in this iteration; one, unless `Config.games` names several.

    Raises:
        ValueError: a table of a mixture whose settings do not fit.
    """
    if config.games:
        return [_share(config, row) for row in config.games]
    knobs = dict(config.knobs)
    for stage in config.curriculum:
        if iteration >= stage["iteration"]:
            knobs = config.knobs | stage["knobs"]
    return [MixtureGame(replace(config, knobs=knobs, curriculum=[]))]


def all_settings(config: Config) -> list[Config]:
    """The run's own settings first, then those of every game and stage that it trains on."""
    stages = [0, *(stage["iteration"] for stage in config.curriculum)]
    others = [share.config for stage in stages for share in games_at(config, stage)]
    plain = replace(config, games=[], curriculum=[])
    return [plain, *(other for other in others if other != plain)]


def draw_games(shares: list[MixtureGame], seed: int, path: int, count: int) -> NDArray[np.int64]:
    """For each of `count` levels the index of its game; the same levels, whatever the weights are."""
    if len(shares) == 1:
        return np.zeros(count, dtype=np.int64)
    weights = np.array([share.weight for share in shares])
    return np.random.default_rng(derive_seed(seed, GAMES, path)).choice(
        len(shares), size=count, p=weights / weights.sum()
    )


def _share(config: Config, row: dict[str, object]) -> MixtureGame:
    """A row's settings laid over the run's; knobs are a game's own, so another game does not inherit them."""
    same = row["game"] == config.game
    settings = {
        "game": row["game"],
        "knobs": row.get("knobs", config.knobs if same else {}),
        "turns": row.get("turns", {}),
        "demonstrations": {"thought": row["thought"]} if "thought" in row else {},
        "games": [],
    }
    weight = row.get("weight", 1.0)
    assert isinstance(weight, int | float)
    return MixtureGame(with_settings(config, settings), float(weight))
