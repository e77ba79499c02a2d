"""Gymnasium's view of the games: single moves, a model's whole replies, and batches; here, their registration."""

from __future__ import annotations

import gymnasium

from ragen_gym.games.registry import TABLE, GameSpec, add

__all__ = ["register", "register_all"]


def register(spec: GameSpec) -> None:
    """Add an environment to the suite and register its id with Gymnasium; nothing happens if both know it.

    Raises:
        ValueError: the name is taken by another one.
    """
    add(spec)
    if spec.id in gymnasium.registry:
        return
    gymnasium.register(
        id=spec.id,
        entry_point="ragen_gym.envs.step:StepEnv",
        vector_entry_point="ragen_gym.envs.vector:BatchEnv",
        max_episode_steps=spec.horizon,
        # StepEnv refuses a step before reset or after the end itself, and every id is held to Gymnasium's checks and
        # more by ``ragen_gym.testing.check_env``: two wrappers fewer that every step would go through.
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"name": spec.name},
    )


def register_all() -> None:
    """Register every environment of the table."""
    for spec in TABLE.values():
        register(spec)
