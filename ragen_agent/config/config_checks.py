"""Cross-field validation of the run configuration; ``training_checks`` validates ``training``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ragen_agent.config.algorithms import GROUPINGS
from ragen_gym.core.validation import shown

if TYPE_CHECKING:
    from ragen_agent.config.settings import Config

__all__ = ["check_config"]


def check_config(config: Config) -> None:
    """Raise a ValueError if settings contradict each other, or a table of games or a curriculum is invalid."""
    _check_games(config)
    _check_curriculum(config)
    _check_overlong(config)
    _check_program(config)
    for name in ("loss_tokens", "advantage_tokens"):
        if getattr(config.training, name) == "reasoning" and not config.turns.think:
            raise ValueError(
                f"training.{name} is 'reasoning', but with turns.think=false replies hold none; use all or answer, "
                "or turns.think=true."
            )


def _check_games(config: Config) -> None:
    kinds: dict[str, Any] = {"game": str, "weight": (int, float), "env_options": dict, "turns": dict, "thought": str}
    for row in config.games:
        if "game" not in row or not all(isinstance(value, kinds.get(name, ())) for name, value in row.items()):
            raise ValueError(
                f'games holds {row!r}; give tables with {", ".join(kinds)}, such as {{game = "Sokoban", weight = 2.0}}.'
            )
        if not 0 < row.get("weight", 1.0) <= sys.float_info.max:
            weight = shown(row["weight"])
            raise ValueError(
                f"games gives {row['game']} the weight {weight}; it must be above 0, and fit into a float."
            )
        _check_chat(config, row)
    if not sum(float(row.get("weight", 1.0)) for row in config.games) <= sys.float_info.max:
        raise ValueError("the weights of games sum to more than fits into a float; make them smaller, such as 2.0.")


def _check_chat(config: Config, row: dict[str, Any]) -> None:
    """Check that one ``ChatFormat`` fits the turns of all games."""
    chosen = ("keep_thinking", "template_options", "prompt", "think")
    turns = row.get("turns", {})
    theirs = type(config.turns)(**{name: turns.get(name, getattr(config.turns, name)) for name in chosen})
    for name in ("keep_thinking", "template_options", "reply_opening"):
        own, other = getattr(config.turns, name), getattr(theirs, name)
        if own != other:
            raise ValueError(
                f"games gives {row['game']} turns whose {name} is {other!r}, and the run's is {own!r}, but the replies "
                f"of all games are written in one way; choose {', '.join(chosen)} in turns, for all of them."
            )


def _check_program(config: Config) -> None:
    if not config.program.command:
        return
    if config.turns.sees or config.turns.history != -1:
        raise ValueError(
            "program.command: a program is sent text alone and chooses what it shows the model; leave "
            "turns.observation=text and turns.history=-1."
        )
    if GROUPINGS[config.training.groups_by].branches:
        raise ValueError(
            f"program.command: training.groups_by={config.training.groups_by} begins episodes in the middle, where "
            "no program can; use training.groups_by=level or state."
        )


def _check_overlong(config: Config) -> None:
    buffer, limit = config.training.overlong_buffer, config.turns.max_tokens_per_turn
    if buffer > limit:
        raise ValueError(
            f"training.overlong_buffer is {buffer}; it must be at most turns.max_tokens_per_turn, {limit}."
        )
    for row in config.games if buffer else ():
        if row.get("turns", {}).get("max_tokens_per_turn", limit) != limit:
            raise ValueError(
                f"training.overlong_buffer is {buffer}, before one limit of all games, but games gives "
                f"{row['game']} its own turns.max_tokens_per_turn; leave that out, or use overlong_buffer=0."
            )


def _check_curriculum(config: Config) -> None:
    if config.games and config.curriculum:
        raise ValueError("curriculum changes one game's env_options; with games give each game its own instead.")
    begins = -1
    for row in config.curriculum:
        fits = set(row) == {"iteration", "env_options"} and isinstance(row["env_options"], dict)
        if not fits or type(row["iteration"]) is not int or row["iteration"] <= begins:
            raise ValueError(
                f"curriculum holds {row!r}; give tables {{iteration, env_options}} with ascending iterations, such "
                "as {iteration = 20, env_options = {size = 5}}."
            )
        begins = row["iteration"]
