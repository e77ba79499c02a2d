"""Cross-field validation of the run configuration and of its table ``training``."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
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

if TYPE_CHECKING:
    from ragen_agent.config.settings import Config
    from ragen_agent.config.training import Training


def check_config(config: Config) -> None:
    """Raise a ValueError if settings contradict each other, or a table of games or a curriculum is invalid."""
    _check_games(config)
    _check_curriculum(config)
    _refuse(_contradictions(config))


def check_training(training: Training) -> None:
    """Raise a ValueError if settings contradict each other or have no effect together."""
    _check_unread(training)
    _refuse(_refusals(training))


def _refuse(found: Iterator[tuple[object, str]]) -> None:
    for applies, reason in found:
        if applies:
            raise ValueError(reason)


def temperatures_for_vllm(config: Config) -> Iterator[tuple[object, str]]:
    """Temperatures that vLLM refuses or, below 0.01, raises: (true if one does not fit, the message)."""
    for table in ("training", "evaluation"):
        value = getattr(config, table).temperature
        yield not 0.01 <= value <= 2, f"{table}.temperature is {value:g}; with vLLM it must be from 0.01 to 2."


def _contradictions(config: Config) -> Iterator[tuple[object, str]]:
    """Settings of several tables that contradict each other: (true if they do, the message)."""
    turns, training, dashboards = config.turns, config.training, config.diagnostics
    buffer, rewarded = training.overlong_buffer, training.budget_reward
    yield (
        buffer > turns.max_tokens_per_turn,
        f"training.overlong_buffer is {buffer}; it must be at most turns.max_tokens_per_turn, "
        f"{turns.max_tokens_per_turn}.",
    )
    yield (
        config.engine != "vllm" and config.vllm_memory != type(config).vllm_memory,
        f"vllm_memory is {config.vllm_memory:g}, which has no effect with engine={config.engine}; leave it out, or use "
        "engine=vllm.",
    )
    if config.engine == "vllm":
        yield from temperatures_for_vllm(config)
    if config.program.command:
        yield (
            turns.sees or turns.history != -1,
            "program.command: a program is sent text alone and chooses what it shows the model; leave "
            "turns.observation=text and turns.history=-1.",
        )
        yield (
            training.branches,
            f"training.groups_by={training.groups_by} plays the turns of an episode again to branch from them, and a "
            "program cannot be stood there; use training.groups_by=level with program.command.",
        )
        yield (
            rewarded,
            f"training.budget_reward is {rewarded!r}, which needs a budget in every reply, but a program plays replies "
            "as turns of the game by its own choice; leave it empty with program.command.",
        )
    yield (
        len(training.branches) > turns.max_turns,
        f"training.branches is {training.branches}, for more turns than turns.max_turns, {turns.max_turns}: the last "
        "ones would draw nothing. Give at most one number for each turn.",
    )
    yield (
        turns.summary and turns.history,
        f"turns.summary is {turns.summary} and turns.history {turns.history}: prompts would show earlier turns twice. "
        "Give turns.history=0 with a summary, or turns.summary=0.",
    )
    yield (
        dashboards.tables_every and not (dashboards.wandb or dashboards.tensorboard),
        f"diagnostics.tables_every is {dashboards.tables_every}, but no dashboard gets the tables; give "
        "diagnostics.wandb=PROJECT or diagnostics.tensorboard=true, or leave it at 0.",
    )
    yield (
        rewarded and not turns.budget,
        f"training.budget_reward is {rewarded!r}, but replies state no budget; give turns.budget=true too, or leave it "
        "empty.",
    )
    for name in ("loss_tokens", "advantage_tokens"):
        yield (
            getattr(training, name) == "reasoning" and not turns.think,
            f"training.{name} is 'reasoning', but with turns.think=false replies hold none; use all or answer, or "
            "turns.think=true.",
        )


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


def _refusals(training: Training) -> Iterator[tuple[object, str]]:
    algo, size, keep, loss = training.algo, training.group_size, training.keep, training.policy_loss
    rule, advantages = FILTER_RULES[training.filter_rule], ADVANTAGE_RULES[algo]
    per_sequence, bounds = POLICY_LOSSES[loss].sequences, training.correction_bounds
    yield (
        per_sequence and training.aggregation != "sequence_mean",
        f"training.policy_loss is {loss!r}, whose loss is per sequence; set training.aggregation=sequence_mean "
        f"(got {training.aggregation}).",
    )
    for name, asked, plain in (
        ("groups_by", GROUPINGS[training.groups_by].turns, "level"),
        ("credit", CREDITS[training.credit].recursion != "tokens", "trajectory"),
    ):
        yield (
            asked and per_sequence,
            f"training.policy_loss is {loss!r}, which averages the advantages of an episode, so the turn advantages of "
            f"training.{name}={getattr(training, name)} would be lost; use training.policy_loss=ppo, or "
            f"training.{name}={plain}.",
        )
    branches = training.branches
    yield (
        GROUPINGS[training.groups_by].tree
        and (not branches or min(branches) < 1 or branches[0] < 2 or prod(branches) != size),
        f"training.branches is {branches}; with training.groups_by={training.groups_by} give the replies drawn from "
        f"each state of turn 1, 2, ..., at least 2 in the first turn, whose product is training.group_size, {size}: "
        "such as [4, 2] for 8.",
    )
    yield (
        len(bounds) != 2 or not 0 <= bounds[0] <= 1 <= bounds[1],
        f"training.correction_bounds is {bounds}; give a bound from 0 to 1 and one from 1 on, such as [0.5, 5.0]: 1 is "
        "the ratio of equal probabilities.",
    )
    yield (
        training.correction in ("clip", "mask") and per_sequence,
        f"training.correction is {training.correction!r}, but the policy loss {loss!r} already compares with the "
        "sampling policy, so there is nothing to correct; use training.correction=none.",
    )
    yield (
        training.kl_estimate == "k1" and training.kl_place == "loss",
        "training.kl_kind is k1, whose gradient in the loss is zero in expectation, so nothing would hold the policy; "
        "use training.kl_kind=k2 or k3, or training.kl_place=reward.",
    )
    yield (
        rule.counts and not (keep % 1 == 0 and 1 <= keep <= training.groups),
        f"training.keep is {keep:g}; with training.filter={training.filter_rule} it is a number of groups, a whole "
        f"number from 1 to training.groups, {training.groups}.",
    )
    yield (
        not rule.counts and keep > 1,
        f"training.keep is {keep:g}; with training.filter={training.filter_rule} it must be above 0 and at most 1. For "
        "a number of groups use training.filter=top_k.",
    )
    ordered = ", ".join(name for name, row in FILTER_RULES.items() if row.orders)
    yield (
        FILTER_STATISTICS[training.filter_statistic].order_only and not rule.orders,
        f"training.filter_statistic is {training.filter_statistic!r}, which only orders the groups, and the filter "
        f"{training.filter_rule} does not keep them by their order; use training.filter={ordered}, or "
        "training.filter_statistic=std.",
    )
    kinds = training.loss_tokens, training.advantage_tokens
    yield (
        "all" not in kinds and kinds[0] != kinds[1],
        f"training.loss_tokens is {kinds[0]!r} and training.advantage_tokens is {kinds[1]!r}, which have no token in "
        "common: no token in the loss would have an advantage. Make them equal, or one of them all.",
    )
    yield (
        training.entropy_smoothing and not training.entropy_bonus,
        f"training.entropy_smoothing is {training.entropy_smoothing:g}, a part of the entropy bonus, whose weight "
        "training.entropy_bonus is 0; raise it, for example to 0.001, or use training.entropy_smoothing=0.",
    )
    yield (
        training.zero_task_advantage and training.kl_estimate == "none" and not training.entropy_bonus,
        "training.zero_task_advantage leaves the entropy bonus and the KL term alone, and both are off; raise "
        "training.entropy_bonus or choose training.kl_kind.",
    )
    yield (
        training.zero_task_advantage
        and training.critic
        and training.kl_estimate != "none"
        and training.kl_place == "reward",
        "training.zero_task_advantage would remove the KL term too, which with a critic is part of the rewards; use "
        "training.kl_place=loss with training.kl_kind=k2 or k3.",
    )
    single = ", ".join(name for name, row in ADVANTAGE_RULES.items() if not row.compares_groups)
    for needs, why in (
        (advantages.compares_groups, f"{algo} compares the episodes of a group. With 1 use one of {single}."),
        (
            rule.ranks_groups,
            "the filter ranks groups by how much their episodes differ. With 1 use training.filter=none.",
        ),
        (
            training.refills,
            "training.refills replaces levels whose episodes all earn the same. With 1 use training.refills=0.",
        ),
    ):
        yield size < 2 and needs, f"training.group_size is {size}; it must be at least 2, since {why}"


def _check_unread(training: Training) -> None:
    """Raise a ValueError for a setting that differs from its default but is unused by the chosen options."""
    chosen = {
        "algo": training.algo,
        "groups_by": training.groups_by,
        "credit": training.credit,
        "filter": training.filter_rule,
        "policy_loss": training.policy_loss,
        "clip": "higher" if training.clips_higher else "symmetric",
        "kl_kind": training.kl_kind or ("none" if training.starpo_s else "k1"),
        "correction": training.correction,  # empty: the trainer's own choice, which may read its bounds
    }
    for name, choice, readers in _readers(training):
        value, default, made = getattr(training, name), declared(type(training))[name].default, chosen[choice]
        if value != default and made and made not in readers:
            others = f" ({', '.join(readers[1:])})" if readers[1:] else ""
            raise ValueError(
                f"training.{name} is {value!r}, which has no effect with training.{choice}={made}; leave it at "
                f"{default!r}, or use training.{choice}={readers[0]}{others}."
            )


def _readers(training: Training) -> Iterator[tuple[str, str, list[str]]]:
    """Settings that only some choices read: (setting, the setting that chooses, the choices that read it)."""
    critics = [name for name, rule in ADVANTAGE_RULES.items() if rule.critic]
    for name in ("gae_lambda", "credit", "advantage_tokens", "gamma"):
        yield name, "algo", critics
    yield "advantage_length_weight", "algo", [name for name in ADVANTAGE_RULES if name not in critics]
    yield "groups_by", "algo", [name for name, rule in ADVANTAGE_RULES.items() if rule.compares_groups]
    yield "branches", "groups_by", [name for name, row in GROUPINGS.items() if row.tree]
    yield "gamma", "credit", [name for name, row in CREDITS.items() if row.recursion != "turns"]
    if not GROUPINGS[training.groups_by].turns:
        yield "gamma_turn", "credit", [name for name, row in CREDITS.items() if row.recursion != "tokens"]
    yield "filter_statistic", "filter", [name for name, row in FILTER_RULES.items() if row.ranks_groups]
    yield "filter_loss_scaling", "filter", [name for name in FILTER_RULES if name != "none"]
    lower = "clip_low" if training.clips_higher else "clip_high"  # symmetric: clip_low is the upper bound too
    yield "clip_low", "policy_loss", [name for name, row in POLICY_LOSSES.items() if lower in row.clips]
    yield "clip_high", "policy_loss", [name for name, row in POLICY_LOSSES.items() if "clip_high" in row.clips]
    yield "clip_high", "clip", ["higher"]
    if training.kl:
        yield "kl", "kl_kind", [*KL_ESTIMATES]
        yield "kl_place", "kl_kind", [*KL_ESTIMATES]
    yield "correction_bounds", "correction", ["clip", "mask"]
