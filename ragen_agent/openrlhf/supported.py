"""Refusals of the distributed trainer: settings that OpenRLHF cannot follow, and models that it or vLLM cannot run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.algorithms import POLICY_LOSSES
from ragen_agent.config.config_checks import temperatures_for_vllm
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.cli_flags import extra_flags
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.preflight.plan import gpus_of_models, is_visual, rows_of_episode
from ragen_agent.tasks.tasks import all_settings
from ragen_agent.tokens.chat import ChatFormat

MOST_BIASED = 1024  # ids that vLLM's second model runner, used on GPUs, biases in a request


def check_supported(config: Config, settings: OpenRLHF) -> None:
    """Raises a ValueError for the first refusal that applies, of a setting or of ``openrlhf.flags``."""
    extra_flags(settings)
    for applies, reason in _refusals(config, settings):
        if applies:
            raise ValueError(reason)


def _refusals(config: Config, settings: OpenRLHF) -> Iterator[tuple[object, str]]:
    training, lora, gpus = config.training, config.lora, gpus_of_models(config, settings)
    yield from temperatures_for_vllm(config)
    whole = settings.zero_stage == 3
    yield (
        whole and lora.rank,
        "lora.rank needs openrlhf.zero_stage 2: at stage 3 no GPU holds the weights to merge.",
    )
    yield (
        lora.rank and not lora.alpha.is_integer(),
        f"lora.alpha is {lora.alpha}, which OpenRLHF takes as a whole number only.",
    )
    yield (
        not training.iterations,
        "training.iterations is 0, which leaves the distributed trainer no prompts: use at least 1, or --backend "
        "local, whose warm start and evaluation need no reinforcement.",
    )
    yield (
        training.branches,
        f"training.groups_by={training.groups_by} draws several replies from a state; here each episode is played on "
        "its own: use training.groups_by=level, or --backend local.",
    )
    several = max(map(rows_of_episode, all_settings(config))) > 1
    for name, asked, value in (
        ("policy_loss", POLICY_LOSSES[training.policy_loss].sequences, training.policy_loss),
        ("entropy_smoothing", training.entropy_smoothing, f"{training.entropy_smoothing:g}"),
    ):
        yield (
            several and asked,
            f"training.{name}={value} is about whole episodes, but prompts that leave out earlier turns "
            "(turns.history, turns.keep_thinking) make several rows of one, which OpenRLHF does not join: use "
            "turns.history=-1 and turns.keep_thinking=true, another setting, or --backend local.",
        )
    visual = is_visual(config)
    yield (
        settings.freeze_vision and not visual,
        "openrlhf.freeze_vision is for visual models, and this run has none; leave it out.",
    )
    yield (
        visual and training.critic,
        f"training.algo={training.algo} needs a critic, which OpenRLHF does not have for visual models; use "
        "training.algo=grpo, or --backend local.",
    )
    yield (
        visual and lora.rank,
        "lora.rank is for models that read text only in the distributed trainer, which sends vLLM no merged weights of "
        "a visual model; use lora.rank=0 with openrlhf.freeze_vision=true, or --backend local.",
    )
    yield (
        settings.staleness and training.correction == "none",
        f"openrlhf.staleness is {settings.staleness}, so episodes come from older weights than those that are trained, "
        "and training.correction is 'none': the loss would take their tokens for the current policy's. Leave "
        "training.correction out (clip by default), or use openrlhf.staleness=0.",
    )
    yield (
        settings.staleness and settings.colocate,
        f"openrlhf.staleness is {settings.staleness}, so vLLM plays while the models train, but with openrlhf.colocate "
        "they share their GPUs, and vLLM sleeps meanwhile: use openrlhf.colocate=false, or openrlhf.staleness=0.",
    )
    for model in ("actor", "critic"):
        yield (
            gpus[model] and training.minibatch % (settings.micro_batch * gpus[model]),
            f"training.minibatch is {training.minibatch}; it must be a multiple of openrlhf.micro_batch="
            f"{settings.micro_batch} times the {gpus[model]} GPUs of the {model}.",
        )
    episodes = training.groups * training.group_size
    yield (
        episodes < settings.micro_batch * gpus["actor"],
        f"training.groups times training.group_size is {episodes}; OpenRLHF needs a micro-batch for each GPU of the "
        f"actor, openrlhf.micro_batch={settings.micro_batch} times {gpus['actor']}: play more, or lower "
        "openrlhf.micro_batch.",
    )
    for whose, count, product in (
        ("vLLM's", gpus["vllm"], "vllm_engines * vllm_tensor_parallel"),
        ("the critic's", gpus["critic"] or gpus["actor"], "critic_nodes * critic_gpus"),
    ):
        yield (
            settings.colocate and count != gpus["actor"],
            f"openrlhf.colocate puts every model on the same GPUs, so the actor's {gpus['actor']} and {whose} {count} "
            f"must be equal: actor_nodes * actor_gpus = {product}.",
        )


def check_no_code(model: Path) -> None:
    """Raises a ValueError if a model's folder names code of its own: OpenRLHF and vLLM would run it."""
    for path in model.glob("*config.json"):
        keys: set[str] = set()
        with suppress(ValueError):  # damaged: the loader says so
            json.loads(path.read_text(encoding="utf-8"), object_hook=keys.update)
        if "auto_map" in keys:
            raise ValueError(
                f"{path} names code of the model's own (auto_map), which OpenRLHF would run: use a model that "
                "transformers knows, and remove auto_map from its files."
            )


def check_sees(config: Config, model: Path, context: RunContext) -> None:
    """Raises a ValueError if there are pictures, and the model or its chat template takes none."""
    if not any(each.turns.sees for each in all_settings(config)):
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    if refusal := ChatFormat.from_settings(tokenizer, config.turns, context.vision).image_refusal:
        raise ValueError(refusal)


def check_biased(count: int) -> None:
    """Raises a ValueError if vLLM on a GPU cannot leave out so many ids."""
    if count > MOST_BIASED:
        raise ValueError(
            f"{count:,} token ids of this model must not be sampled, and vLLM leaves out at most {MOST_BIASED:,} on a "
            "GPU: fit the output layer to the tokenizer with model.resize_token_embeddings(len(tokenizer))."
        )
