"""Supervised steps: the model imitates trajectories, token by token, on the tokens that a player wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.algo import masked_mean
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.batches import Batch, sampled_logits

__all__ = ["imitate"]


def imitate(
    model: PreTrainedModel,
    optimiser: torch.optim.Optimizer,
    batches: Iterable[Sequence[Trajectory]],
    bias: Tensor,
    *,
    max_grad_norm: float = 1.0,
    rate: Callable[[int], float] = lambda step: 1.0,
    report: Callable[[float], None] = lambda loss: None,
) -> int:
    """One step of maximum likelihood for each batch.

    Args:
        model: trained in place.
        optimiser: over the model's parameters.
        batches: trajectories to imitate.
        bias: see `sampled_logits`.
        max_grad_norm: gradients are scaled down to this norm.
        rate: factor on the learning rate at each step, from 0.
        report: called with each step's loss, in nats a token.

    Returns:
        Tokens that went forward and backward.
    """
    base = [group["lr"] for group in optimiser.param_groups]
    tokens = 0
    for step, rows in enumerate(batches):
        for group, lr in zip(optimiser.param_groups, base, strict=True):
            group["lr"] = lr * rate(step)
        batch = Batch.of(rows, bias.device)
        log_probs = sampled_logits(model, batch, bias)[1]
        loss = -masked_mean(log_probs, batch.sampled)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimiser.step()
        tokens += batch.tokens
        report(float(loss.detach()))
    for group, lr in zip(optimiser.param_groups, base, strict=True):
        group["lr"] = lr
    return tokens
