"""OpenRLHF's Ray actors with what this project adds to them; imported in the actors' processes and in the driver.

A model's output layer may hold ids that must not be sampled: padding beyond the tokenizer's ids, or ids that the small
model only reads. vLLM never draws them, and here they are suppressed in the trainer's logits too, so that both compute
the same policy and their log-probs agree.

OpenRLHF's entropy bonus and KL term are token means under every aggregation, and its critic learns on all tokens in the
policy's loss. Here both terms are aggregated as the policy's loss is, and a critic learns where it has a return.

OpenRLHF computes the logits of every token of every row. Where rows are not packed, ``SampledActor`` scores them as the
local trainer does: logits only where a token was sampled, and each distinct prefix of a micro-batch once.
"""

from __future__ import annotations

import sys
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.models import Actor, aggregate_loss
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from peft import PeftModel
from torch import Tensor, nn

from ragen_agent.openrlhf.experience import narrow_to_returns
from ragen_agent.openrlhf.processes import RunContext, kill_after_exit
from ragen_agent.openrlhf.weight_broadcast import save_merged, send_merged
from ragen_agent.training.batches import Batch
from ragen_agent.training.scoring import sampled_scores
from ragen_gym.inference.torch_engine import SUPPRESSED

__all__ = ["CpuVllmActor", "CriticActor", "PolicyActor", "ReferenceActor", "SampledActor", "VllmActor"]

MAX_BATCHED_TOKENS = 8192  # that vLLM reads at a time on a CPU; at least one prompt


def _has_adapters() -> bool:
    """Whether the policy has LoRA adapters.

    A function of its own, because Ray pickles with an actor every module of torch that is named ``config``.
    """
    return RunContext.from_environment().config.lora.rank > 0


class SampledActor(Actor):  # type: ignore[misc]
    """A model that is asked for the log-probs and entropies of sampled tokens; made of one by ``_adapt``."""

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        return_entropy: bool = False,
        **others: Any,
    ) -> Any:
        """As OpenRLHF's; rows are padded on the right, and figures of tokens outside ``action_mask`` are 0."""
        assert action_mask is not None
        assert attention_mask is not None
        actions = action_mask.shape[1]  # the last columns
        sampled = torch.zeros_like(sequences, dtype=torch.bool)
        sampled[:, -actions:] = action_mask.bool()
        batch = Batch(sequences, sampled, attention_mask.long(), torch.zeros_like(sequences, dtype=torch.float32))
        log_probs, entropy = self.model(scored=batch)  # through DeepSpeed's engine, which hooks what it returns
        log_probs = log_probs[:, -actions:]
        return (log_probs, SimpleNamespace(entropy=entropy[:, 1:])) if return_output else log_probs


def _adapt(actor: Any, arguments: Any) -> None:
    """Suppresses ids in every forward pass of ``actor``, which becomes a ``SampledActor`` if the settings allow it."""
    run, module = RunContext.from_environment(), actor.model.module
    bias = torch.zeros(run.vocabulary_size)
    bias[list(run.suppressed_ids)] = SUPPRESSED
    whole = arguments.ds
    if whole.packing_samples or whole.zero_stage == 3 or whole.ring_attn_size > 1 or whole.tensor_parallel_size > 1:
        if run.suppressed_ids:
            _suppress(module, bias)
        return
    plain: Any = module.get_base_model() if isinstance(module, PeftModel) else module
    forward = module.forward

    def scored_forward(*inputs: Any, scored: Batch | None = None, **named: Any) -> Any:
        if scored is None:
            return forward(*inputs, **named)
        scores = sampled_scores(plain, scored, bias.to(scored.ids.device), actor.temperature)
        return scores.log_probs, scores.entropy

    module.forward = scored_forward
    actor.__class__ = SampledActor


def _suppress(model: nn.Module, bias: Tensor) -> None:
    """Adds ``bias`` to the logits of every forward pass of ``model``."""

    def suppress(module: nn.Module, arguments: Any, output: Any) -> Any:
        logits: Tensor = output["logits"]
        output["logits"] = logits.float() + bias.to(logits.device)
        return output

    model.register_forward_hook(suppress)


def _aggregate_alike(trainer: Any) -> None:
    """Gives the other terms of the loss the aggregation of the policy's; this process has no other trainer."""
    module: Any = sys.modules[type(trainer).__module__]
    module.aggregate_loss = partial(aggregate_loss, token_level_loss=trainer.actor_loss_fn.token_level_loss)


@ray.remote(num_gpus=1)
class PolicyActor(PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The model that is trained."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then scores as the module says and keeps minibatches of padding out of the means."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _adapt(self.actor, strategy.args)
        if _has_adapters():
            send_merged(self.trainer, self.actor.model.module)
        _aggregate_alike(self.trainer)
        step = self.trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            status = step(*args, **kwargs)
            if not status["num_action_tokens"]:  # only padding: its means are 0 / 0
                status["metrics"] = {name: torch.as_tensor(value).float() for name, value in status["metrics"].items()}
                status["metrics"] = {name: value.nan_to_num() for name, value in status["metrics"].items()}
            return status

        self.trainer.training_step = training_step

    def save_model(self) -> None:
        """As OpenRLHF; a model with LoRA adapters is saved merged, not as adapters."""
        if not _has_adapters():
            super().save_model()
        else:
            save_merged(self.actor.model.module, self.tokenizer, Path(self.strategy.args.ckpt.output_dir))

    def seed_minibatches(self, seed: int) -> None:
        """Seeds the order of the minibatches, so that a resumed run has the same ones as an uninterrupted run."""
        torch.manual_seed(seed)


@ray.remote(num_gpus=1)
class CriticActor(CriticModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The model that estimates values."""

    def append(self, experience: Any) -> None:
        """As OpenRLHF, for a loss over the tokens that have a return alone."""
        narrow_to_returns(experience)
        super().append(experience)

    def seed_minibatches(self, seed: int) -> None:
        """As ``PolicyActor.seed_minibatches``."""
        torch.manual_seed(seed)


@ray.remote(num_gpus=1)
class ReferenceActor(ReferenceModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The frozen model of vanilla StarPO's KL term."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then scores as the module says."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _adapt(self.model, strategy.args)


class _VllmActor(RolloutRayActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The owner of a vLLM engine, whose processes end with it."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        await super().__init__(*args, **kwargs)
        engine = [child.pid for child in active_children() if child.pid is not None]
        self.killer = kill_after_exit(engine)  # whose own children end with it


class _CpuVllmActor(_VllmActor):
    """The same for an engine that receives its weights without CUDA."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        kwargs["worker_extension_cls"] = "ragen_agent.openrlhf.cpu_patches.CpuWorker"
        # When vLLM has read only a part of a prompt it rewinds the request's generator, which fails on a CPU ("CPU
        # Generator does not use offset") and ends the engine. So prompts are read in one piece.
        kwargs |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(MAX_BATCHED_TOKENS, kwargs["max_model_len"]),
        }
        await super().__init__(*args, **kwargs)


VllmActor, CpuVllmActor = ray.remote(_VllmActor), ray.remote(_CpuVllmActor)
