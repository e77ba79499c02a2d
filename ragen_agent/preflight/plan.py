"""Arithmetic of a run before it starts: episodes, updates, tokens, and the GPUs of each model.

It needs neither the model nor the distributed stack; without ``OpenRLHF`` settings it is that of the local trainer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.algorithms import FILTER_RULES
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.tasks.tasks import all_settings


@dataclass(frozen=True)
class BatchPlan:
    """Counts of one iteration."""

    episodes: int  # played
    kept_groups: int  # trained on, at most
    kept_episodes: int  # of those groups
    rows: int  # the most training rows of the kept episodes
    updates: int  # steps of the optimiser on those

    @classmethod
    def of(cls, config: Config, *, distributed: bool) -> BatchPlan:
        """Those of a configuration. Only the distributed trainer cuts minibatches of rows instead of episodes."""
        training = config.training
        kept = FILTER_RULES[training.filter_rule].planned_groups(training.groups, training.keep)
        episodes = rows = kept * training.group_size
        if distributed:
            rows *= max(rows_of_episode(settings) for settings in all_settings(config))
        updates = training.updates * math.ceil(rows / training.minibatch)
        return cls(training.groups * training.group_size, kept, episodes, rows, updates)


def rows_of_episode(config: Config) -> int:
    """One row, or one for each turn whose prompt leaves out earlier turns, as those of programs may."""
    turns = config.turns
    if config.program.command:
        return turns.max_turns
    if turns.history >= 0:
        return max(1, turns.max_turns - turns.history)
    return 1 if turns.keep_thinking else turns.max_turns


def rows_of_step(config: Config, settings: OpenRLHF) -> int:
    """Rows of an optimiser step, padding included: the minibatch, or all that an iteration can keep if they are fewer.

    A multiple of what the GPUs read at a time.
    """
    gpus = gpus_of_models(config, settings)
    at_once = settings.micro_batch * math.lcm(*(gpus[model] for model in ("actor", "critic") if gpus[model]))
    rows = BatchPlan.of(config, distributed=True).rows
    return min(config.training.minibatch, math.ceil(rows / at_once) * at_once)


def gpus_of_models(config: Config, settings: OpenRLHF) -> dict[str, int]:
    """GPUs of each model, before any are shared."""
    training = config.training
    actor = settings.actor_nodes * settings.actor_gpus
    return {
        "actor": actor,
        "critic": settings.critic_nodes * settings.critic_gpus if training.critic else 0,
        "reference": actor if training.kl_estimate != "none" else 0,
        "vllm": settings.vllm_engines * settings.vllm_tensor_parallel,
    }


def devices_needed(config: Config, settings: OpenRLHF) -> int:
    """Number of GPUs that the models of a run take, shared or not."""
    gpus = gpus_of_models(config, settings)
    return gpus["actor"] if settings.colocate else sum(gpus.values())


def check_devices(config: Config, settings: OpenRLHF, there: float, where: str = "this machine") -> None:
    """Raises a ValueError if there are fewer GPUs than a run needs, for which Ray would wait forever."""
    if there < (needed := devices_needed(config, settings)):
        cure = "Lower openrlhf.actor_gpus and what goes with it" if settings.colocate else "Use openrlhf.colocate=true"
        raise ValueError(
            f"the run needs {needed} GPU{'s' * (needed > 1)}, and {where} has {there:g}: Ray would wait for the others "
            f"forever. {cure}, or join more nodes to a cluster (openrlhf.ray_address); ray status shows its GPUs."
        )


def is_visual(config: Config) -> bool:
    """True if the run's model reads pictures or is to read them."""
    if any(each.turns.sees for each in all_settings(config)):
        return True
    if not config.model:
        return config.small_model.kind == "vision"
    try:
        return "vision_config" in json.loads((Path(config.model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not here
        return False


def packs_rows(config: Config, settings: OpenRLHF) -> bool:
    """True if rows are packed without padding on GPUs, which flash attention does, but not for visual models."""
    return "flash" in settings.attention and not is_visual(config)


def most_pictures(config: Config) -> int:
    """The most pictures of a prompt: one in each message of the environment that it keeps."""
    seen = [each.turns for each in all_settings(config) if each.turns.sees]
    return max((min(t.max_turns, t.history + 1) if t.history >= 0 else t.max_turns for t in seen), default=0)


def describe(config: Config, settings: OpenRLHF | None) -> list[str]:
    """The plan in sentences; without ``settings`` of the local trainer."""
    training, evaluation, most = config.training, config.evaluation, config.turns.max_tokens_per_episode
    plan, prompts = BatchPlan.of(config, distributed=settings is not None), rows_of_episode(config)
    step = rows_of_step(config, settings) if settings else training.minibatch
    several = f" in each of its {prompts} prompts" * (prompts > 1)
    played = (
        f"An iteration plays {training.groups} prompts (levels) x {training.group_size} samples = {plan.episodes} "
        f"episodes, of at most {most} tokens each{several}: at most {plan.episodes * prompts * most:,} tokens."
    )
    if training.refills:
        played += (
            f" For those whose episodes all earn the same it plays others, in at most {training.refills} further "
            f"rounds of {plan.episodes} episodes (training.refills)."
        )
    rule, learned = training.filter_rule, plan.kept_episodes
    kept = (
        f"The filter ({rule}, {training.keep:g}) keeps {'' if FILTER_RULES[rule].fixed_share else 'up to '}"
        f"{plan.kept_groups} of {training.groups} groups: "
        f"{plan.kept_groups} x {training.group_size} = {learned} episodes to train on."
    )
    if rule == "none":
        kept = f"There is no filter: all {training.groups} groups are trained on, {learned} episodes."
    if plan.rows > learned:
        kept += f" Their prompts leave out earlier turns, so each is several rows, {plan.rows} in all at most."
    updates = (
        f"Those are cut into minibatches of {step}: {math.ceil(plan.rows / step)} of them, {training.updates} "
        f"pass{'es' * (training.updates > 1)} over them, so {plan.updates} update{'s' * (plan.updates > 1)} of the "
        f"policy{' and of the critic' if training.critic else ''} in an iteration."
    )
    often = f", and every {settings.evaluate_every} iterations" if settings and settings.evaluate_every else ""
    sentences = [
        played,
        kept,
        updates,
        f"The run: {training.iterations} iterations, {training.iterations * plan.episodes:,} episodes, "
        f"{training.iterations * plan.updates:,} updates.",
        f"Evaluated before and after{often} on {evaluation.levels} fixed levels of the split {evaluation.split}, one "
        f"episode each, at temperature {evaluation.temperature:g}.",
    ]
    if settings is None:
        return sentences
    gpus = gpus_of_models(config, settings)
    models = ", ".join(f"{model} on {count}" for model, count in gpus.items() if count)
    how = "shared by all" if settings.colocate else "each with one task"
    sentences.append(f"GPUs: {devices_needed(config, settings)}, {how}: {models}.")
    if settings.staleness:
        sentences.append(
            f"While an iteration is trained the next is played: by weights that are {settings.staleness} "
            f"update{'s' * (settings.staleness > 1)} behind (openrlhf.staleness), which training.correction makes up "
            "for."
        )
    return sentences
