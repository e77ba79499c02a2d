"""Measurements: rates of our tasks and of other suites, and the time to a first step."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import ragen_gym  # noqa: F401  (registers the ids)
from benchmarks.speed import rate
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.seeding import episode_keys
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import build_game, find

__all__ = ["PEERS", "TASKS", "Task"]

#: Environments of a batch where nothing else is said.
BATCH = 1024
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
        """True if an environment of Gymnasium is measured, as a peer."""
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
    """Random steps of a single environment, as ``gymnasium.make`` wraps it; a new level for each episode."""
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


def _levels(name: str, block: int = 512, split: str | None = None, **options: Any) -> Play:
    """Levels from generator keys, a block at a time."""
    game = build_game(find(name), options)

    def play(count: int) -> None:
        for k in range(count):
            game.generate(episode_keys(k, 0, block), split)

    return play, block


def _sokoban_pool(**arguments: Any) -> Play:
    """A batch that draws from 4,096 levels made beforehand."""
    options = {name: value for name, value in _BIG.items() if name != "max_episode_steps"}
    game = build_game(find("Sokoban"), options)
    levels = [game.own_text(board.tobytes()) for board in game.generate(episode_keys(1, 0, 4096), None)]
    return batch("ragen/Sokoban-v0", levels=levels, **_BIG, **arguments)


def _ready(play: Play) -> Play:
    """What is compiled after a second of Python, compiled before it is measured."""
    with compiling():
        play[0](1)
    return play


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
    Task("lake grid train", "the same as grid, lakes of the train split", "steps",
         lambda: batch(LAKE, observation="grid", split="train")),
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
         lambda: _single(LAKE), 0.8e6, ("gymnasium lake",)),
    Task("boxes single", "Sokoban 6x6, single, `gymnasium.make`, text, fresh levels", "steps",
         lambda: _single(BOXES), 0.8e6, ("gymnasium lake",)),
    Task("bandit single", "Bandit, single, `gymnasium.make`, text", "steps", lambda: _single("ragen/Bandit-v0")),
    Task("regret single", "FrozenLake 4x4, single, text, fresh lakes, `regret=True`", "steps",
         lambda: _ready(_single(LAKE, regret=True)), None, ("lake single",)),
    Task("regret boxes", "Sokoban 6x6, single, text, fresh levels, `regret=True`", "steps",
         lambda: _ready(_single(BOXES, regret=True)), None, ("boxes single",)),
    Task("lakes", "lakes 4x4", LAKES, lambda: _levels("FrozenLake", 4096), None, ("gymnasium maps",)),
    Task("lakes train", "lakes 4x4 of the train split", LAKES, lambda: _levels("FrozenLake", 4096, "train")),
    Task("rooms 6x6", "Sokoban 6x6, 1 box, reverse play with search", LAKES, lambda: _levels("Sokoban"), 100e3),
    Task("rooms 8x8", "Sokoban 8x8, 2 boxes, reverse play with search", LAKES,
         lambda: _levels("LargeSokoban"), 40e3),
    Task("walks 8x8", "Sokoban 8x8, 2 boxes, reverse walk with an optimal solution", LAKES,
         lambda: _levels("LargeSokoban", generator="reverse_walk", max_moves=10_000), 40e3),
    Task("gymnasium lake", "Gymnasium's FrozenLake 4x4, single, `gymnasium.make`, integer, one lake", "steps",
         lambda: _single("FrozenLake-v1")),
    Task("gymnasium lake loop", "Gymnasium's FrozenLake 4x4, SyncVectorEnv of 64, integers, one lake", "steps",
         lambda: _gymnasium_loop("FrozenLake-v1", 64)),
    Task("gymnasium maps", "Gymnasium's random 4x4 maps", LAKES, _gymnasium_maps),
)  # fmt: skip


#: Other suites, each measured in a virtual environment of its own by ``benchmarks.speed.peer_tasks``.
PEERS = ("envpool", "jumanji")

_FIRST = """
import time, gymnasium, ragen_gym
before = time.process_time()
env = gymnasium.{make}; env.reset(seed=0); env.step({action})
print(time.process_time() - before)
"""


def measured(tasks: Iterable[Task], runs: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Result of each task, as soon as it is there: a dictionary with key, title, unit, rate, lowest and highest.

    The median of ``runs`` counts, each of so many seconds of CPU time at least.
    """
    for task in tasks:
        package = f"gymnasium {version('gymnasium')}" if task.of_gymnasium else ""
        known = {"key": task.key, "title": task.title, "unit": task.unit, "target": task.target, "package": package}
        yield known | row_of(rate(*task.make(), runs, seconds))


def row_of(found: tuple[float, float, float]) -> dict[str, float]:
    """The three numbers of ``rate`` by their names."""
    median, lowest, highest = found
    return {"rate": median, "lowest": lowest, "highest": highest}


def ratios(task: Task, rates: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ratios of a task's rate to those of its measured peers, by the peer's key."""
    mine = rates[task.key]["rate"]
    if "times" in rates[task.key]:  # of a run of its own
        times: dict[str, float] = rates[task.key]["times"]
        return times
    return {peer: mine / rates[peer]["rate"] for peer in task.peers if peer in rates}


def first_resets() -> dict[str, dict[str, float]]:
    """Seconds of CPU time from ``make`` to the first step: with nothing compiled yet, and with what that compiled."""
    found: dict[str, dict[str, float]] = {}
    for title, make, action in (
        ("FrozenLake, single", 'make("ragen/FrozenLake-v0")', "0"),
        ("FrozenLake, batch", 'make_vec("ragen/FrozenLake-v0", 8)', "[0] * 8"),
        ("Sokoban, single", 'make("ragen/Sokoban-v0")', "0"),
        ("Sokoban, batch", 'make_vec("ragen/Sokoban-v0", 8)', "[0] * 8"),
        ("Bandit, single", 'make("ragen/Bandit-v0")', "0"),
    ):
        with tempfile.TemporaryDirectory() as cache:
            program = _FIRST.format(make=make, action=action)
            cold, warm = (_run(program, NUMBA_CACHE_DIR=cache) for _ in range(2))
        found[title] = {"cold": cold, "warm": warm}
    return found


def _run(program: str, **environment: str) -> float:
    done = subprocess.run(
        child_python("-c", program), env=child_environment() | environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def measure_peer(package: str, cache: Path, seconds: float = 900) -> list[dict[str, Any]]:
    """Install a package of ``PEERS`` under ``cache``, unless it is there: a dictionary for each measurement of it.

    One that cannot be installed or run gives one dictionary, whose ``"skipped"`` says why.
    """
    home = cache / package
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        if not (home / "installed").exists():
            _call(child_python("-m", "venv", "--clear", str(home)), seconds)
            _call([str(python), "-P", "-m", "pip", "install", "-q", package, "numpy"], seconds)
            (home / "installed").touch()
        program = f"from importlib.metadata import version; print(version({package!r}))"
        version = _call([str(python), "-P", "-c", program], seconds).strip()
        tasks = [str(python), "-W", "ignore", "-P", "-m", "benchmarks.speed.peer_tasks", package]
        output = _call(tasks, seconds, PYTHONPATH=str(Path(__file__).parents[2]))
    except (OSError, subprocess.SubprocessError) as error:
        return [{"key": package, "title": package, "unit": "", "skipped": _reason(error)}]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [{**line, "package": f"{package} {version}"} for line in lines]


def _call(command: list[str], seconds: float, **environment: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=seconds).stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"took more than {error.timeout:.0f} seconds"
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "error" in line.lower()), "it failed without a message")[:160]
    return type(error).__name__
