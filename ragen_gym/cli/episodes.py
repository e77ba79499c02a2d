"""Episodes of the reference policies: success rates, pictures, and the conversation of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen_gym.core.console import track
from ragen_gym.core.levels import fnv
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.envs.policies import (
    PlayedEpisode,
    action_budget,
    blind_policy,
    generator_draw,
    oracle_policy,
    plan_moves,
    play_episode,
    play_turns,
    random_policy,
    reply_for,
)
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import make_turn
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.frames import painter_of

_SEEDS_TRIED = 50


def success_rates(spec: GameSpec, chosen: dict[str, Any], levels: int, seed: int = 0) -> dict[str, Rate]:
    """Success of random play (moves drawn uniformly), of the game's blind script and of optimal play.

    They play the first ``levels`` episodes of ``seed``; a game without a blind script has no such rate. All meet the
    same levels and the same transition noise, within the ``action_budget`` of the id. ``chosen`` are arguments of
    ``StepEnv``.
    """
    if levels < 1:
        raise ValueError(f"cannot measure on {levels} levels: give 1 or more.")
    env = StepEnv(spec.name, **chosen)
    policies = {"random": random_policy(generator_draw(np.random.default_rng(seed)))}
    policies |= {"blind": blind_policy} if env.game.blind else {}
    policies["optimal"] = oracle_policy
    rates = {}
    for name, policy in policies.items():
        successes = 0
        for episode in track(range(levels), levels, f"episodes of {name} play", prefix="ragen-gym: "):
            env.reset(seed=seed if episode == 0 else None)
            successes += play_episode(env, policy, action_budget(env)).success
        rates[name] = wilson(successes, levels)
    return rates


@dataclass(frozen=True)
class PicturedEpisode:
    """An episode with its pictures."""

    episode: PlayedEpisode
    boards: int  # number of different boards that it went through
    pictures: tuple[Pixels, ...]  # of the start and after each action, uint8 (height, width, 3); empty if not drawn


def picture_episode(
    spec: GameSpec, chosen: dict[str, Any], seed: int, *, tile_size: int | None = None
) -> PicturedEpisode:
    """The oracle's play of the first episode of a seed, within the id's horizon; ``tile_size=None`` draws nothing."""
    drawing: dict[str, Any] = {} if tile_size is None else {"render_mode": "rgb_array", "tile_size": tile_size}
    env = StepEnv(spec.name, **chosen, **drawing)
    env.reset(seed=seed)
    boards: set[bytes] = set()
    pictures: list[Pixels] = []

    def look() -> None:
        boards.add(env.state[0])
        if drawing:
            pictures.append(env.render())

    look()
    episode = play_episode(env, oracle_policy, action_budget(env), look)
    return PicturedEpisode(episode, len(boards), tuple(pictures))


def showcase_seed(spec: GameSpec, chosen: dict[str, Any]) -> int:
    """A seed whose episode by the oracle is worth showing: a success that pays, on the way past the most boards.

    The search starts at a number made from the name of the id, so that two ids of one game show two levels.
    """
    first = fnv(spec.name) % 1000
    best, most = first, -1
    for seed in range(first, first + _SEEDS_TRIED):
        played = picture_episode(spec, chosen, seed)
        if played.episode.success and played.episode.total > 0 and played.boards > most:
            best, most = seed, played.boards
    return best


def fitting_tile_size(env: StepEnv, side: int) -> int:
    """The tile size with which the longer side of the board comes to about so many pixels."""
    cells = max(env.game.height, env.game.width) * painter_of(env.game).cell
    return int(max(8, min(128, side // cells)))


def conversation(spec: GameSpec, chosen: dict[str, Any], seed: int) -> list[dict[str, str]]:
    """The messages of the first episode of a seed in which the oracle is the assistant.

    In a deterministic game a reply plans as many moves as a turn allows; in a stochastic one it makes one move. The
    budgets are those of ``turn_options``.
    """
    env = make_turn(spec.name, **turn_options(spec, chosen), **chosen)
    env.reset(seed=seed)
    moves = 1 if env.game.stochastic else env.max_actions_per_turn
    return list(play_turns(env, lambda env: reply_for(env, plan_moves(env, moves)))["messages"])


def turn_options(spec: GameSpec, chosen: dict[str, Any]) -> dict[str, Any]:
    """The options of the turns of a ``conversation``: a stochastic game gets a turn for each move of the horizon."""
    one_by_one = StepEnv(spec.name, **chosen).game.stochastic and spec.horizon
    return {"think": False, **({"max_turns": spec.horizon, "max_actions_per_turn": 1} if one_by_one else {})}
