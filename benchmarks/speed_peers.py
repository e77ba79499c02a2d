"""The timer of all measurements of speed, and the tasks of other suites: ``python -m benchmarks.speed_peers PACKAGE``.

It needs the standard library, numpy and the package, so that it runs in a virtual environment without this suite.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

Rate = tuple[float, float, float]


def rate(play: Callable[[int], object], work: float, runs: int = 7, seconds: float = 0.4) -> Rate:
    """Units of work in a second of CPU time: (median, lowest, highest) of ``runs`` runs.

    CPU time counts every thread of the process, so that a peer that uses several cores is not credited for them, and a
    neighbour on a shared machine disturbs less than it would disturb a clock on the wall.

    Args:
        play: ``play(k)`` does a piece of work k times.
        work: units in one piece.
        runs: runs to take the median of.
        seconds: the least CPU time of a run; long enough to hold many refills of a pool of levels.
    """
    play(1)
    count = 1
    while (spent := _spent(play, count)) < seconds:
        count = max(2 * count, int(1.1 * count * seconds / max(spent, 1e-6))) if spent > seconds / 20 else 4 * count
    rates = [count * work / _spent(play, count) for _ in range(runs)]
    return statistics.median(rates), min(rates), max(rates)


def _spent(play: Callable[[int], object], count: int) -> float:
    before = time.process_time()
    play(count)
    return time.process_time() - before


def report(package: str, key: str, title: str, unit: str, measure: Callable[[], Rate]) -> None:
    """Print what was measured, or why it could not be, as a line of JSON."""
    said: dict[str, object] = {"key": key, "title": title, "unit": unit}
    try:
        said |= {"rate": measure(), "package": f"{package} {version(package)}"}
    except Exception as error:  # a peer may fail in any way, and the others are measured all the same
        said["skipped"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    print(json.dumps(said), flush=True)


def envpool_steps(n: int = 1024) -> Rate:
    """Random steps of a batch on one thread."""
    import envpool

    envs = envpool.make_gymnasium("FrozenLake-v1", num_envs=n, num_threads=1, seed=0)
    moves = np.random.default_rng(0).integers(0, 4, (64, n)).astype(np.int32)
    envs.reset()

    def play(count: int) -> None:
        for k in range(count):
            envs.step(moves[k % 64])

    return rate(play, n)


def jumanji_steps(envs: int = 1024, steps: int = 64) -> Rate:
    """A compiled scan of random steps on toy levels (its level files are downloads), without the slow resets."""
    import jax
    import jax.numpy as jnp
    import jumanji
    from jumanji.environments.routing.sokoban.generator import ToyGenerator

    env = jumanji.environments.Sokoban(generator=ToyGenerator())
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.PRNGKey(0), envs))
    actions = jax.random.randint(jax.random.PRNGKey(1), (steps, envs), 0, 4)

    @jax.jit
    def many(states: Any) -> Any:
        def one(states: Any, actions: Any) -> Any:
            states, timestep = jax.vmap(env.step)(states, actions)
            return states, jnp.sum(timestep.reward) + jnp.sum(timestep.observation.grid)

        return jax.lax.scan(one, states, actions)

    def play(count: int) -> None:
        nonlocal states
        for _ in range(count):
            states, _ = many(states)
        jax.block_until_ready(states)

    return rate(play, envs * steps)


#: By package: key, title, unit and measurement of each task.
PEER_TASKS: dict[str, tuple[tuple[str, str, str, Callable[[], Rate]], ...]] = {
    "envpool": (
        ("envpool lake", "EnvPool's FrozenLake 4x4, batch, integers, one lake", "steps", envpool_steps),
    ),
    "jumanji": (
        ("jumanji sokoban", "Jumanji's Sokoban 10x10, batch, grid, scans of 64 steps, no resets", "steps",
         jumanji_steps),
    ),
}  # fmt: skip


if __name__ == "__main__":
    for task in PEER_TASKS[sys.argv[1]]:
        report(sys.argv[1], *task)
