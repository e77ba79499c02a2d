"""OpenRLHF's Ray actors with what this project adds to them; imported in the actors' processes and in the driver.

A model's output layer may hold ids that must not be sampled: padding beyond the tokenizer's ids, or ids that the small
model only reads. vLLM never draws them, and here they are suppressed in the trainer's logits too, so that both compute
the same policy and their log-probs agree.
"""

from __future__ import annotations

from multiprocessing import active_children
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from torch import Tensor, nn

from ragen_agent.openrlhf.processes import RunContext, kill_after_exit
from ragen_agent.openrlhf.weight_broadcast import save_merged, send_merged
from ragen_gym.inference.torch_engine import SUPPRESSED

__all__ = ["CpuVllmActor", "CriticActor", "PolicyActor", "ReferenceActor", "VllmActor"]

MAX_BATCHED_TOKENS = 8192  # that vLLM reads at a time on a CPU; at least one prompt


def _has_adapters() -> bool:
    """Whether the policy has LoRA adapters.

    A function of its own, because Ray pickles with an actor every module of torch that is named ``config``.
    """
    return RunContext.from_environment().config.lora.rank > 0


def _suppress_ids(model: nn.Module, run: RunContext) -> None:
    """Adds ``SUPPRESSED`` to the logits of the suppressed ids in every forward pass of ``model``."""
    if not run.suppressed_ids:
        return
    bias = torch.zeros(run.vocabulary_size)
    bias[list(run.suppressed_ids)] = SUPPRESSED

    def suppress(module: nn.Module, arguments: Any, output: Any) -> Any:
        logits: Tensor = output["logits"]
        output["logits"] = logits.float() + bias.to(logits.device)
        return output

    model.register_forward_hook(suppress)


@ray.remote(num_gpus=1)
class PolicyActor(PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The model that is trained."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then suppresses ids and keeps minibatches of padding out of the means."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _suppress_ids(self.actor.model.module, RunContext.from_environment())
        if _has_adapters():
            send_merged(self.trainer, self.actor.model.module)
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

    def seed_minibatches(self, seed: int) -> None:
        """As ``PolicyActor.seed_minibatches``."""
        torch.manual_seed(seed)


@ray.remote(num_gpus=1)
class ReferenceActor(ReferenceModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The frozen model of vanilla StarPO's KL term."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then suppresses ids."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _suppress_ids(self.model.model.module, RunContext.from_environment())


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
