"""Measurements of other suites: ``python -m benchmarks.speed.peer_tasks PACKAGE``, where that package is installed.

It needs the standard library, numpy and the package, so that it runs in a virtual environment without this suite.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed import rate, report

__all__ = ["PEER_TASKS"]

Rate = tuple[float, float, float]


def envpool_steps(name: str, actions: int, n: int) -> Rate:
    """Random steps of a batch on one thread; a Sokoban level comes from EnvPool's own files."""
    import envpool

    envs = envpool.make_gymnasium(name, num_envs=n, num_threads=1, seed=0)
    moves = np.random.default_rng(0).integers(0, actions, (64, n)).astype(np.int32)
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
        ("envpool lake", "EnvPool's FrozenLake 4x4, batch, integers, one lake", "steps",
         lambda: envpool_steps("FrozenLake-v1", 4, 1024)),
        ("envpool sokoban", "EnvPool's Sokoban 10x10, 4 boxes, batch of 64, pixels of its tiles", "steps",
         lambda: envpool_steps("Sokoban-v0", 9, 64)),
    ),
    "jumanji": (
        ("jumanji sokoban", "Jumanji's Sokoban 10x10, batch, grid, scans of 64 steps, no resets", "steps",
         jumanji_steps),
    ),
}  # fmt: skip


if __name__ == "__main__":
    for task in PEER_TASKS[sys.argv[1]]:
        report(*task)
