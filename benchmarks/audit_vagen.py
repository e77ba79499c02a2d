"""VAGEN's legacy branch as targets of the audit: its environments, and the seeds that its data sets are made of.

``create_dataset`` of that branch calls ``generate_seeds(train_size)`` and then ``generate_seeds(test_size)``; so does
this module, with fewer candidates. It is imported where that branch can be.
"""

from __future__ import annotations

from typing import Any

_OPTIONS = {"render_mode": "text", "prompt_format": "free_think"}
_CANDIDATES = 300


def frozen_lake() -> Any:
    """Its FrozenLake, in text."""
    from vagen.env.frozenlake import FrozenLakeEnv, FrozenLakeEnvConfig  # type: ignore[import-not-found]

    return FrozenLakeEnv(FrozenLakeEnvConfig(**_OPTIONS))


def sokoban() -> Any:
    """Its Sokoban, in text."""
    from vagen.env.sokoban import SokobanEnv, SokobanEnvConfig  # type: ignore[import-not-found]

    return SokobanEnv(SokobanEnvConfig(**_OPTIONS))


def _seeds(size: int) -> list[int]:
    from vagen.env.sokoban import SokobanEnvConfig

    return list(SokobanEnvConfig(**_OPTIONS).generate_seeds(size, n_candidate=_CANDIDATES))


def train_seeds() -> list[int]:
    """As for its training set."""
    return _seeds(100)


def test_seeds() -> list[int]:
    """As for its test set."""
    return _seeds(32)
