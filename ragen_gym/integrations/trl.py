"""The games in TRL's ``GRPOTrainer`` (1.16) behind a tool; ``trl_rollout`` has whole conversations instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

from ragen_gym.envs.turn import TurnEnv
from ragen_gym.integrations.rollout import METRICS, Rollout, noise_seed_of, rows

_EPISODES = count()
_TASK = "Play with the tool until the episode is over.\n"


def unused_noise_seed() -> int:
    """Another one for each episode of a run, in whichever of its processes."""
    return noise_seed_of(f"{os.environ.get('RANK', '0')} {next(_EPISODES)}")


def tool_rows(game: str, count: int, /, **options: Any) -> Iterator[dict[str, Any]]:
    """Rows as ``ragen_gym.integrations.rows`` gives them, whose prompt leaves the board to ``reset``."""
    for row in rows(game, count, **options):
        yield {**row, "prompt": [row["prompt"][0], {"role": "user", "content": _TASK}]}


def environment_factory(game: str, /, **options: Any) -> type[Any]:
    """Argument for ``GRPOTrainer(environment_factory=…)``; its reward is logged under the game's name.

    ``reset`` takes the row's ``seed``, and its ``split`` where it has one, and returns the board; ``play`` is the tool;
    ``get_reward`` is the return. The members of a group share the seed and differ in the transition noise. Arguments as
    of ``Rollout``.

    Raises:
        ValueError: a text task, or see ``Rollout``; at ``reset``, the seed does not give the row's ``level_id``.
    """

    class Environment:
        def __init__(self) -> None:
            self._rollout_of = cache(lambda split: Rollout(game, **{"think": False, **options, "split": split}))
            self._rollout = self._rollout_of(options.get("split", "train"))

        def reset(self, seed: int | None = None, **columns: Any) -> str:
            if "split" in columns:
                self._rollout = self._rollout_of(columns["split"])
            self._rollout.begin(seed, unused_noise_seed())
            if columns.get("level_id") not in (None, self._rollout.level_id):
                raise ValueError(
                    f"seed {seed} gives level {self._rollout.level_id}, the row says {columns['level_id']}: were the "
                    "rows written with other options of the game?"
                )
            return self._view()

        def play(self, moves: str) -> str:
            """Play one or more moves.

            Args:
                moves: The names of the moves, in order, with || between them.
            """
            self._rollout.reply(f"<answer>{moves}</answer>")
            return self._view()

        def get_reward(self) -> float:
            return self._rollout.total

        def _metrics(self) -> dict[str, float]:
            return self._rollout.metrics()

        def _view(self) -> str:
            env: Any = self._rollout.env
            return f"{env.board}\n" + ("The episode is over." if env.over else f"Actions left: {env.actions_left}.")

    env = Rollout(game, **options).env
    if not isinstance(env, TurnEnv):
        raise ValueError(
            f"{game} is a text task, which has no moves for a tool: use ragen_gym.integrations.trl_rollout."
        )
    return type(env.name, (Environment,), {"__doc__": Environment.__doc__})


def game_metrics(environments: list[Any], log_metric: Callable[[str, float], None], **_: Any) -> list[None]:
    """Logs the metrics of tool episodes and rewards nothing: ``GRPOTrainer(reward_funcs=[game_metrics])``."""
    for name in METRICS:
        log_metric(f"game/{name}", sum(each._metrics()[name] for each in environments) / len(environments))
    return [None] * len(environments)
