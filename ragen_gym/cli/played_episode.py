"""An episode of a player, as pictures and as the conversation that a language model would have had."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragen_gym.core.levels import fnv
from ragen_gym.envs.reply import SEPARATOR
from ragen_gym.envs.step import StepEnv
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games.registry import GameSpec
from ragen_gym.render.canvas import Pixels
from ragen_gym.render.tile_painters import painter_of

__all__ = [
    "PLAYERS",
    "PlayedEpisode",
    "conversation",
    "fitting_tile_size",
    "play_episode",
    "telling_seed",
    "turn_arguments",
]

PLAYERS = ("oracle", "random")

_UNBOUNDED = 1000
_SEEDS_TRIED = 50


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode.

    Attributes:
        level_id: id of its level.
        actions: what was played.
        total: sum of the rewards.
        success: how it ended.
        boards: number of different boards that it went through.
        pictures: the start and the picture after each action, uint8 (height, width, 3) each; empty if not drawn.
    """

    level_id: str
    actions: tuple[int, ...]
    total: float
    success: bool
    boards: int
    pictures: tuple[Pixels, ...]


def play_episode(
    spec: GameSpec, chosen: dict[str, Any], seed: int, *, player: str = "oracle", tile_size: int | None = None
) -> PlayedEpisode:
    """Play the first episode of a seed, within the id's horizon.

    Args:
        spec: the environment.
        chosen: arguments of `StepEnv`.
        seed: seed of the level, the noise, and the random player.
        player: ``"oracle"`` or ``"random"``.
        tile_size: side of a tile in pixels; None draws nothing.

    Raises:
        ValueError: an unknown player, or bad arguments.
    """
    if player not in PLAYERS:
        raise ValueError(f"player={player!r} is not known: choose one of {', '.join(PLAYERS)}.")
    drawing: dict[str, Any] = {} if tile_size is None else {"render_mode": "rgb_array", "tile_size": tile_size}
    env = StepEnv(spec.name, **chosen, **drawing)
    _, info = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    pictures = [env.render()] if drawing else []
    actions: list[int] = []
    total = 0.0
    boards = {env.state[0]}
    for left in range(spec.horizon or env.game.longest or _UNBOUNDED, 0, -1):
        action = env.oracle_action(left) if player == "oracle" else int(rng.integers(len(env.game.Action)))
        _, reward, terminated, _, info = env.step(action)
        actions.append(action)
        total += reward
        boards.add(env.state[0])
        if drawing:
            pictures.append(env.render())
        if terminated:
            break
    success = bool(info["success"])
    return PlayedEpisode(info["level_id"], tuple(actions), total, success, len(boards), tuple(pictures))


def telling_seed(spec: GameSpec, chosen: dict[str, Any]) -> int:
    """A seed whose episode by the oracle is worth showing: a success that pays, on the way past the most boards.

    The search starts at a number made from the name of the id, so that two ids of one game show two levels.
    """
    first = fnv(spec.name) % 1000
    best, most = first, -1
    for seed in range(first, first + _SEEDS_TRIED):
        episode = play_episode(spec, chosen, seed)
        if episode.success and episode.total > 0 and episode.boards > most:
            best, most = seed, episode.boards
    return best


def fitting_tile_size(env: StepEnv, side: int) -> int:
    """The tile size with which the longer side of the board comes to about so many pixels."""
    cells = max(env.game.height, env.game.width) * painter_of(env.game).cell
    return int(max(8, min(128, side // cells)))


def conversation(spec: GameSpec, chosen: dict[str, Any], seed: int) -> list[dict[str, str]]:
    """The messages of the first episode of a seed in which the oracle is the assistant.

    Where nothing is random a reply plans as many moves as a turn allows; elsewhere it makes one move and looks again.
    The budgets are those of `turn_arguments`.
    """
    env = make_turn(spec.name, **turn_arguments(spec, chosen), **chosen)
    _, info = env.reset(seed=seed)
    over = False
    while not over:
        names = [env.action_names[action] for action in _plan(env)]
        _, _, terminated, truncated, info = env.step(f"<answer>{f' {SEPARATOR} '.join(names)}</answer>")
        over = terminated or truncated
    return list(info["messages"])


def turn_arguments(spec: GameSpec, chosen: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `make_turn` in a `conversation`: what is random gets a turn for each move of the horizon."""
    one_by_one = StepEnv(spec.name, **chosen).game.stochastic and spec.horizon
    return {"think": False, **({"max_turns": spec.horizon, "max_actions_per_turn": 1} if one_by_one else {})}


def _plan(env: TurnEnv) -> list[int]:
    if env.game.stochastic:
        return [env.oracle_action()]
    ahead = copy.deepcopy(env.env)
    actions: list[int] = []
    for left in range(env.actions_left, max(env.actions_left - env.max_actions_per_turn, 0), -1):
        actions.append(ahead.oracle_action(left))
        if ahead.step(actions[-1])[2]:
            break
    return actions
