"""Speed of the environments, compared with Gymnasium's and other suites: ``python -m benchmarks.speed``.

Rates are per second of CPU time of one core, medians of several runs. Without ``--only`` everything is measured, other
suites too, and ``speed.json`` and ``speed.md`` are written.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import ragen_gym  # noqa: F401  (registers the ids)
from benchmarks import machine, markdown_table, page_parser, write_results
from benchmarks.speed_peers import PEER_TASKS, rate
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.seeding import episode_keys
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import build_game, find

#: Environments of a batch where nothing else is said.
BATCH = 1024
#: (what to repeat, units of work in one repetition)
Play = tuple[Callable[[int], object], float]

_BIG: dict[str, Any] = {"size": 8, "boxes": 2, "search_depth": 10, "max_episode_steps": 100}
_ACTIONS = 64


class Task(NamedTuple):
    """One measurement."""

    key: str  # name in the results
    title: str  # what it is, for the page
    unit: str  # what is counted
    make: Callable[[], Play]  # builds what is timed
    target: float | None = None  # the least rate that is promised, if any
    peers: tuple[str, ...] = ()  # keys of the measurements to compare with

    @property
    def of_gymnasium(self) -> bool:
        """True if an environment of Gymnasium is measured, as a peer."""
        return self.key.startswith("gymnasium ")


def batch(name: str, n: int = BATCH, **arguments: Any) -> Play:
    """Random steps of a batch."""
    return _steps_of(gymnasium.make_vec(name, n, **arguments), n)


def _steps_of(envs: Any, n: int) -> Play:
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, envs.single_action_space.n, n) for _ in range(_ACTIONS)]
    envs.reset(seed=0)

    def play(count: int) -> None:
        for k in range(count):
            envs.step(actions[k % _ACTIONS])

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
    """Compile now what would be compiled after a second of Python."""
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
_BOX_PEERS = ("jumanji sokoban",)

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

PEERS = Path("runs/speed-peers")  # where other suites are installed
SECONDS = 900  # for installing a suite, and for measuring it

PAGE = """\
# Speed

Written by `python -m benchmarks.speed`, which measures all of this anew. Rates are per second of CPU time of one core
(every thread of a process counts), medians of {runs} runs; the lowest and highest are in `speed.json`. Peers were
timed by the same timer in the same run, each in a virtual environment of its own; some rows were measured anew later
and have the ratios of that run. The cores were shared with other work, so compare the ratios rather
than the digits.

Machine: {machine}.

A batch has 1,024 environments unless something else is said, takes random actions, and makes fresh arrays, observations
and infos at every step; a step in which an environment resets counts as its step. "Fresh" means that every episode has
a level of its own, generated while the clock runs.

## Environments and levels

{ours}

## Others

{others}

## Paid once

{once}
"""

#: Printed: seconds of CPU time from ``make`` to the first step.
FIRST_STEP = """
import time, gymnasium, ragen_gym
before = time.process_time()
env = gymnasium.{make}; env.reset(seed=0); env.step({action})
print(time.process_time() - before)
"""
FIRST_STEPS = {
    "FrozenLake, single": {"make": 'make("ragen/FrozenLake-v0")', "action": "0"},
    "FrozenLake, batch": {"make": 'make_vec("ragen/FrozenLake-v0", 8)', "action": "[0] * 8"},
    "Sokoban, single": {"make": 'make("ragen/Sokoban-v0")', "action": "0"},
    "Sokoban, batch": {"make": 'make_vec("ragen/Sokoban-v0", 8)', "action": "[0] * 8"},
    "Bandit, single": {"make": 'make("ragen/Bandit-v0")', "action": "0"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the page of everything."""
    parser = page_parser("speed", __doc__)
    parser.add_argument("--only", metavar="WORDS", help="the measurements with these words in their key; no page")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="runs of each (default 7)")
    parser.add_argument("--seconds", type=float, default=0.5, metavar="S", help="CPU time of a run (default 0.5)")
    options = parser.parse_args(argv)
    keys = [task.key for task in TASKS if (options.only or "").lower() in task.key]
    if not keys:
        parser.error(
            f"--only {options.only}: no measurement's key has that; they are {', '.join(t.key for t in TASKS)}."
        )
    about = machine("numpy", "numba", "gymnasium")
    print(f"{about}\n", flush=True)
    rates = measured(keys, options.runs, options.seconds)
    if options.only is None:
        skipped = []
        for row in (row for package in PEER_TASKS for row in measured_peer(package)):
            if "skipped" in row:
                skipped.append(row)
                print(f"{row['title']}: skipped: {row['skipped']}")
            else:
                rates[row["key"]] = row | _named(row["rate"])
                _print(rates[row["key"]])
        first = {title: dict(first_step(**call)) for title, call in FIRST_STEPS.items()}
        results = {"machine": about, "runs": options.runs, "rates": rates, "skipped": skipped, "first": first}
        write_results(options.out, "speed", results, _page(results))
    return 0


def measured(keys: Sequence[str], runs: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Results of these tasks by key, Gymnasium's first and each after the tasks that it is compared with."""
    known, rates = {task.key: task for task in TASKS}, dict[str, dict[str, Any]]()
    wanted = dict.fromkeys(key for name in keys for key in (*known[name].peers, name) if key in known)
    for task in sorted((known[key] for key in wanted), key=lambda task: not task.of_gymnasium):
        package = f"gymnasium {version('gymnasium')}" if task.of_gymnasium else ""
        about = {"title": task.title, "unit": task.unit, "target": task.target, "package": package}
        rates[task.key] = about | _named(rate(*task.make(), runs, seconds))
        _print(rates[task.key])
        for peer, times in ratios(task, rates).items():
            print(f"  {number(times)} times {rates[peer]['title']}", flush=True)
    return rates


def _named(found: Sequence[float]) -> dict[str, float]:
    return dict(zip(("rate", "lowest", "highest"), found, strict=True))


def ratios(task: Task, rates: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ratios of a task's rate to those of its measured peers, by the peer's key."""
    row = rates[task.key]
    if "times" in row:  # of a run of its own
        return dict(row["times"])
    return {peer: row["rate"] / rates[peer]["rate"] for peer in task.peers if peer in rates}


def number(value: float) -> str:
    """Three digits and a unit: 34.6M, 560k, 18.3k, 0.42."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _print(row: dict[str, Any]) -> None:
    low, high = number(row["lowest"]), number(row["highest"])
    print(f"{row['title']}\n  {number(row['rate'])} {row['unit']}/s  ({low} to {high})", flush=True)


def first_step(make: str, action: str) -> list[tuple[str, float]]:
    """Seconds of CPU time from ``make`` to the first step, with nothing compiled (cold) and with what that compiled."""
    with tempfile.TemporaryDirectory() as cache:
        environment = child_environment() | {"NUMBA_CACHE_DIR": cache}
        program = child_python("-c", FIRST_STEP.format(make=make, action=action))
        return [(state, float(_output(program, environment))) for state in ("cold", "warm")]


def measured_peer(package: str) -> list[dict[str, Any]]:
    """Results of a package of ``PEER_TASKS``, installed unless it is there; ``"skipped"`` says why there are none."""
    home = (PEERS / package).resolve()
    python = str(home / "bin" / "python")
    environment = child_environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    try:
        if not (home / "installed").exists():
            _output(child_python("-m", "venv", "--clear", str(home)), environment)
            _output([python, "-P", "-m", "pip", "install", "-q", package, "numpy"], environment)
            (home / "installed").touch()
        lines = _output([python, "-W", "ignore", "-P", "-m", "benchmarks.speed_peers", package], environment)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        return [{"title": package, "skipped": reason[:160]}]
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def _output(command: Sequence[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def _page(results: dict[str, Any]) -> str:
    rates, ours, others = results["rates"], [], []
    for task in (task for task in TASKS if task.key in rates and not task.of_gymnasium):
        row = rates[task.key]
        against = [f"{number(times)} times {rates[peer]['title']}" for peer, times in ratios(task, rates).items()]
        target = number(task.target) if task.target else ""
        ours.append([row["title"], f"{number(row['rate'])} {row['unit']}", target, "; ".join(against)])
    for row in (row for row in rates.values() if row["package"]):
        others.append([row["title"], f"{number(row['rate'])} {row['unit']}", row["package"]])
    others += [[row["title"], f"skipped: {row['skipped']}", ""] for row in results["skipped"]]
    once = [[what, f"{each['cold']:.2f} s", f"{each['warm']:.2f} s"] for what, each in results["first"].items()]
    return PAGE.format(
        runs=results["runs"],
        machine=results["machine"],
        ours=markdown_table(["what", "per second", "target", "against"], ours),
        others=markdown_table(["what", "per second", "version"], others),
        once=markdown_table(["from `make` to the first step", "nothing compiled yet", "compiled before"], once),
    )


if __name__ == "__main__":
    raise SystemExit(main())
