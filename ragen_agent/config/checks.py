"""The ranges of all settings, as tables: a run with a setting out of range never begins.

Whether there is such a game or knob is the games' own matter (`ragen_agent.training.tasks.make_env`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from ragen_agent.config.rules import (
    ADVANTAGE_RULES,
    AGGREGATIONS,
    CREDITS,
    FILTER_RULES,
    FORMAT_REWARDS,
    KL_ESTIMATES,
    TOKEN_PARTS,
)

if TYPE_CHECKING:
    from ragen_agent.config import Config, Training

__all__ = ["CHOICES", "check"]

#: What a setting may be; where the empty text is allowed it means: as training.starpo_s says.
CHOICES = {
    "training.algo": tuple(ADVANTAGE_RULES),
    "training.filter": ("", *FILTER_RULES),
    "training.filter_by": ("reward", "entropy", "length"),
    "training.filter_statistic": ("std", "variance"),
    "training.clip": ("", "symmetric", "higher"),
    "training.aggregation": tuple(AGGREGATIONS),
    "training.kl_kind": ("", "none", *KL_ESTIMATES),
    "training.kl_place": ("reward", "loss"),
    "training.credit": tuple(CREDITS),
    "training.loss_tokens": tuple(TOKEN_PARTS),
    "training.advantage_tokens": tuple(TOKEN_PARTS),
    "training.format_reward": tuple(FORMAT_REWARDS),
    "dtype": ("auto", "float32", "bfloat16"),
    "evaluation.split": ("train", "validation", "test"),
}

#: The least value of a setting.
LEAST = {
    "seed": 0,
    "threads": 1,
    "training.iterations": 0,
    "training.groups": 1,
    "training.members": 1,
    "training.minibatch": 1,
    "training.updates": 1,
    "training.replay": 0,
    "training.save_every": 1,
    "training.reweight": 0,
    "stops.spread_patience": 0,
    "stops.spread_first": 1,
    "stops.validate_every": 0,
    "stops.validation_levels": 1,
    "stops.validation_times": 0,
    "diagnostics.entropy_every": 0,
    "diagnostics.gradients_every": 0,
    "diagnostics.information_every": 0,
    "diagnostics.information_prompts": 2,
    "diagnostics.information_samples": 1,
    "demonstrations.episodes": 1,
    "warm_start.epochs": 0,
    "warm_start.batch": 1,
    "lora.rank": 0,
    "evaluation.levels": 1,
    "evaluation.batch": 1,
    "turns.max_tokens_per_turn": 1,
    "turns.history": -1,
    "small_model.layers": 1,
    "small_model.feed_forward": 1,
    "training.clip_high": 0,
    "training.kl": 0,
    "training.entropy_bonus": 0,
}

#: What a setting must be above, and at most.
ABOVE = {
    "training.keep": (0.0, 1.0),
    "training.temperature": (0.0, 10.0),
    "evaluation.temperature": (0.0, 10.0),
    "training.learning_rate": (0.0, 1e3),
    "training.critic_learning_rate": (0.0, 1e3),
    "training.max_grad_norm": (0.0, inf),
    "warm_start.learning_rate": (0.0, 1e3),
    "lora.alpha": (0.0, inf),
    "stops.spread_share": (0.0, 1.0),
    "stops.validation_floor": (0.0, 1.0),
}

#: Settings from 0 to 1.
SHARES = (
    "demonstrations.mistakes",
    "demonstrations.quality",
    "training.gamma",
    "training.gamma_turn",
    "training.gae_lambda",
)


def check(config: Config) -> None:
    """Raises a ValueError that names the first setting out of range, and what it may be."""
    for name, allowed in CHOICES.items():
        value = _get(config, name)
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; choose one of {', '.join(filter(None, allowed))}.")
    for name, least in LEAST.items():
        if not least <= (number := _get(config, name)) < inf:
            raise ValueError(f"{name} is {number}; it must be at least {least}.")
    for name, (low, high) in ABOVE.items():
        if not low < (number := _get(config, name)) <= high:
            raise ValueError(f"{name} is {number}; it must be above {low:g} and at most {high:g}.")
    for name in SHARES:
        if not 0 <= (share := _get(config, name)) <= 1:
            raise ValueError(f"{name} is {share}; it must be from 0 to 1.")
    _check_training(config.training)
    if config.small_model.hidden % 32 or config.small_model.hidden < 32:
        raise ValueError(f"small_model.hidden is {config.small_model.hidden}; it must be a multiple of 32.")
    moves: list[Any] = config.demonstrations.moves  # a list of anything, as TOML gives it
    numbers = all(isinstance(chance, int | float) and not isinstance(chance, bool) for chance in moves)
    if not numbers or not all(0 <= chance < inf for chance in moves) or not sum(moves):
        raise ValueError(
            f"demonstrations.moves is {config.demonstrations.moves}; give chances such as [0.7, 0.2, 0.1]."
        )
    targets: list[Any] = config.lora.targets
    if not targets or not all(isinstance(name, str) and name for name in targets):
        raise ValueError(f'lora.targets is {targets}; name layers, such as ["q_proj", "v_proj"], or ["all-linear"].')
    _check_games(config)


def _check_training(training: Training) -> None:
    if not 0 <= training.clip_low < 1:
        raise ValueError(f"training.clip_low is {training.clip_low}; it must be at least 0 and below 1.")
    if training.dual_clip and not 1 < training.dual_clip < inf:
        raise ValueError(f"training.dual_clip is {training.dual_clip}; it must be 0 (none) or above 1.")
    if training.members < 2:
        if ADVANTAGE_RULES[training.algo].compares_groups:
            raise ValueError(
                f"training.members is {training.members}; it must be at least 2, since {training.algo} compares the "
                "members of a group. With 1 use ppo, brpo, arpo or reinforce."
            )
        if FILTER_RULES[training.filter_rule].ranks_groups:
            raise ValueError(
                f"training.members is {training.members}; it must be at least 2, since the filter ranks groups by how "
                "much their members differ. With 1 use training.filter=none."
            )
    if training.credit != "trajectory" and not training.critic:
        raise ValueError(
            f"training.credit is {training.credit!r}, which needs a critic's values; use training.algo=ppo, or "
            "training.credit=trajectory."
        )


def _check_games(config: Config) -> None:
    known = {"game", "weight", "knobs", "turns", "thought"}
    for row in config.games:
        weight = row.get("weight", 1.0) if isinstance(row, dict) else None
        numeric = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not isinstance(row, dict) or not isinstance(row.get("game"), str) or not numeric or set(row) - known:
            raise ValueError(
                f"games holds {row!r}; give tables with {', '.join(sorted(known))}, such as "
                '{game = "Sokoban", weight = 2.0}.'
            )
        if not 0 < float(weight or 0) < inf:
            raise ValueError(f"games gives {row['game']} the weight {weight}; it must be above 0.")
    if config.games and config.curriculum:
        raise ValueError("curriculum lays knobs over one game's; with games give each game its knobs instead.")
    begins = -1
    for row in config.curriculum:
        fits = isinstance(row, dict) and set(row) == {"iteration", "knobs"} and isinstance(row["knobs"], dict)
        if not fits or type(row["iteration"]) is not int or row["iteration"] <= begins:
            raise ValueError(
                f"curriculum holds {row!r}; give tables {{iteration, knobs}} with ascending iterations, such as "
                "{iteration = 20, knobs = {size = 5}}."
            )
        begins = row["iteration"]


def _get(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
