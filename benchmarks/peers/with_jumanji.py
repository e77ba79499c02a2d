"""Jumanji: environments in JAX; a compiled scan of 64 steps over 1,024 environments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jumanji
from jumanji.environments.routing.sokoban.generator import ToyGenerator
from timer import rate, report

ENVS, STEPS = 1024, 64


def steps() -> tuple[float, float, float]:
    """Random steps of Sokoban on toy levels, as its level files are downloads; without resets, which cost it most."""
    env = jumanji.environments.Sokoban(generator=ToyGenerator())
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.PRNGKey(0), ENVS))
    actions = jax.random.randint(jax.random.PRNGKey(1), (STEPS, ENVS), 0, 4)

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

    return rate(play, ENVS * STEPS)


report("jumanji sokoban", "Jumanji's Sokoban 10x10, batch, grid, scans of 64 steps, no resets", "steps", steps)
