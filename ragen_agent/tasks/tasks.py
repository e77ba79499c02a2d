"""Tasks of a run: its environments, its mixture or curriculum of games, and its random seeds.

A run trains on one game, on several games drawn by weight, or on one game whose options change over time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ragen_agent.config import Config, Turns, with_settings
from ragen_agent.config.algorithms import ADVANTAGE_RULES, CREDITS, FILTER_RULES, GROUPINGS
from ragen_agent.config.settings import pretrained
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.task import TaskEnv, make_reply_env
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import load_task


class SeedStream(IntEnum):
    """Uses of random numbers: the first number after the run's seed in ``derive_seed``."""

    MODEL = 0
    DEMONSTRATIONS = 1
    DEMONSTRATOR = 2
    SUPERVISED_BATCHES = 3
    LEVELS = 4
    SAMPLING = 5
    MINIBATCHES = 6
    DEMONSTRATOR_RATE = 7
    FILTER = 8
    ADAPTER = 9
    INFORMATION = 10
    GAMES = 20
    REMOTE_NOISE = 21
    REMOTE_SAMPLING = 22
    FINE_TUNING_ORDER = 30
    FINE_TUNING_ADAPTER = 31
    FINE_TUNING_DROPOUT = 32
    EVALUATION = 1000
    BASELINES = 1001


def derive_seed(seed: int, *path: int) -> int:
    """A 63-bit seed for a path of numbers, such as (phase, iteration).

    Different paths give independent seeds, except for trailing zeros: while ``seed`` and path have at most four numbers
    of 32 bits, (5, 3) and (5, 3, 0) give the same seed. So paths must not differ only in a trailing zero.
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_env(config: Config, split: str | None) -> ReplyEnv:
    """The run's turn environment, of a game or a text task, on one split.

    The messages of a game state the token limit only to a pretrained model.

    Raises:
        ValueError: an unknown game or option, a value out of range, or a credit or groups that need exact
            values or states, which the environment does not have.
    """
    for name in config.env_options:
        if name in Turns.__dataclass_fields__:
            raise ValueError(f"{name} is not an option of the game; give --set turns.{name}=...")
        if name == "split":
            raise ValueError("split is not an option of the game; give --set evaluation.split=...")
    training = config.training
    if load_task(config.game) is not None:
        _check_text_task(config)
    turns = config.turns.of_environment(states_limit=pretrained(config.model))
    valued = {"regret": True} if CREDITS[training.credit].shaped else {}
    env = make_reply_env(config.game, turns, split=split, **(config.env_options | valued))
    if not isinstance(env, TurnEnv):
        return env
    if split is not None and not env.game.has_splits:
        raise ValueError(
            "the option names chooses the arms itself, so it has no splits to train and to measure on; leave it out, "
            'or give names = "ragen-v1".'
        )
    return env


def _check_text_task(config: Config) -> None:
    training = config.training
    if CREDITS[training.credit].shaped:
        raise ValueError(
            f"training.credit is {training.credit!r}, which needs the exact values of a game; {config.game} is a "
            "text task, so use another credit."
        )
    if GROUPINGS[training.groups_by].turns:
        raise ValueError(
            f"training.groups_by is {training.groups_by!r}, which needs the states of a game; "
            f"{config.game} is a text task, so use training.groups_by=level."
        )


def make_game_env(config: Config, split: str | None) -> TurnEnv:
    """``make_env`` for users of boards and moves.

    Raises:
        ValueError: see ``make_env``; or the run has a text task.
    """
    env = make_env(config, split)
    if not isinstance(env, TurnEnv):
        raise ValueError(f"{config.game} is a text task: it has no boards; this needs a game.")
    return env


def check_demonstrations(config: Config) -> None:
    """Raises a ValueError if a text task of a run has no training data, or no oracle for its warm start."""
    for game in all_settings(config):
        env = make_env(game, "train")
        if not isinstance(env, TaskEnv):
            continue
        env.reset(seed=0)
        if env.has_oracle or not config.warm_start.epochs:
            continue
        raise ValueError(
            f"{game.game} has no optimal_reply(), so there are no demonstrations to imitate: give the task one (a "
            "trial has one with oracle=true and turns.max_actions_per_turn=1), or start from a model that writes "
            "replies already (--model NAME, or --set warm_start.epochs=0)."
        )


def risk_notice(config: Config) -> str:
    """A warning if the advantages are divided by each group's std and a game's returns are risky; else empty.

    See ``ragen_gym.games.game.Game.risky_returns``. A filter that prefers groups with a large return std favours the
    risky way to play.

    Raises:
        ValueError: see ``make_env``.
    """
    algo = config.training.algo
    if not ADVANTAGE_RULES[algo].divides_by_group_std:
        return ""
    envs = [(each.game, make_env(each, None)) for each in all_settings(config)]
    risky = dict.fromkeys(
        name for name, env in envs if (env.game.risky_returns if isinstance(env, TurnEnv) else env.risky_returns)
    )
    if not risky:
        return ""
    others = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if not rule.divides)
    ranked = FILTER_RULES[config.training.filter_rule].ranks_groups
    return (
        f"Warning: {', '.join(risky)} pays by chance, and training.algo={algo} divides by the std of each group's "
        "returns. That can teach the way to play that earns less on average. Use one of "
        f"{others}{', with training.filter=none: a filter by return std can mislead too' if ranked else ''}."
    )


def records_states(config: Config, split: str | None) -> bool:
    """True if episodes on a split record each turn's state: training episodes, if turns are compared."""
    return split == "train" and GROUPINGS[config.training.groups_by].states


@dataclass(frozen=True)
class MixtureGame:
    """One game of a run: its settings, as in a run on it alone, and its weight in the mixture."""

    config: Config
    weight: float = 1.0


def games_at(config: Config, iteration: int) -> list[MixtureGame]:
    """The games that levels are drawn from in this iteration; one, unless ``Config.games`` names several.

    Raises:
        ValueError: a table of a mixture whose settings do not fit.
    """
    if config.games:
        return [_mixture_game(config, row) for row in config.games]
    if not config.curriculum:
        return [MixtureGame(config)]
    options = config.env_options
    for step in config.curriculum:
        if iteration >= step["iteration"]:
            options = config.env_options | step["env_options"]
    return [MixtureGame(replace(config, env_options=options, curriculum=[]))]


def measured_settings(config: Config) -> list[Config]:
    """The evaluation settings of each game: the run's own first, then the mixture's other games."""
    found = {config.game: config}
    for game in games_at(config, 0):
        found.setdefault(game.config.game, game.config)
    return list(found.values())


def all_settings(config: Config) -> list[Config]:
    """All settings: the run's own, then every game of the mixture and every step of the curriculum."""
    starts = [0, *(step["iteration"] for step in config.curriculum)]
    others = [game.config for start in starts for game in games_at(config, start)]
    plain = replace(config, games=[], curriculum=[])
    return [plain, *(other for other in others if other != plain)]


def draw_games(games: list[MixtureGame], seed: int, iteration: int, count: int, refill: int = 0) -> NDArray[np.int64]:
    """For each of ``count`` levels the index of its game, int64 (count,); ``refill`` as in ``level_seeds``."""
    if len(games) == 1:
        return np.zeros(count, dtype=np.int64)
    weights = np.array([game.weight for game in games])
    rng = np.random.default_rng(derive_seed(seed, SeedStream.GAMES, iteration, *_round(refill)))
    return rng.choice(len(games), size=count, p=weights / weights.sum())


def level_seeds(seed: int, iteration: int, groups: int, refill: int = 0) -> list[int]:
    """The level seed of each group of an iteration, independent of its game.

    ``refill``: 0 for the first levels, else the round of ``Training.refills``, counted from 1.
    """
    rng = np.random.default_rng(derive_seed(seed, SeedStream.LEVELS, iteration, *_round(refill)))
    return [int(level) for level in rng.integers(2**62, size=groups)]


def _round(refill: int) -> tuple[int, ...]:
    """The end of a path of ``derive_seed``: empty for the first levels, as in runs without refills."""
    return (refill,) if refill else ()


def _mixture_game(config: Config, row: dict[str, object]) -> MixtureGame:
    """A row's settings merged into the run's; another game does not inherit the options of the run's own."""
    same = row["game"] == config.game
    settings = {
        "game": row["game"],
        "env_options": row.get("env_options", config.env_options if same else {}),
        "turns": row.get("turns", {}),
        "demonstrations": {"thought": row["thought"]} if "thought" in row else {},
        "games": [],
    }
    weight = row.get("weight", 1.0)
    assert isinstance(weight, int | float)
    return MixtureGame(with_settings(config, settings), float(weight))
