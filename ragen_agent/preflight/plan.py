"""The plan of a run before it starts: prompts, updates and tokens, what each GPU does and needs, and what is refused.

It needs neither the model nor the distributed stack; without ``OpenRLHF`` settings it plans a run of the local trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ragen_agent.config import Config, Training
from ragen_agent.config.algorithms import FILTER_RULES, GROUPINGS, POLICY_LOSSES
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.tasks.tasks import all_settings

__all__ = [
    "BatchPlan",
    "GamePlan",
    "check_supported",
    "describe",
    "devices_needed",
    "doubts",
    "duration",
    "gpus_of_models",
    "is_visual",
    "most_pictures",
    "rows_of_step",
]


@dataclass(frozen=True)
class BatchPlan:
    """Counts of one iteration."""

    episodes: int  # played
    kept_groups: int  # trained on, at most
    kept_episodes: int  # of those groups
    rows: int  # the most training rows of the kept episodes
    trained: int  # the same with the replayed episodes, once as many iterations are remembered as are replayed
    updates: int  # steps of the optimiser on those

    @classmethod
    def of(cls, config: Config, *, distributed: bool) -> BatchPlan:
        """Those of a configuration. Only the distributed trainer cuts minibatches of rows instead of episodes."""
        training = config.training
        kept = FILTER_RULES[training.filter_rule].planned_groups(training.groups, training.keep)
        episodes = rows = kept * training.group_size
        if distributed:
            rows *= max(_rows_of_episode(settings) for settings in all_settings(config))
        trained = rows * (1 + min(training.replay, max(0, training.iterations - 1)))
        updates = training.updates * math.ceil(trained / training.minibatch)
        return cls(training.groups * training.group_size, kept, episodes, rows, trained, updates)

    def updates_in_all(self, training: Training) -> int:
        """Steps of the optimiser in a whole run; the first iterations replay less."""
        rows = [self.rows * (1 + min(training.replay, iteration)) for iteration in range(training.iterations)]
        return sum(training.updates * math.ceil(count / training.minibatch) for count in rows)


@dataclass(frozen=True)
class GamePlan:
    """A game of the run, and the tokens of its episodes."""

    config: Config  # of this game alone
    iterations: float  # that all episodes of it would fill
    prompt: int  # tokens before the first reply
    between: int  # tokens between two replies, 0 where unknown
    played: int  # tokens of an episode that the demonstrator plays

    @property
    def longest(self) -> int:
        """The most tokens of an episode."""
        turns = self.config.turns
        most = self.prompt + turns.max_turns * (turns.max_tokens_per_turn + self.between)
        known = self.between or turns.max_turns == 1
        return min(most, turns.max_tokens_per_episode) if known else turns.max_tokens_per_episode


def _rows_of_episode(config: Config) -> int:
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
    rows = BatchPlan.of(config, distributed=True).trained
    return min(config.training.minibatch, math.ceil(rows / at_once) * at_once)


def describe(config: Config, settings: OpenRLHF | None) -> list[str]:
    """The plan in sentences."""
    training, evaluation = config.training, config.evaluation
    plan = BatchPlan.of(config, distributed=settings is not None)
    again = ""
    rule, learned, tokens = training.filter_rule, plan.kept_episodes, config.turns.max_tokens_per_episode
    if training.refills:
        episodes = training.groups * training.group_size
        again = f" For those whose episodes all earn the same it plays others, in at most {training.refills} further "
        again += f"rounds of {episodes} episodes (training.refills)."
    if rule == "none":
        kept = f"There is no filter: all {training.groups} groups are trained on, {learned} episodes."
    else:
        most = "" if FILTER_RULES[rule].fixed_share else "up to "
        kept = (
            f"Then the filter ({rule}, {training.keep:g}) keeps {most}{plan.kept_groups} of {training.groups} groups: "
            f"{plan.kept_groups} x {training.group_size} = {learned} episodes to train on."
        )
    if GROUPINGS[training.groups_by].branches:
        trees = training.group_size // (1 + training.branches)
        kept = (
            f"Of the {training.group_size} episodes of a group {trees} are played from the start, and "
            f"{training.branches} branch off each of them. {kept}"
        )
    if plan.rows > learned:
        kept += f" Their prompts leave out earlier turns, so each is several rows, {plan.rows} in all at most."
    if plan.trained > plan.rows:
        kept += f" With those of earlier iterations, trained on again, they are {plan.trained} at most."
    unit = "episodes" if plan.rows == learned else "rows"
    rest = ""
    step = rows_of_step(config, settings) if settings else training.minibatch
    if padding := -plan.trained % step:
        filled = f" and {padding} rows of padding without loss" if settings else ""
        rest = f" The last minibatch of a pass has {step - padding} {unit}{filled}."
    passes = training.updates
    sentences = [
        f"An iteration plays {training.groups} prompts (levels) x {training.group_size} samples = {plan.episodes} "
        f"episodes, of at most {tokens} tokens each: at most {plan.episodes * tokens:,} tokens.{again}",
        kept,
        f"Those are cut into minibatches of {step}: {math.ceil(plan.trained / step)} of them, "
        f"{passes} pass{'es' * (passes > 1)} over them, so {plan.updates} update{'s' * (plan.updates > 1)} of the "
        f"policy{' and of the critic' if training.critic else ''} in an iteration.{rest}",
        f"The run: {training.iterations} iterations, {training.iterations * plan.episodes:,} episodes, "
        f"{plan.updates_in_all(training):,} updates.",
        f"Evaluated before and after on {evaluation.levels} fixed levels of the split {evaluation.split}, one episode "
        f"each, at temperature {evaluation.temperature:g}"
        + (f", and every {settings.evaluate_every} iterations." if settings and settings.evaluate_every else "."),
    ]
    if settings is None and evaluation.imitation and config.warm_start.epochs:
        sentences.append(
            "Then two more models imitate and are measured for comparison, one at the cost of the reinforcement, one a "
            "faultless demonstrator: evaluation.imitation says whether."
        )
    if settings and settings.staleness:
        behind = f"{settings.staleness} update{'s' * (settings.staleness > 1)} behind"
        sentences.append(
            f"While an iteration is trained the next is played: by weights that are {behind} "
            "(openrlhf.staleness), which training.correction makes up for. mismatch_kl says how far apart they are."
        )
    return [*sentences, *(_gpu_plan(config, settings) if settings else [])]


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


def _gpu_plan(config: Config, settings: OpenRLHF) -> list[str]:
    """Which GPUs do what, in sentences."""
    training, gpus, step = config.training, gpus_of_models(config, settings), rows_of_step(config, settings)
    engines, actor = settings.vllm_engines, gpus["actor"]
    names = {"actor": "the policy", "critic": "the critic", "reference": "the reference model"}
    models = [f"{name} on {gpus[model]}" for model, name in names.items() if gpus[model]]
    models.append(f"vLLM on {gpus['vllm']} ({engines} engine{'s' * (engines > 1)} of {settings.vllm_tensor_parallel})")
    if settings.colocate:
        first = (
            f"GPUs: {actor}, shared by all: {', '.join(models)}. A model that is not training keeps its weights on the "
            "GPU and its optimiser in the host's memory."
        )
    else:
        first = f"GPUs: {sum(gpus.values())}, each with one task: {', '.join(models)}."
    share = step // actor
    return [
        first,
        f"Each engine plays about {training.groups / engines:g} of the {training.groups} prompts, "
        f"{training.group_size} samples of each.",
        f"A minibatch of {step} is {share} episodes for each of the policy's GPUs, which read "
        f"{settings.micro_batch} at a time: {share // settings.micro_batch} passes, then one step of the optimiser.",
    ]


def doubts(config: Config, settings: OpenRLHF | None, games: Sequence[GamePlan]) -> list[str]:
    """Warnings: replies that do not fit into an episode of their game, and GPUs that stand idle.

    Args:
        config: of the run.
        settings: of the distributed trainer; None for the local one.
        games: every game that the run plays.
    """
    found = []
    for game in games:
        turns = game.config.turns
        replies = turns.max_turns if turns.history < 0 else min(turns.max_turns, turns.history + 1)
        if config.program.command or not turns.keep_thinking:  # what a prompt keeps of earlier replies is not known
            replies = 1
        most, limit = turns.max_tokens_per_episode, turns.max_tokens_per_turn
        others = game.prompt + (replies - 1) * game.between
        needed = others + replies * limit
        if needed > most:
            fits = max(0, most - others) // replies
            lower = f", or lower turns.max_tokens_per_turn to {fits}" if fits else ""
            of = f" of {game.config.game}" if len(games) > 1 else ""
            found.append(
                f"Replies{of} may not fit: {replies} of at most {limit:,} tokens and {others:,} of prompt and messages "
                f"are {needed:,}, but turns.max_tokens_per_episode={most}, so an episode of long replies is cut. Raise "
                f"it to {needed}{lower}."
            )
    return [*dict.fromkeys(found), *(_idle_gpus(config, settings) if settings else [])]


def _idle_gpus(config: Config, settings: OpenRLHF) -> list[str]:
    gpus, groups, engines = gpus_of_models(config, settings), config.training.groups, settings.vllm_engines
    found = []
    if not settings.colocate and not settings.staleness:
        rest = devices_needed(config, settings) - gpus["vllm"]
        found.append(
            f"GPUs stand idle: playing and training take turns, so the {gpus['vllm']} of vLLM wait while the models "
            f"train, and the other {rest} while vLLM plays. Use openrlhf.colocate=true to share them, or "
            "openrlhf.staleness=1 to play ahead."
        )
    busiest = math.ceil(groups / engines)
    idle = engines * busiest - groups
    if idle:
        needed = "engines without a prompt" if engines > groups else "places in the last round of prompts"
        found.append(
            f"GPUs stand idle: {groups} prompts do not divide evenly among {engines} engines, which leaves {idle} "
            f"{needed}. Make training.groups a multiple of openrlhf.vllm_engines."
        )
    return found


@dataclass(frozen=True)
class Rate:
    """The measured speed of whole iterations: parameters times tokens of the episodes, a second and device."""

    slow: float
    fast: float
    measured: str


#: By a part of the device's name. NeMo RL 0.4's performance summary: 1,562 tokens/s a GPU with 8.03B parameters, 540
#: with 32.8B. This project's benchmarks: SmolLM2-135M, 64 episodes an iteration, 407 to 3,438 tokens/s.
RATES = {
    "H100": Rate(
        12.5e12,
        17.7e12,
        "H100s with 8B and 32B models, 2,048 episodes an iteration (NeMo RL 0.4; fewer take longer)",
    ),
    "cpu": Rate(0.055e12, 0.46e12, "two CPU cores (AMD EPYC; Intel Xeon with AMX) with SmolLM2-135M"),
}


def duration(
    config: Config,
    device: str,
    devices: int,
    parameters: int | None,
    games: Sequence[GamePlan],
    seconds: Sequence[float],
) -> str:
    """The tokens of a run and the time that it takes, as a sentence.

    Args:
        config: of the run.
        device: ``cpu``, or the GPU's name.
        devices: how many of them.
        parameters: of a pretrained model; None for others, with which no rate was measured.
        games: every game that the run plays.
        seconds: of each iteration that the run's folder records.
    """
    training = config.training
    episodes = training.groups * training.group_size
    few = round(episodes * sum(game.iterations * game.played for game in games))
    many = round(episodes * sum(game.iterations * game.longest for game in games))
    tokens = f"The run plays {few:,} tokens if replies are as short as the demonstrator's, {many:,} at most"
    if seconds:
        left, one = max(0, training.iterations - len(seconds)), median(seconds)
        measured = f"Its {len(seconds)} iterations took {one:.3g} s each in the median"
        return f"{tokens}. {measured}. Estimate: {_time(left * one)} for the {left} that are left."
    kind = next((kind for kind in RATES if kind in device), "")
    if not kind or parameters is None:
        why = f"on {device}" if not kind else "with this model, or its size is not known"
        return f"{tokens}; how long that takes is not estimated, since no rate was measured {why}."
    rate = RATES[kind]
    fast, slow = (devices * each / parameters for each in (rate.fast, rate.slow))
    on = "" if kind == "cpu" else f" on {kind}s"
    return (
        f"{tokens}. Estimate{on}: {_time(few / fast)} to {_time(many / slow)}, without start and evaluation, from "
        f"rates measured on {rate.measured}."
    )


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def devices_needed(config: Config, settings: OpenRLHF) -> int:
    """Number of devices that the models of a run take if they share none."""
    return sum(gpus_of_models(config, settings).values())


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


def most_pictures(config: Config) -> int:
    """The most pictures of a prompt: one in each message of the environment that it keeps."""
    seen = [each.turns for each in all_settings(config) if each.turns.sees]
    return max((min(t.max_turns, t.history + 1) if t.history >= 0 else t.max_turns for t in seen), default=0)


def check_supported(config: Config, settings: OpenRLHF) -> None:
    """Checks that the distributed trainer can do what is asked for, and that the GPUs can share it.

    Raises:
        ValueError: gradient norms of a model that is divided among GPUs, a loss of whole episodes that are several
            rows, what the local trainer alone can do, a minibatch or episodes that the GPUs cannot share, models that
            cannot be placed on the GPUs as the settings say, stale episodes without correction, or LoRA settings that
            OpenRLHF does not take.
    """
    training, lora = config.training, config.lora
    if config.diagnostics.gradients_every and settings.zero_stage == 3:
        raise ValueError(
            "diagnostics.gradients_every needs openrlhf.zero_stage 2: at stage 3 no GPU holds all the weights in which "
            "the parts of the loss have their gradients. Use diagnostics.gradients_every=0, or stage 2."
        )
    _check_local_alone(config, settings)
    _check_visual(config, settings)
    _check_ahead(config, settings)
    gpus = gpus_of_models(config, settings)
    for model in ("actor", "critic"):
        if gpus[model] and training.minibatch % (settings.micro_batch * gpus[model]):
            raise ValueError(
                f"training.minibatch is {training.minibatch}; it must be a multiple of openrlhf.micro_batch="
                f"{settings.micro_batch} times the {gpus[model]} GPUs of the {model}."
            )
    episodes = training.groups * training.group_size
    if episodes < settings.micro_batch * gpus["actor"]:
        raise ValueError(
            f"training.groups times training.group_size is {episodes}; OpenRLHF needs a micro-batch for each GPU of "
            f"the actor, openrlhf.micro_batch={settings.micro_batch} times {gpus['actor']}: play more, or lower "
            "openrlhf.micro_batch."
        )
    if lora.rank and settings.zero_stage == 3:
        raise ValueError("lora.rank needs openrlhf.zero_stage 2: at stage 3 no GPU holds the weights to merge.")
    if lora.rank and not lora.alpha.is_integer():
        raise ValueError(f"lora.alpha is {lora.alpha}, which OpenRLHF takes as a whole number only.")
    for whose, count, product in (
        ("vLLM's", gpus["vllm"], "vllm_engines * vllm_tensor_parallel"),
        ("the critic's", gpus["critic"] or gpus["actor"], "critic_nodes * critic_gpus"),
    ):
        if settings.colocate and count != gpus["actor"]:
            raise ValueError(
                f"openrlhf.colocate puts every model on the same GPUs, so the actor's {gpus['actor']} and {whose} "
                f"{count} must be equal: actor_nodes * actor_gpus = {product}."
            )


def _check_local_alone(config: Config, settings: OpenRLHF) -> None:
    """Refuses what the local trainer alone can do, and levels beyond a given list."""
    training = config.training
    if not training.iterations:
        raise ValueError(
            "training.iterations is 0, which leaves the distributed trainer no prompts: use at least 1, or --backend "
            "local, whose warm start and evaluation need no reinforcement."
        )
    if max(_rows_of_episode(each) for each in all_settings(config)) > 1:
        for name, asked in (
            ("training.policy_loss", training.policy_loss if POLICY_LOSSES[training.policy_loss].sequences else ""),
            ("training.correction", training.correction if training.correction == "sequence" else ""),
            ("training.entropy_smoothing", f"{training.entropy_smoothing:g}" if training.entropy_smoothing else ""),
        ):
            if asked:
                raise ValueError(
                    f"{name}={asked} is about whole episodes, but prompts that leave out earlier turns (turns.history, "
                    "turns.keep_thinking) make several rows of one, which OpenRLHF does not join: use turns.history=-1 "
                    "and turns.keep_thinking=true, another setting, or --backend local."
                )
    if GROUPINGS[training.groups_by].branches:
        raise ValueError(
            f"training.groups_by={training.groups_by} is for the local trainer alone: OpenRLHF sends all samples of a "
            "prompt to its engines at once, and knows no second round that begins with what was sampled in the first. "
            "Use training.groups_by=state or level, or --backend local."
        )


def _check_ahead(config: Config, settings: OpenRLHF) -> None:
    """Refuses to play ahead of training where that cannot be, or is not corrected for."""
    staleness = f"openrlhf.staleness is {settings.staleness}"
    if settings.staleness and config.training.correction == "none":
        raise ValueError(
            f"{staleness}, so episodes come from older weights than those that are trained, and training.correction is "
            "'none': the loss would take their tokens for the current policy's. Leave training.correction out (token "
            "by default), or use openrlhf.staleness=0."
        )
    if settings.staleness and settings.colocate:
        raise ValueError(
            f"{staleness}, so vLLM plays while the models train, but with openrlhf.colocate they share their GPUs, and "
            "vLLM sleeps meanwhile: use openrlhf.colocate=false, or openrlhf.staleness=0."
        )


def _check_visual(config: Config, settings: OpenRLHF) -> None:
    """Refuses what OpenRLHF does not have for visual models."""
    if not is_visual(config):
        if settings.freeze_vision:
            raise ValueError("openrlhf.freeze_vision is for visual models, and this run has none; leave it out.")
        return
    if config.training.critic:
        raise ValueError(
            f"training.algo={config.training.algo} needs a critic, which OpenRLHF does not have for visual models; use "
            "training.algo=grpo, or --backend local."
        )
    if config.lora.rank:
        raise ValueError(
            "lora.rank is for models that read text only in the distributed trainer, which sends vLLM no merged "
            "weights of a visual model; use lora.rank=0 with openrlhf.freeze_vision=true, or --backend local."
        )
