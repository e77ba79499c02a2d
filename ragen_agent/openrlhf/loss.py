"""The policy's loss in its process: OpenRLHF's, with our aggregations, and the gradient norms of its parts.

OpenRLHF's entropy bonus and KL term are token means under every aggregation; here all terms are aggregated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import openrlhf.models.loss
import torch
from openrlhf.models import PolicyLoss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ray import ppo_actor
from torch import Tensor

from ragen_agent.algo.losses import MAX_LOG_RATIO
from ragen_agent.config import Config

__all__ = ["MeasuredPolicyLoss", "aggregate_rows", "gradient_norms", "install", "measured"]

_STOCK: Callable[..., Tensor] = openrlhf.models.loss.aggregate_loss


def aggregate_rows(
    loss: Tensor,
    loss_mask: Tensor,
    token_level_loss: bool = False,
    dp_size: int = 1,
    batch_num_tokens: Tensor | float | None = None,
    global_batch_size: Tensor | float | None = None,
    *,
    length: float = 1.0,
) -> Tensor:
    """``sequence_sum``, and with a length ``constant``: the rows' sums, averaged over a step's rows that have a token.

    The arguments are those of OpenRLHF's ``aggregate_loss``, and ``length`` is what the sums are divided by.
    """
    if global_batch_size is None:
        global_batch_size = (loss_mask.sum(dim=-1) > 0).sum()
    return (loss * loss_mask).sum() / length / global_batch_size * dp_size


class MeasuredPolicyLoss(PolicyLoss):  # type: ignore[misc]
    """OpenRLHF's; ``approx_kl`` is the k3 estimate of the last rows, as the local trainer records it."""

    approx_kl: Tensor

    def forward(self, log_probs: Tensor, old_log_probs: Tensor, *others: Any, action_mask: Tensor, **named: Any) -> Any:
        """As OpenRLHF's."""
        with torch.no_grad():
            log_ratio = torch.where(action_mask.bool(), (log_probs - old_log_probs).float(), 0.0)
            log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            self.approx_kl = (log_ratio.exp() - 1 - log_ratio).sum() / action_mask.sum().clamp(min=1)
        return super().forward(log_probs, old_log_probs, *others, action_mask=action_mask, **named)


class _Aggregation:
    """``aggregate``, which keeps the token mean of what it aggregated last: in a step that is the entropy."""

    def __init__(self, aggregate: Callable[..., Tensor]) -> None:
        self.aggregate, self.token_mean = aggregate, torch.zeros(())

    def __call__(self, loss: Tensor, loss_mask: Tensor, **batch: Any) -> Tensor:
        with torch.no_grad():
            self.token_mean = (loss * loss_mask).sum() / loss_mask.sum()
        return self.aggregate(loss, loss_mask, **batch)


def install(trainer: Any, config: Config) -> None:
    """Gives every term of the loss the run's aggregation; this process has no other trainer."""
    trainer.actor_loss_fn.__class__ = MeasuredPolicyLoss
    how = config.training.aggregation
    aggregate: Callable[..., Tensor] = partial(_STOCK, token_level_loss=how == "token_mean")
    in_loss = _STOCK
    if how in ("sequence_sum", "constant"):
        length = float(config.turns.max_tokens_per_episode) if how == "constant" else 1.0
        aggregate = in_loss = partial(aggregate_rows, length=length)
    ppo_actor.aggregate_loss = _Aggregation(aggregate)
    openrlhf.models.loss.aggregate_loss = in_loss


def measured(trainer: Any) -> dict[str, Tensor]:
    """The figures of the rows of the last step, under OpenRLHF's names, as the local trainer has them: token means."""
    return {"approx_kl": trainer.actor_loss_fn.approx_kl, "entropy_loss": ppo_actor.aggregate_loss.token_mean}


def gradient_norms(trainer: Any, experiences: Sequence[Any], kl: float) -> dict[str, float]:
    """The gradient norms of the terms of the loss on some rows, which are one minibatch; nothing is changed.

    ``policy``, ``entropy`` and, with a KL term in the loss, ``kl``, each with its weight; empty where the loss has no
    token. The model of ``trainer`` must hold all its weights, and DeepSpeed must not see its passes.
    """
    tokens = sum(float(e.action_mask.sum()) for e in experiences)
    rows = sum(float((e.action_mask.sum(dim=-1) > 0).sum()) for e in experiences)
    batch = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": rows}
    parameters = [parameter for parameter in trainer.actor.parameters() if parameter.requires_grad]
    found: dict[str, list[Tensor]] = {}
    for experience in experiences:
        if not bool(experience.action_mask.any()):
            continue
        experience.to_device(torch.cuda.current_device())
        for name, term in _terms(trainer, experience, kl, batch).items():
            parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            sums = found.setdefault(name, [torch.zeros(()) for _ in parameters])
            for index, part in enumerate(parts):
                if part is not None:
                    sums[index] = sums[index].to(part.device) + part.float()
    return {name: float(torch.stack([part.norm().cpu() for part in sums]).norm()) for name, sums in found.items()}


def _terms(trainer: Any, experience: Any, kl: float, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The terms of the loss that ``ActorPPOTrainer.training_step`` adds up, with gradient."""
    arguments, mask, old = trainer.args, experience.action_mask, experience.action_log_probs
    log_probs, output = trainer.actor(
        experience.sequences,
        mask,
        attention_mask=experience.attention_mask,
        return_output=True,
        ring_attn_group=trainer.strategy.ring_attn_group,
        return_entropy=True,
    )
    loss = trainer.actor_loss_fn(
        log_probs,
        old,
        experience.advantages,
        action_mask=mask,
        rollout_log_probs=experience.rollout_log_probs,
        **batch,
    )[0]
    entropy = ppo_actor.aggregate_loss(output.entropy[:, -mask.shape[1] :], mask, **batch)
    terms = {"policy": loss, "entropy": -arguments.actor.entropy_coef * entropy}
    if arguments.algo.kl.use_loss:
        estimate = compute_approx_kl(
            log_probs,
            experience.base_action_log_probs,
            log_probs_old=old,
            kl_estimator=arguments.algo.kl.estimator,
            unbiased_gradient=arguments.algo.kl.unbiased_gradient,
        )
        terms["kl"] = kl * ppo_actor.aggregate_loss(estimate, mask, **batch)
    return terms
