"""What a run will do, in numbers and words: prompts, samples, updates, tokens, and which GPU does what.

It is the arithmetic of both trainers; it needs neither the model nor anything of the distributed stack.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ragen_agent.config import Config
from ragen_agent.config.openrlhf import OpenRLHF, Workers
from ragen_agent.config.rules import FILTER_RULES
from ragen_agent.openrlhf.state import planned_episodes, planned_rows

__all__ = ["Batches", "gpu_plan", "words"]


@dataclass(frozen=True)
class Batches:
    """Counts of a run. `kept` is the number of groups that the filter keeps, as far as its amount fixes it."""

    iterations: int
    groups: int
    members: int
    episodes: int
    kept: int
    rows: int
    minibatch: int
    updates: int
    all_episodes: int
    all_updates: int
    tokens_per_episode: int
    tokens_per_iteration: int
    rounds: int
    engines: int

    @classmethod
    def of(cls, config: Config, settings: OpenRLHF | None) -> Batches:
        """Those of a configuration; `settings` None means the local trainer."""
        training = config.training
        run = Workers(config, settings or OpenRLHF(), "", (), 0)
        kept, episodes = planned_episodes(run), training.groups * training.group_size
        rows = planned_rows(run) if settings else kept
        updates = training.updates * math.ceil(rows / training.minibatch)
        return cls(
            iterations=training.iterations,
            groups=training.groups,
            members=training.group_size,
            episodes=episodes,
            kept=kept // training.group_size,
            rows=rows,
            minibatch=training.minibatch,
            updates=updates,
            all_episodes=training.iterations * episodes,
            all_updates=training.iterations * updates,
            tokens_per_episode=config.turns.max_tokens_per_episode,
            tokens_per_iteration=episodes * config.turns.max_tokens_per_episode,
            rounds=training.updates,
            engines=settings.vllm_engines if settings else 1,
        )

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


def words(config: Config, settings: OpenRLHF | None) -> list[str]:
    """The arithmetic in sentences."""
    b, training = Batches.of(config, settings), config.training
    rule, learned = training.filter_rule, b.kept * b.members
    fixed = FILTER_RULES[rule].fixed_share
    if rule == "none":
        kept = f"There is no filter: all {b.groups} groups are trained on, {learned} episodes."
    else:
        amount = (
            f"the filter ({rule}, {training.keep:g}) keeps {'' if fixed else 'up to '}{b.kept} of {b.groups} groups"
        )
        kept = f"Then {amount}: {b.kept} x {b.members} = {learned} episodes to train on."
    if b.rows > learned:
        kept += f" Their prompts forget, so each is several rows, {b.rows} in all at most."
    unit = "episodes" if b.rows == learned else "rows"
    padded = -b.rows % b.minibatch
    rest = ""
    if padded:
        rest = f" The last minibatch of a pass has {b.minibatch - padded} {unit}" + (
            f" and {padded} rows of padding that weigh nothing." if settings else "."
        )
    said = [
        f"An iteration plays {b.groups} prompts (levels) x {b.members} samples = {b.episodes} episodes, "
        f"of at most {b.tokens_per_episode} tokens each: at most {b.tokens_per_iteration:,} tokens.",
        kept,
        f"Those are cut into minibatches of {b.minibatch}: {math.ceil(b.rows / b.minibatch)} of them, "
        f"{b.rounds} pass{'es' * (b.rounds > 1)} over them, so {b.updates} update{'s' * (b.updates > 1)} of the policy"
        f"{' and of the critic' if training.critic else ''} in an iteration.{rest}",
        f"The run: {b.iterations} iterations, {b.all_episodes:,} episodes, {b.all_updates:,} updates"
        + (", and the learning-rate schedule is stretched over just those." if settings else "."),
        f"Measured before and after on {config.evaluation.levels} fixed levels of the split "
        f"{config.evaluation.split}, one episode each, at temperature {config.evaluation.temperature:g}"
        + (f", and every {settings.evaluate_every} iterations." if settings and settings.evaluate_every else "."),
    ]
    return [*said, *(gpu_plan(config, settings) if settings else [])]


def gpu_plan(config: Config, settings: OpenRLHF) -> list[str]:
    """Which GPUs do what, in sentences."""
    training = config.training
    actor = settings.actor_nodes * settings.actor_gpus
    critic = settings.critic_nodes * settings.critic_gpus if training.critic else 0
    reference = actor if training.kl_estimate != "none" else 0
    engines, each = settings.vllm_engines, settings.vllm_tensor_parallel
    models = [f"the policy on {actor}", *([f"the critic on {critic}"] if critic else [])]
    models += [f"the reference model on {reference}"] if reference else []
    vllm = f"vLLM on {engines * each} ({engines} engine{'s' * (engines > 1)} of {each})"
    whose = "They share them; who does not train keeps its weights there and its optimiser in the host's memory."
    if settings.colocate:
        first = f"GPUs: {actor}, shared by all: {', '.join([*models, vllm])}. {whose}"
    else:
        total = actor + critic + reference + engines * each
        first = f"GPUs: {total}, each with one task: {', '.join([*models, vllm])}."
    prompts = training.groups / engines
    share = training.minibatch // actor
    passes = share // settings.micro_batch
    return [
        first,
        f"Each engine plays about {prompts:g} of the {training.groups} prompts, {training.group_size} samples of each.",
        f"A minibatch of {training.minibatch} is {share} episodes for each of the policy's GPUs, which pass "
        f"{settings.micro_batch} at a time: {passes} passes, then one step of the optimiser.",
    ]
