"""The environments of a run."""

from __future__ import annotations

import numpy as np
import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.tasks.tasks import (
    MixtureGame,
    SeedStream,
    derive_seed,
    draw_games,
    level_seeds,
    make_env,
    risk_notice,
)

TRIAL = "ragen_gym.tasks:TrialEnv"


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("FrozenLake", {"max_turns": 3}, r"--set turns\.max_turns="),
        ("FrozenLake", {"split": "train"}, r"--set evaluation\.split="),
        ("Bandit", {"names": [["A", "B"]]}, "no splits"),
    ],
)
def test_an_option_that_is_not_the_games_is_refused(game: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(with_settings(Config(), {"game": game, "env_options": options}), "train")


def test_what_a_text_task_cannot_tell_is_refused_before_the_warm_start() -> None:
    config = with_settings(Config(), {"game": "ragen_gym.tasks:Countdown", "training": {"groups_by": "state"}})
    with pytest.raises(ValueError, match=r"training\.groups_by is 'state'.*Countdown is a text task"):
        make_env(config, "train")


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_the_levels_that_are_played_first_are_drawn_as_ever(seed: int) -> None:
    """By a path without a round: a zero at the end of a path is not always none, as of seeds of more than 32 bits."""
    rng = np.random.default_rng(derive_seed(seed, SeedStream.LEVELS, 3))
    assert level_seeds(seed, 3, 4) == [int(level) for level in rng.integers(2**62, size=4)]
    assert not set(level_seeds(seed, 3, 4)) & set(level_seeds(seed, 3, 4, refill=1))
    games = [MixtureGame(Config(), 1.0), MixtureGame(Config(), 3.0)]
    rng = np.random.default_rng(derive_seed(seed, SeedStream.GAMES, 3))
    assert draw_games(games, seed, 3, 64).tolist() == rng.choice(2, size=64, p=[0.25, 0.75]).tolist()
    assert draw_games(games, seed, 3, 64).tolist() != draw_games(games, seed, 3, 64, refill=1).tolist()


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"game": "Bandit"}, "with training.filter=none"),
        ({"game": "Bandit", "training": {"filter": "none"}}, "Use one of ppo, dr_grpo, rloo, arpo, reinforce."),
        ({"game": "BanditRev", "training": {"algo": "asymmetric_clip"}}, "training.algo=asymmetric_clip divides"),
        ({"game": "Bandit", "training": {"algo": "dr_grpo"}}, ""),
        ({"game": "Bandit", "training": {"algo": "brpo"}}, ""),  # one std for all groups changes none against another
        ({"game": "Bandit", "env_options": {"high_prob": 1.0}}, ""),
        ({"game": "Bandit", "env_options": {"low": 0.0}}, ""),
        (
            {"game": "Bandit", "env_options": {"low": 0.0, "pulls": 2}, "turns": {"max_turns": 2}},
            "Warning: Bandit pays",
        ),
        ({"game": "FrozenLake", "env_options": {"success_rate": 0.5}}, ""),  # returns of 0 and 1 alone
        ({"game": "Sokoban"}, ""),
        ({"game": "ragen_gym.tasks:Countdown"}, ""),
        ({"game": TRIAL, "env_options": {"game": "Bandit"}}, "Warning: ragen_gym.tasks:TrialEnv pays by chance"),
        ({"game": TRIAL, "env_options": {"game": "Sokoban", "oracle": False}}, ""),
        ({"games": [{"game": "Sokoban"}, {"game": "Bandit"}]}, "Warning: Bandit pays by chance"),
    ],
)
def test_risky_returns_are_warned_of_where_groups_are_divided_by_their_std(
    settings: dict[str, object], warned: str
) -> None:
    notice = risk_notice(with_settings(Config(), settings))
    assert bool(notice) is bool(warned)
    assert warned in notice
