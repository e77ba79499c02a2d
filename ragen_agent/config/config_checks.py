"""Cross-field validation of the run configuration and of its table ``training``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ragen_agent.config.algorithms import (
    ADVANTAGE_RULES,
    CREDITS,
    FILTER_RULES,
    GROUPINGS,
    KL_ESTIMATES,
    POLICY_LOSSES,
)
from ragen_gym.core.settings import declared
from ragen_gym.core.validation import shown

__all__ = ["check_config", "check_training"]

if TYPE_CHECKING:
    from ragen_agent.config.settings import Config
    from ragen_agent.config.training import Training


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


#: Settings used only as options of policy losses.
_OPTIONS_OF_LOSSES = ("sapo_temperatures", "cov_share", "cov_band", "cov_kl")


def check_training(training: Training) -> None:
    """Raise a ValueError if settings contradict each other or have no effect together."""
    if 0 < training.dual_clip <= 1:
        raise ValueError(f"training.dual_clip is {training.dual_clip}; it must be 0 (none) or above 1.")
    _check_policy_loss(training)
    _check_correction(training)
    _check_unread(training)
    _check_bounds("training.entropy_band", training.entropy_band, "[0.5, 1.5]")
    if training.entropy_smoothing and not training.entropy_bonus:
        raise ValueError(
            f"training.entropy_smoothing is {training.entropy_smoothing:g}, a part of the entropy bonus, whose weight "
            "training.entropy_bonus is 0; raise it, for example to 0.001, or use training.entropy_smoothing=0."
        )
    if training.kl_estimate == "k1" and training.kl_place == "loss":
        raise ValueError(
            "training.kl_kind is k1, whose gradient in the loss is zero in expectation, so nothing would hold "
            "the policy; use training.kl_kind=k2 or k3, or training.kl_place=reward."
        )
    _check_groups(training)
    _check_tokens(training)


def _check_groups(training: Training) -> None:
    needed = f"training.group_size is {training.group_size}; it must be at least 2, since "
    if training.group_size < 2:
        if ADVANTAGE_RULES[training.algo].compares_groups:
            single = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if not rule.compares_groups)
            raise ValueError(f"{needed}{training.algo} compares the episodes of a group. With 1 use one of {single}.")
        if FILTER_RULES[training.filter_rule].ranks_groups:
            raise ValueError(
                f"{needed}the filter ranks groups by how much their episodes differ. With 1 use training.filter=none."
            )
        if training.refills:
            raise ValueError(
                f"{needed}training.refills replaces levels whose episodes all earn the same. With 1 use "
                "training.refills=0."
            )
        if training.reweight:
            raise ValueError(
                f"{needed}training.reweight weighs groups by how much their returns differ. With 1 use "
                "training.reweight=0."
            )
    if GROUPINGS[training.groups_by].states and not ADVANTAGE_RULES[training.algo].compares_groups:
        rules = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if rule.compares_groups)
        raise ValueError(
            f"training.groups_by is {training.groups_by!r}, which compares turns as training.algo compares the "
            f"episodes of a group, and {training.algo} compares none; use one of {rules}, or training.groups_by=level."
        )
    if GROUPINGS[training.groups_by].branches and training.group_size % (1 + training.branches):
        raise ValueError(
            f"training.group_size is {training.group_size}; with groups_by={training.groups_by} it must be a multiple "
            f"of {1 + training.branches}: a base episode and its {training.branches} branches (training.branches)."
        )


def _check_tokens(training: Training) -> None:
    if training.credit != "trajectory" and not training.critic:
        raise ValueError(
            f"training.credit is {training.credit!r}, which needs a critic's values; use training.algo=ppo, or "
            "training.credit=trajectory."
        )
    loss, estimated = training.loss_tokens, training.advantage_tokens
    if estimated != "all" and not training.critic:
        raise ValueError(
            f"training.advantage_tokens is {estimated!r}, which needs a critic's values; use training.algo=ppo, or "
            "training.advantage_tokens=all (training.loss_tokens restricts the loss without a critic too)."
        )
    if "all" not in (loss, estimated) and loss != estimated:
        raise ValueError(
            f"training.loss_tokens is {loss!r} and training.advantage_tokens is {estimated!r}, which have no token "
            "in common: no token in the loss would have an advantage. Make them equal, or one of them all."
        )


def _check_policy_loss(training: Training) -> None:
    rule = training.policy_loss
    if POLICY_LOSSES[rule].sequences and training.aggregation != "sequence_mean":
        raise ValueError(
            f"training.policy_loss is {rule!r}, whose loss is per sequence; set training.aggregation=sequence_mean "
            f"(got {training.aggregation})."
        )
    if training.dual_clip and "dual_clip" not in POLICY_LOSSES[rule].options:
        have = ", ".join(name for name, row in POLICY_LOSSES.items() if "dual_clip" in row.options)
        raise ValueError(
            f"training.dual_clip is {training.dual_clip:g}, but the policy loss {rule!r} has none; use "
            f"training.dual_clip=0, or one of {have}."
        )
    for name, asked, plain in (
        ("groups_by", GROUPINGS[training.groups_by].states, "level"),
        ("credit", CREDITS[training.credit].recursion != "tokens", "trajectory"),
    ):
        if asked and POLICY_LOSSES[rule].sequences:
            raise ValueError(
                f"training.policy_loss is {rule!r}, which averages the advantages of an episode, so the turn "
                f"advantages of training.{name}={getattr(training, name)} "
                f"would be lost; use training.policy_loss=ppo, or training.{name}={plain}."
            )
    temperatures = training.sapo_temperatures
    if len(temperatures) != 2 or min(temperatures) <= 0:
        raise ValueError(
            f"training.sapo_temperatures is {temperatures}; give two numbers above 0, such as [1.0, 1.05]."
        )
    _check_bounds("training.cov_band", training.cov_band, "[1.0, 5.0]")


def _check_correction(training: Training) -> None:
    _check_bounds("training.correction_bounds", training.correction_bounds, "[0.0, 2.0]")
    level, mode, gating = training.correction, training.correction_mode, training.correction_gating
    if mode == "clip" and (level == "sequence" or gating != "ratio"):
        raise ValueError(
            "training.correction_mode is 'clip', which bounds the ratio of a token; with "
            f"training.correction={level or 'token'} and training.correction_gating={gating} use "
            "training.correction_mode=mask."
        )
    low, high = training.correction_bounds
    if gating == "ratio" and not low <= 1 <= high:
        raise ValueError(
            f"training.correction_bounds is {training.correction_bounds}, which exclude 1, the ratio of equal "
            "probabilities; make the lower bound at most 1 and the upper at least 1, such as [0.5, 5.0]."
        )
    if gating != "ratio" and low:
        raise ValueError(
            f"training.correction_bounds is {training.correction_bounds}, but {gating} is at least 0 and bounded from "
            "above alone; make the lower bound 0, such as [0.0, 0.01]."
        )
    if gating == "tv" and high >= 1:
        raise ValueError(
            f"training.correction_bounds is {training.correction_bounds}, but tv is at most 1, so no token would be "
            "outside; make the upper bound smaller, such as [0.0, 0.1]."
        )
    if level in ("token", "sequence") and POLICY_LOSSES[training.policy_loss].sequences:
        raise ValueError(
            f"training.correction is {level!r}, but the policy loss {training.policy_loss!r} already compares with the "
            "sampling policy, so there is nothing to correct; use training.correction=none."
        )
    if level in ("token", "sequence") and training.replay:
        raise ValueError(
            f"training.correction is {level!r} and training.replay is {training.replay}: a replayed token is compared "
            "with the policy that sampled it, so there is nothing to correct. Use one of the two."
        )


def _check_unread(training: Training) -> None:
    """Raise a ValueError for a setting that differs from its default but is unused by the chosen options."""
    clip = "higher" if training.clips_higher else "symmetric"
    kl_kind = training.kl_kind or ("none" if training.starpo_s else "k1")
    branching = [name for name, row in GROUPINGS.items() if row.branches]
    by_state = [name for name, row in GROUPINGS.items() if row.states]
    ranking = [name for name, row in FILTER_RULES.items() if row.ranks_groups]
    critics = [name for name, rule in ADVANTAGE_RULES.items() if rule.critic]
    by_token = [name for name, row in CREDITS.items() if row.recursion != "turns"]
    by_turn = [name for name, row in CREDITS.items() if row.recursion != "tokens"]
    lower = ["clip_low", *(["upper_clip"] if clip == "symmetric" else [])]
    for name, choice, made, readers in (
        ("gae_lambda", "algo", training.algo, critics),
        ("gamma", "algo", training.algo, critics),
        ("gamma", "credit", training.credit, by_token),
        *([("gamma_turn", "credit", training.credit, by_turn)] if training.groups_by not in by_state else []),
        ("branches", "groups_by", training.groups_by, branching),
        ("branch_at", "groups_by", training.groups_by, branching),
        ("step_weight", "groups_by", training.groups_by, by_state),
        ("filter_by", "filter", training.filter_rule, ranking),
        ("filter_statistic", "filter", training.filter_rule, ranking),
        ("clip_low", "policy_loss", training.policy_loss, _losses_with(*lower)),
        ("clip_high", "policy_loss", training.policy_loss, _losses_with("upper_clip")),
        ("clip_high", "clip", clip, ["higher"]),
        *((name, "policy_loss", training.policy_loss, _losses_with(name)) for name in _OPTIONS_OF_LOSSES),
        *((name, "kl_kind", kl_kind, [*KL_ESTIMATES]) for name in ("kl", "kl_place") if training.kl),
        *(
            (f"correction_{name}", "correction", training.correction, ["token", "sequence"])
            for name in ("mode", "gating", "bounds")
            if training.correction  # the default differs between the trainers
        ),
    ):
        value, default = getattr(training, name), declared(type(training))[name].default
        if value != default and made not in readers:
            others = f" ({', '.join(readers[1:])})" if readers[1:] else ""
            raise ValueError(
                f"training.{name} is {value!r}, which has no effect with training.{choice}={made}; leave it at "
                f"{default!r}, or use training.{choice}={readers[0]}{others}."
            )


def _losses_with(*options: str) -> list[str]:
    """The policy losses that have one of these options, by its name in ``Training``."""
    return [name for name, row in POLICY_LOSSES.items() if {*options} & {*row.options.values()}]


def _check_bounds(name: str, bounds: list[float], example: str) -> None:
    """Raise a ValueError unless these are two ascending numbers from 0 on."""
    if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1]:
        raise ValueError(f"{name} is {bounds}; give a lower and a higher bound, at least 0: {example}.")
