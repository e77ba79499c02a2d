"""Cross-field validation of the run configuration and of its table ``training``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen_agent.config.algorithms import (
    ADVANTAGE_RULES,
    CREDITS,
    FILTER_RULES,
    FILTER_STATISTICS,
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


def _check_games(config: Config) -> None:
    kinds: dict[str, Any] = {"game": str, "weight": (int, float), "env_options": dict, "turns": dict, "thought": str}
    for row in config.games:
        if "game" not in row or not all(isinstance(value, kinds.get(name, ())) for name, value in row.items()):
            raise ValueError(
                f'games holds {row!r}; give tables with {", ".join(kinds)}, such as {{game = "Sokoban", weight = 2.0}}.'
            )
        if not 0 < row.get("weight", 1.0) <= 1e9:
            raise ValueError(
                f"games gives {row['game']} the weight {shown(row['weight'])}; it must be above 0, up to 1e9."
            )
        _check_chat(config, row)


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


def _check_overlong(config: Config) -> None:
    buffer, limit = config.training.overlong_buffer, config.turns.max_tokens_per_turn
    if buffer > limit:
        raise ValueError(
            f"training.overlong_buffer is {buffer}; it must be at most turns.max_tokens_per_turn, {limit}."
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


def check_training(training: Training) -> None:
    """Raise a ValueError if settings contradict each other or have no effect together."""
    _check_policy_loss(training)
    _check_correction(training)
    _check_unread(training)
    if training.kl_estimate == "k1" and training.kl_place == "loss":
        raise ValueError(
            "training.kl_kind is k1, whose gradient in the loss is zero in expectation, so nothing would hold "
            "the policy; use training.kl_kind=k2 or k3, or training.kl_place=reward."
        )
    _check_filter(training)
    _check_weights(training)
    _check_groups(training)
    _check_tokens(training)


def _check_filter(training: Training) -> None:
    rule, keep = FILTER_RULES[training.filter_rule], training.keep
    if rule.counts and not (keep % 1 == 0 and 1 <= keep <= training.groups):
        raise ValueError(
            f"training.keep is {keep:g}; with training.filter={training.filter_rule} it is a number of groups, a whole "
            f"number from 1 to training.groups, {training.groups}."
        )
    if not rule.counts and keep > 1:
        raise ValueError(
            f"training.keep is {keep:g}; with training.filter={training.filter_rule} it must be above 0 and at most 1. "
            "For a number of groups use training.filter=top_k."
        )
    if FILTER_STATISTICS[training.filter_statistic].order_only and not rule.orders:
        rules = ", ".join(name for name, row in FILTER_RULES.items() if row.orders)
        raise ValueError(
            f"training.filter_statistic is {training.filter_statistic!r}, which only orders the groups, and the filter "
            f"{training.filter_rule} does not keep them by their order; use training.filter={rules}, or "
            "training.filter_statistic=std."
        )


def _check_weights(training: Training) -> None:
    if training.advantage_length_weight and training.critic:
        raise ValueError(
            f"training.advantage_length_weight weighs the advantages of whole episodes, and training.algo="
            f"{training.algo} estimates those of tokens; use another training.algo, or advantage_length_weight=false."
        )
    if (
        training.zero_task_advantage
        and training.critic
        and training.kl_estimate != "none"
        and training.kl_place == "reward"
    ):
        raise ValueError(
            "training.zero_task_advantage would remove the KL term too, which with a critic is part of the rewards; "
            "use training.kl_place=loss with training.kl_kind=k2 or k3."
        )


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
    if GROUPINGS[training.groups_by].states and not ADVANTAGE_RULES[training.algo].compares_groups:
        rules = ", ".join(name for name, rule in ADVANTAGE_RULES.items() if rule.compares_groups)
        raise ValueError(
            f"training.groups_by is {training.groups_by!r}, which compares turns as training.algo compares the "
            f"episodes of a group, and {training.algo} compares none; use one of {rules}, or training.groups_by=level."
        )


def _check_tokens(training: Training) -> None:
    if training.credit != "trajectory" and not training.critic:
        raise ValueError(
            f"training.credit is {training.credit!r}, which needs a critic's values; use training.algo=ppo, or "
            "training.credit=trajectory."
        )
    if training.advantage_tokens != "all" and not training.critic:
        raise ValueError(
            f"training.advantage_tokens is {training.advantage_tokens!r}, which needs a critic's values; use "
            "training.algo=ppo, or training.loss_tokens, which restricts the loss without a critic too."
        )


def _check_policy_loss(training: Training) -> None:
    rule = training.policy_loss
    if POLICY_LOSSES[rule].sequences and training.aggregation != "sequence_mean":
        raise ValueError(
            f"training.policy_loss is {rule!r}, whose loss is per sequence; set training.aggregation=sequence_mean "
            f"(got {training.aggregation})."
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


def _check_correction(training: Training) -> None:
    bounds = training.correction_bounds
    if len(bounds) != 2 or not 0 <= bounds[0] <= 1 <= bounds[1]:
        raise ValueError(
            f"training.correction_bounds is {bounds}; give a bound from 0 to 1 and one from 1 on, such as "
            "[0.5, 5.0]: 1 is the ratio of equal probabilities."
        )
    if training.correction in ("clip", "mask") and POLICY_LOSSES[training.policy_loss].sequences:
        raise ValueError(
            f"training.correction is {training.correction!r}, but the policy loss {training.policy_loss!r} already "
            "compares with the sampling policy, so there is nothing to correct; use training.correction=none."
        )


def _check_unread(training: Training) -> None:
    """Raise a ValueError for a setting that differs from its default but is unused by the chosen options."""
    clip = "higher" if training.clips_higher else "symmetric"
    kl_kind = training.kl_kind or ("none" if training.starpo_s else "k1")
    by_state = [name for name, row in GROUPINGS.items() if row.states]
    ranking = [name for name, row in FILTER_RULES.items() if row.ranks_groups]
    critics = [name for name, rule in ADVANTAGE_RULES.items() if rule.critic]
    by_token = [name for name, row in CREDITS.items() if row.recursion != "turns"]
    by_turn = [name for name, row in CREDITS.items() if row.recursion != "tokens"]
    lower, upper = ([n for n, row in POLICY_LOSSES.items() if end in row.clips] for end in ("clip_low", "clip_high"))
    if clip == "symmetric":
        lower = upper  # clip_low is the upper bound too
    for name, choice, made, readers in (
        ("gae_lambda", "algo", training.algo, critics),
        ("gamma", "algo", training.algo, critics),
        ("gamma", "credit", training.credit, by_token),
        *([("gamma_turn", "credit", training.credit, by_turn)] if training.groups_by not in by_state else []),
        ("filter_statistic", "filter", training.filter_rule, ranking),
        ("filter_loss_scaling", "filter", training.filter_rule, [name for name in FILTER_RULES if name != "none"]),
        ("clip_low", "policy_loss", training.policy_loss, lower),
        ("clip_high", "policy_loss", training.policy_loss, upper),
        ("clip_high", "clip", clip, ["higher"]),
        *((name, "kl_kind", kl_kind, [*KL_ESTIMATES]) for name in ("kl", "kl_place") if training.kl),
        *([("correction_bounds", "correction", "none", ["clip", "mask"])] if training.correction == "none" else []),
    ):
        value, default = getattr(training, name), declared(type(training))[name].default
        if value != default and made not in readers:
            others = f" ({', '.join(readers[1:])})" if readers[1:] else ""
            raise ValueError(
                f"training.{name} is {value!r}, which has no effect with training.{choice}={made}; leave it at "
                f"{default!r}, or use training.{choice}={readers[0]}{others}."
            )
