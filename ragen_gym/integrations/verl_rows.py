"""Rows of data sets for verl, for the agent loop ``ragen_gym.integrations.verl.GameLoop``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ragen_gym.integrations.rollout import rows

__all__ = ["verl_rows"]


def verl_rows(game: str, count: int, agent: str, /, **options: Any) -> Iterator[dict[str, Any]]:
    """Rows as verl reads them from JSON lines or Parquet files, one for each seed.

    Args:
        game: see ``ragen_gym.integrations.rows``.
        count: of rows.
        agent: name of the agent loop, as in verl's file of agent loops.
        options: ``split``, ``first_seed`` and further arguments of ``rows``.
    """
    for index, row in enumerate(rows(game, count, **options)):
        level = {name: row[name] for name in ("game", "split", "seed", "level_id")}
        yield {
            "data_source": f"{game}/{row['split'] or 'all'}",  # verl logs the validation by it
            "agent_name": agent,
            "prompt": row["prompt"],
            "ability": "game",
            "reward_model": {"style": "rule", "ground_truth": row["level_id"]},
            "extra_info": {"index": index, **level},
        }
