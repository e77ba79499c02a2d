"""The plan of a run before it starts: prompts, samples, updates and tokens, which GPU does what, and what is refused.

It needs neither the model nor the distributed stack; without ``OpenRLHF`` settings it plans a run of the local trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ragen_agent.config import Config, Turns
from ragen_agent.config.algorithms import FILTER_RULES
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.cli_flags import AGGREGATIONS
from ragen_agent.training.tasks import all_settings

__all__ = ["BatchPlan", "check_supported", "describe", "devices_needed", "planned_updates"]


@dataclass(frozen=True)
class BatchPlan:
    """Counts of one iteration.

    Attributes:
        episodes: how many are played.
        kept_groups: how many groups are trained on, at most.
        kept_episodes: how many episodes those are.
        rows: the most training rows of the kept episodes.
        updates: steps of the optimiser.
    """

    episodes: int
    kept_groups: int
    kept_episodes: int
    rows: int
    updates: int

    @classmethod
    def of(cls, config: Config, *, distributed: bool) -> BatchPlan:
        """Those of a configuration. Only the distributed trainer cuts minibatches of rows instead of episodes."""
        training = config.training
        kept = FILTER_RULES[training.filter_rule].planned_groups(training.groups, training.keep)
        episodes = rows = kept * training.group_size
        if distributed:
            rows *= max(_rows_of_episode(settings.turns) for settings in all_settings(config))
        updates = training.updates * math.ceil(rows / training.minibatch)
        return cls(training.groups * training.group_size, kept, episodes, rows, updates)


def _rows_of_episode(turns: Turns) -> int:
    """One row, or one for each turn whose prompt leaves out earlier turns."""
    if turns.history >= 0:
        return max(1, turns.max_turns - turns.history)
    return 1 if turns.keep_thinking else turns.max_turns


def planned_updates(config: Config) -> int:
    """Optimiser steps of a whole distributed run, counted after the filter."""
    return config.training.iterations * BatchPlan.of(config, distributed=True).updates


def describe(config: Config, settings: OpenRLHF | None) -> list[str]:
    """The plan in sentences."""
    training, evaluation = config.training, config.evaluation
    plan = BatchPlan.of(config, distributed=settings is not None)
    rule, learned, tokens = training.filter_rule, plan.kept_episodes, config.turns.max_tokens_per_episode
    if rule == "none":
        kept = f"There is no filter: all {training.groups} groups are trained on, {learned} episodes."
    else:
        most = "" if FILTER_RULES[rule].fixed_share else "up to "
        kept = (
            f"Then the filter ({rule}, {training.keep:g}) keeps {most}{plan.kept_groups} of {training.groups} groups: "
            f"{plan.kept_groups} x {training.group_size} = {learned} episodes to train on."
        )
    if plan.rows > learned:
        kept += f" Their prompts leave out earlier turns, so each is several rows, {plan.rows} in all at most."
    unit = "episodes" if plan.rows == learned else "rows"
    padding = -plan.rows % training.minibatch
    rest = ""
    if padding:
        rest = f" The last minibatch of a pass has {training.minibatch - padding} {unit}" + (
            f" and {padding} rows of padding without loss." if settings else "."
        )
    passes = training.updates
    sentences = [
        f"An iteration plays {training.groups} prompts (levels) x {training.group_size} samples = {plan.episodes} "
        f"episodes, of at most {tokens} tokens each: at most {plan.episodes * tokens:,} tokens.",
        kept,
        f"Those are cut into minibatches of {training.minibatch}: {math.ceil(plan.rows / training.minibatch)} of them, "
        f"{passes} pass{'es' * (passes > 1)} over them, so {plan.updates} update{'s' * (plan.updates > 1)} of the "
        f"policy{' and of the critic' if training.critic else ''} in an iteration.{rest}",
        f"The run: {training.iterations} iterations, {training.iterations * plan.episodes:,} episodes, "
        f"{training.iterations * plan.updates:,} updates"
        + (", and the learning-rate schedule covers exactly those." if settings else "."),
        f"Evaluated before and after on {evaluation.levels} fixed levels of the split {evaluation.split}, one episode "
        f"each, at temperature {evaluation.temperature:g}"
        + (f", and every {settings.evaluate_every} iterations." if settings and settings.evaluate_every else "."),
    ]
    return [*sentences, *(_gpu_plan(config, settings) if settings else [])]


def _gpus(config: Config, settings: OpenRLHF) -> dict[str, int]:
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
    """How many devices the models of a run take if they share none."""
    return sum(_gpus(config, settings).values())


def _gpu_plan(config: Config, settings: OpenRLHF) -> list[str]:
    """Which GPUs do what, in sentences."""
    training, gpus = config.training, _gpus(config, settings)
    engines, actor = settings.vllm_engines, gpus["actor"]
    names = {"actor": "the policy", "critic": "the critic", "reference": "the reference model"}
    models = [f"{name} on {gpus[model]}" for model, name in names.items() if gpus[model]]
    models += [
        f"vLLM on {gpus['vllm']} ({engines} engine{'s' * (engines > 1)} of {settings.vllm_tensor_parallel})",
    ]
    if settings.colocate:
        first = (
            f"GPUs: {actor}, shared by all: {', '.join(models)}. A model that is not training keeps its weights on the "
            "GPU and its optimiser in the host's memory."
        )
    else:
        first = f"GPUs: {sum(gpus.values())}, each with one task: {', '.join(models)}."
    share = training.minibatch // actor
    return [
        first,
        f"Each engine plays about {training.groups / engines:g} of the {training.groups} prompts, "
        f"{training.group_size} samples of each.",
        f"A minibatch of {training.minibatch} is {share} episodes for each of the policy's GPUs, which read "
        f"{settings.micro_batch} at a time: {share // settings.micro_batch} passes, then one step of the optimiser.",
    ]


def check_supported(config: Config, settings: OpenRLHF) -> None:
    """Checks that the distributed trainer has what is asked for, and that the GPUs can share it.

    Raises:
        ValueError: a setting that only the local trainer has, a minibatch that the GPUs cannot share, models that
            cannot be placed on the GPUs as the settings say, or LoRA settings that OpenRLHF does not take.
    """
    training, stops, diagnostics, lora = config.training, config.stops, config.diagnostics, config.lora
    only_local: list[tuple[str, object, tuple[object, ...]]] = [
        ("training.replay", training.replay, (0,)),
        ("training.aggregation", training.aggregation, tuple(AGGREGATIONS)),
        ("stops.validate_every", stops.validate_every, (0,)),
        ("diagnostics.gradients_every", diagnostics.gradients_every, (0,)),
        ("diagnostics.information_every", diagnostics.information_every, (0,)),
    ]
    if training.critic:  # which values rows, and an episode whose prompts leave out turns has several
        only_local += [("turns.history", each.turns.history, (-1,)) for each in all_settings(config)]
    for setting, value, possible in only_local:
        if value not in possible:
            raise ValueError(
                f"{setting} is {value!r}, which the distributed trainer does not have; use "
                f"{' or '.join(map(str, possible))}, or the local trainer."
            )
    gpus = _gpus(config, settings)
    for model in ("actor", "critic"):
        if gpus[model] and training.minibatch % (settings.micro_batch * gpus[model]):
            raise ValueError(
                f"training.minibatch is {training.minibatch}; it must be a multiple of openrlhf.micro_batch="
                f"{settings.micro_batch} times the {gpus[model]} GPUs of the {model}."
            )
    if lora.rank and settings.zero_stage == 3:
        raise ValueError("lora.rank needs openrlhf.zero_stage 2: at stage 3 no GPU holds the weights to merge.")
    if lora.rank and not lora.alpha.is_integer():
        raise ValueError(f"lora.alpha is {lora.alpha}, which OpenRLHF takes as a whole number only.")
    shared = "openrlhf.colocate puts every model on the same GPUs, so the actor's {} and {} {} must be equal: {} = {}."
    actor = "actor_nodes * actor_gpus"
    if settings.colocate and gpus["actor"] != gpus["vllm"]:
        raise ValueError(
            shared.format(gpus["actor"], "vLLM's", gpus["vllm"], actor, "vllm_engines * vllm_tensor_parallel")
        )
    if settings.colocate and gpus["critic"] not in (0, gpus["actor"]):
        raise ValueError(
            shared.format(gpus["actor"], "the critic's", gpus["critic"], actor, "critic_nodes * critic_gpus")
        )
