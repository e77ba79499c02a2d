"""OpenRLHF's Ray actors with what this project adds to them; imported in the actors' processes and in the driver.

A model's output layer may hold ids that must not be sampled: padding beyond the tokenizer's ids, or ids that the small
model only reads. vLLM never draws them, and here they are suppressed in the trainer's logits too, so that both compute
the same policy and their log-probs agree.

OpenRLHF's critic learns on all tokens in the policy's loss, and starts at random. Here it learns where it has a return,
and its estimates start at 0, as in the local trainer. The policy's loss is that of ``ragen_agent.openrlhf.loss``.

OpenRLHF computes the logits of every token of every row. Where rows are not packed, ``SampledActor`` scores them as the
local trainer does: logits only where a token was sampled, and each distinct prefix of a micro-batch once.
"""

from __future__ import annotations

from multiprocessing import active_children
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import deepspeed
import ray
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from openrlhf.models import Actor
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from ragen_agent.inference.sampling import SUPPRESSED
from ragen_agent.inference.vision import FAMILIES, Vision, attach
from ragen_agent.openrlhf.experience import narrow_to_returns
from ragen_agent.openrlhf.loss import install, install_critic
from ragen_agent.openrlhf.merged_lora import save_merged, send_merged
from ragen_agent.openrlhf.pictures import copy_processor, cut_into_patches, visual_rows
from ragen_agent.openrlhf.processes import RunContext, kill_after_exit
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores

MAX_BATCHED_TOKENS = 8192  # that vLLM reads at a time on a CPU; at least one prompt


def _has_adapters() -> bool:
    """Whether the policy has LoRA adapters.

    A function of its own, because Ray pickles with an actor every module of torch that is named ``config``.
    """
    return RunContext.from_environment().config.lora.rank > 0


class SampledActor(Actor):  # type: ignore[misc]
    """A model that is asked for the log-probs and entropies of sampled tokens; made of one by ``_adapt``.

    ``vision`` is how it reads pictures; None if it reads text only.
    """

    vision: Vision | None

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
        actions, images = action_mask.shape[1], None  # the last columns
        if self.vision is not None:
            sequences, images = visual_rows(sequences, others, self.vision)
        sampled = torch.zeros_like(sequences, dtype=torch.bool)
        sampled[:, -actions:] = action_mask.bool()
        log_probs = torch.zeros_like(sequences, dtype=torch.float32)
        batch = Batch(sequences, sampled, attention_mask.long(), log_probs, images=images)
        log_probs, entropy = self.model(scored=batch)  # through DeepSpeed's engine, which hooks what it returns
        log_probs = log_probs[:, -actions:]
        return (log_probs, SimpleNamespace(entropy=entropy[:, 1:])) if return_output else log_probs


def _adapt(actor: Any, arguments: Any) -> None:
    """Suppresses ids in every forward pass of ``actor``, which becomes a ``SampledActor`` if the settings allow it."""
    run, module = RunContext.from_environment(), actor.model.module
    bias = torch.zeros(run.vocabulary_size)
    bias[list(run.suppressed_ids)] = SUPPRESSED
    whole, vision = arguments.ds, run.vision
    unread = vision is not None and module.config.model_type not in FAMILIES
    divided = whole.zero_stage == 3 or whole.ring_attn_size > 1 or whole.tensor_parallel_size > 1
    if whole.packing_samples or divided or unread:
        if run.suppressed_ids:
            _suppress(module, bias)
        if vision is not None:
            cut_into_patches(module, vision.processor)
        return
    plain: Any = module.get_base_model() if isinstance(module, PeftModel) else module
    forward = module.forward
    if vision is not None:
        attach(plain, vision)

    def scored_forward(*inputs: Any, scored: Batch | None = None, **named: Any) -> Any:
        if scored is None:
            return forward(*inputs, **named)
        scores = sampled_scores(plain, scored, bias.to(scored.ids.device), actor.temperature)
        return scores.log_probs, scores.entropy

    module.forward = scored_forward
    actor.__class__ = SampledActor
    actor.vision = vision


def _suppress(model: nn.Module, bias: Tensor) -> None:
    def suppress(module: nn.Module, arguments: Any, output: Any) -> Any:
        logits: Tensor = output["logits"]
        output["logits"] = logits.float() + bias.to(logits.device)
        return output

    model.register_forward_hook(suppress)


class GradNorms:
    """Takes the place of the ``get_grad_norm`` of OpenRLHF's strategy and notes the norm of every step.

    OpenRLHF asks after each micro-batch, when DeepSpeed still has the norm of the step before.
    """

    def __init__(self, strategy: Any) -> None:
        self.asked, self.micro_batches, self.calls = strategy.get_grad_norm, strategy.accumulated_gradient, 0
        self.norms: list[float] = []
        strategy.get_grad_norm = self

    def __call__(self, model: Any) -> float:
        """The strategy's norm, noted after the last micro-batch of a step."""
        norm = float(self.asked(model))
        self.calls += 1
        if not self.calls % self.micro_batches:
            self.norms.append(norm)
        return norm

    def mean(self, name: str) -> dict[str, float]:
        """Their mean since the last call, under this name; empty if there was no step."""
        norms, self.norms = self.norms, []
        return {name: fmean(norms)} if norms else {}


@ray.remote(num_gpus=1)
class PolicyActor(PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The model that is trained."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then scores as the module says."""
        trust_states()
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _adapt(self.actor, strategy.args)
        if _has_adapters():
            send_merged(self.trainer, self.actor.model.module)
        self.config = RunContext.from_environment().config
        install(self.trainer, self.config)
        self.norms = GradNorms(strategy)

    def fit(self, kl_ctl: float = 0.0) -> Any:
        """As OpenRLHF; but the gradient norm is the mean over the steps, not that of the last."""
        return super().fit(kl_ctl) | self.norms.mean("actor_grad_norm")

    def save_model(self) -> None:
        """As OpenRLHF; a model with LoRA adapters is saved merged, and they next to it, as by the local trainer.

        A visual one is saved with its image processor, which OpenRLHF leaves out: without it no picture can be read.
        """
        run, folder = RunContext.from_environment(), Path(self.strategy.args.ckpt.output_dir)
        if not _has_adapters():
            super().save_model()
        else:
            adapter = RunFolder(Path(run.folder)).adapter
            save_merged(self.actor.model.module, self.tokenizer, folder, adapter, Path(run.model))
        if self.strategy.is_rank_0():
            copy_processor(Path(run.model), folder)

    def begin_iteration(self, seed: int, rate_factor: float) -> None:
        """See the function of this name; the seed is that of the tokens which a loss draws, too."""
        begin_iteration(self.actor_scheduler, seed, rate_factor)
        self.trainer.generator = torch.Generator().manual_seed(seed)


def begin_iteration(scheduler: Any, seed: int, rate_factor: float) -> None:
    """Seeds the order of the minibatches and sets the learning rates: of a resumed run those of an uninterrupted one.

    The rate is that of the local trainer. The schedules of transformers go by the step, and begin a warm-up with 0.
    """
    torch.manual_seed(seed)
    scheduler.lr_lambdas = [lambda step: rate_factor for _ in scheduler.base_lrs]  # after each step
    for parameters, rate in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
        parameters["lr"] = rate * rate_factor


def trust_states() -> None:
    """Lets torch load the classes of DeepSpeed's own states, and no others (``TORCH_FORCE_WEIGHTS_ONLY_LOAD``)."""
    torch.serialization.add_safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address])


def start_at_zero(critic: Any) -> None:
    """Makes the estimates of OpenRLHF's critic 0 everywhere, and its head one that is trained."""
    head = getattr(critic, critic.value_head_prefix)
    adapted = isinstance(head, LoraLayer)  # whose adapter adds 0 at first
    weight = head.get_base_layer().weight if adapted else head.weight.requires_grad_(True)
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0), torch.no_grad():  # divided at stage 3
        weight.zero_()


@ray.remote(num_gpus=1)
class CriticActor(CriticModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The model that estimates values."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; but the estimates start at 0."""
        prepare = strategy.prepare

        def prepare_at_zero(model_and_settings: tuple[Any, Any]) -> Any:
            start_at_zero(model_and_settings[0])
            return prepare(model_and_settings)

        strategy.prepare = prepare_at_zero
        trust_states()
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        del strategy.prepare  # from which on it is OpenRLHF's again
        install_critic()
        self.norms = GradNorms(strategy)

    def fit(self) -> Any:
        """As OpenRLHF; but the gradient norm is the mean over the steps, not over their micro-batches."""
        return super().fit() | self.norms.mean("critic_grad_norm")

    def append(self, experience: Any) -> None:
        """As OpenRLHF, for a loss over the tokens that have a return alone."""
        narrow_to_returns(experience)
        super().append(experience)

    def begin_iteration(self, seed: int, rate_factor: float) -> None:
        """See the function of this name."""
        begin_iteration(self.critic_scheduler, seed, rate_factor)


@ray.remote(num_gpus=1)
class ReferenceActor(ReferenceModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The frozen model of vanilla StarPO's KL term."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF; then scores as the module says."""
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        _adapt(self.model, strategy.args)


class _VllmActor(RolloutRayActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """The owner of a vLLM engine, whose processes end with it; ``updates`` counts the weights that arrived."""

    updates = 0

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        await super().__init__(*args, **kwargs)
        engine = [child.pid for child in active_children() if child.pid is not None]
        self.killer = kill_after_exit(engine)  # whose own children end with it

    async def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> Any:
        """As OpenRLHF, which sets ``empty_cache`` with the last parameter of an update."""
        received = await super().update_weight(name, dtype, shape, empty_cache)
        self.updates += int(empty_cache)
        return received

    async def update_weight_cuda_ipc(
        self, name: str, dtype: Any, shape: Any, ipc_handles: Any, empty_cache: bool = False
    ) -> Any:
        """The same for weights that reach the engine through the memory of a GPU that it shares with the model."""
        received = await super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)
        self.updates += int(empty_cache)
        return received


class _CpuVllmActor(_VllmActor):
    """The same for an engine that receives its weights without CUDA."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        kwargs["worker_extension_cls"] = "ragen_agent.openrlhf.patches.CpuWorker"
        # When vLLM has read only a part of a prompt it rewinds the request's generator, which fails on a CPU ("CPU
        # Generator does not use offset") and ends the engine. So prompts are read in one piece.
        kwargs |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(MAX_BATCHED_TOKENS, kwargs["max_model_len"]),
        }
        # vLLM turns "uni" into a process of its own, to bind its threads to cores. Ours are not bound, so the engine's
        # process computes itself: a start takes one import of vLLM less.
        if kwargs["distributed_executor_backend"] == "uni":
            kwargs["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
        await super().__init__(*args, **kwargs)


VllmActor, CpuVllmActor = ray.remote(_VllmActor), ray.remote(_CpuVllmActor)
