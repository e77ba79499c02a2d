"""What is measured of this suite and, in the same process, of Gymnasium. Every task is a row of `TASKS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import ragen_gym  # noqa: F401  (registers the ids)
from ragen_gym.core.seeding import episode_keys
from ragen_gym.games.registry import build_game, find

__all__ = ["BATCH", "GROWTH", "SIZES", "TASKS", "Play", "Task", "batch"]

#: Environments of a batch where nothing else is said.
BATCH = 1024
#: Numbers of environments and sides of the board whose growth is reported.
GROWTH = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
SIZES = (4, 8, 16, 32, 64)

#: (what to repeat, units of work in one repetition)
Play = tuple[Callable[[int], object], float]

_BIG: dict[str, Any] = {"size": 8, "boxes": 2, "search_depth": 10, "max_episode_steps": 100}
_ACTIONS = 64


@dataclass(frozen=True)
class Task:
    """One measurement."""

    key: str  # name in the results
    title: str  # what it is, for the page
    unit: str  # what is counted
    make: Callable[[], Play]  # builds what is timed
    target: float | None = None  # the least rate that is promised, if any
    peers: tuple[str, ...] = field(default=())  # keys of the measurements to compare with

    @property
    def of_gymnasium(self) -> bool:
        """Whether an environment of Gymnasium is measured, as a peer."""
        return self.key.startswith("gymnasium ")


def batch(name: str, n: int = BATCH, read: tuple[str, ...] = (), **arguments: Any) -> Play:
    """Random steps of a batch; the infos named in ``read`` are read at each."""
    return _steps_of(gymnasium.make_vec(name, n, **arguments), n, read)


def _steps_of(envs: Any, n: int, read: tuple[str, ...] = ()) -> Play:
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, envs.single_action_space.n, n) for _ in range(_ACTIONS)]
    envs.reset(seed=0)

    def play(count: int) -> None:
        for k in range(count):
            infos = envs.step(actions[k % _ACTIONS])[4]
            for key in read:
                infos[key]

    return play, n


def _single(name: str, **arguments: Any) -> Play:
    """Random steps of a single environment, as `gymnasium.make` wraps it; a new level for each episode."""
    env = gymnasium.make(name, **arguments)
    actions = np.random.default_rng(0).integers(0, int(env.action_space.n), 4096).tolist()  # type: ignore[attr-defined]
    env.reset(seed=0)

    def play(count: int) -> None:
        step, reset = env.step, env.reset
        for _ in range(count):
            for action in actions:
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    reset()

    return play, len(actions)


def _levels(name: str, block: int = 512, split: str | None = None, **knobs: Any) -> Play:
    """Levels from generator keys, a block at a time."""
    game = build_game(find(name), knobs)

    def play(count: int) -> None:
        for k in range(count):
            game.generate(episode_keys(k, 0, block), split)

    return play, block


def _sokoban_pool(**arguments: Any) -> Play:
    """A batch that draws from 4,096 levels made beforehand."""
    knobs = {knob: value for knob, value in _BIG.items() if knob != "max_episode_steps"}
    game = build_game(find("Sokoban"), knobs)
    levels = [game.own_text(board.tobytes()) for board in game.generate(episode_keys(1, 0, 4096), None)]
    return batch("ragen/Sokoban-v0", levels=levels, **_BIG, **arguments)


def _gymnasium_loop(name: str, n: int, **arguments: Any) -> Play:
    return _steps_of(gymnasium.make_vec(name, n, vectorization_mode="sync", **arguments), n)


def _gymnasium_maps() -> Play:
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    def play(count: int) -> None:
        for seed in range(count):
            generate_random_map(4, seed=seed)

    return play, 1


LAKE, BOXES, LAKES = "ragen/FrozenLake-v0", "ragen/Sokoban-v0", "levels"
_LAKE_PEERS = ("gymnasium lake loop", "envpool lake")
_BOX_PEERS = ("jumanji sokoban", "envpool sokoban")

TASKS: tuple[Task, ...] = (
    Task("lake grid", "FrozenLake 4x4, batch, fresh lakes, grid", "steps",
         lambda: batch(LAKE, observation="grid"), 50e6, _LAKE_PEERS),
    Task("lake text", "FrozenLake 4x4, batch, fresh lakes, text", "steps",
         lambda: batch(LAKE), 8e6, _LAKE_PEERS),
    Task("lake grid masks", "the same as grid, action masks and level ids read at every step", "steps",
         lambda: batch(LAKE, observation="grid", read=("action_mask", "level_id"))),
    Task("lake grid train", "the same as grid, lakes of the train split", "steps",
         lambda: batch(LAKE, observation="grid", split="train")),
    Task("lake grid same step", "the same as grid, autoreset in the same step", "steps",
         lambda: batch(LAKE, observation="grid", autoreset_mode="SameStep")),
    Task("boxes grid", "Sokoban 8x8, 2 boxes, batch, levels from a pool of 4,096, grid", "steps",
         lambda: _sokoban_pool(observation="grid"), 60e6, _BOX_PEERS),
    Task("boxes text", "Sokoban 8x8, 2 boxes, batch, levels from a pool of 4,096, text", "steps",
         _sokoban_pool, 5e6, _BOX_PEERS),
    Task("boxes fresh", "Sokoban 8x8, 2 boxes, batch, fresh levels, grid", "steps",
         lambda: batch(BOXES, observation="grid", **_BIG)),
    Task("bandit text", "Bandit, batch, text", "steps", lambda: batch("ragen/Bandit-v0")),
    Task("lake pixels", "FrozenLake 4x4, batch of 256, pictures with tiles of 16 pixels", "frames",
         lambda: batch(LAKE, 256, observation="rgb", tile_size=16)),
    Task("lake single", "FrozenLake 4x4, single, `gymnasium.make`, text, fresh lakes", "steps",
         lambda: _single(LAKE), 0.8e6, ("gymnasium lake", "textarena lake")),
    Task("boxes single", "Sokoban 6x6, single, `gymnasium.make`, text, fresh levels", "steps",
         lambda: _single(BOXES), 0.8e6, ("gymnasium lake", "gem sokoban", "textarena sokoban")),
    Task("bandit single", "Bandit, single, `gymnasium.make`, text", "steps", lambda: _single("ragen/Bandit-v0")),
    Task("lakes", "lakes 4x4", LAKES, lambda: _levels("FrozenLake", 4096), None, ("gymnasium maps",)),
    Task("lakes train", "lakes 4x4 of the train split", LAKES, lambda: _levels("FrozenLake", 4096, "train")),
    Task("rooms 6x6", "Sokoban 6x6, 1 box, reverse play with search", LAKES, lambda: _levels("Sokoban"), 100e3,
         ("gem levels",)),
    Task("rooms 8x8", "Sokoban 8x8, 2 boxes, reverse play with search", LAKES,
         lambda: _levels("LargeSokoban"), 40e3),
    Task("walks 8x8", "Sokoban 8x8, 2 boxes, reverse walk with an optimal solution", LAKES,
         lambda: _levels("LargeSokoban", generator="reverse_walk", max_moves=10_000), 40e3, ("gym-sokoban levels",)),
    Task("gymnasium lake", "Gymnasium's FrozenLake 4x4, single, `gymnasium.make`, integer, one lake", "steps",
         lambda: _single("FrozenLake-v1")),
    Task("gymnasium lake loop", "Gymnasium's FrozenLake 4x4, SyncVectorEnv of 64, integers, one lake", "steps",
         lambda: _gymnasium_loop("FrozenLake-v1", 64)),
    Task("gymnasium maps", "Gymnasium's random 4x4 maps", LAKES, _gymnasium_maps),
    Task("lake in gymnasium's loop", "our single FrozenLake in Gymnasium's SyncVectorEnv of 64, text", "steps",
         lambda: _gymnasium_loop(LAKE, 64)),
)  # fmt: skip
