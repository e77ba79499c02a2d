"""Losses over the sampled tokens: clipped policy loss, clipped value loss, entropy, KL penalty.

Every mean is the token mean: the sum over all masked tokens of the batch divided by their number, so that
each sampled token weighs the same however long its episode is (DAPO, arXiv 2503.14476, section 3.3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["PolicyStats", "entropy_of", "kl_penalty", "masked_mean", "policy_loss", "value_loss"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this size, so that one broken token cannot overflow the exponential."""


class PolicyStats(NamedTuple):
    """What `policy_loss` reports beside the loss; scalars without gradient."""

    clip_fraction: Tensor
    """Share of the masked tokens where the clipped term is the smaller one, so that they give no gradient."""
    approx_kl: Tensor
    """Token mean of the k3 estimate of KL(old || new), at least 0."""
    ratio_max: Tensor
    """Largest probability ratio new / old of a masked token."""


def masked_mean(x: Tensor, mask: Tensor, count: int | None = None) -> Tensor:
    """Sum of x over the mask divided by the number of masked entries.

    Args:
        x: float, any shape.
        mask: bool, the shape of x. Masked-out entries may hold anything, NaN too.
        count: divide by this number instead; when a minibatch is worked off in parts, give the number of
            masked tokens of the whole minibatch, so that the parts' losses add up to the minibatch's token
            mean.

    Returns:
        float scalar.

    Raises:
        ValueError: shapes that differ, or no entry to average over.
    """
    _check_shapes(x, mask)
    number = int(mask.sum()) if count is None else count
    if number < 1:
        raise ValueError("the mask selects no token; skip the update when no token is left to learn from")
    return torch.where(mask, x, torch.zeros_like(x)).sum() / number


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    count: int | None = None,
) -> tuple[Tensor, PolicyStats]:
    """Minus the token mean of min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    rho is the probability ratio exp(log_probs - old_log_probs). PPO (arXiv 1707.06347, equation 7) over
    whole trajectories (RAGEN, arXiv 2504.20073, section on StarPO), with the higher upper bound of DAPO
    (arXiv 2503.14476, section 3.1), which StarPO-S takes; `clip_high=0.2` is the symmetric clip of
    StarPO.

    Args:
        log_probs: float (rows, T), with gradient, of the tokens under the policy being trained.
        old_log_probs: float (rows, T), recorded when the tokens were sampled.
        advantages: float (rows, T).
        mask: bool (rows, T), the tokens in the loss: sampled ones only.
        clip_low: how far the ratio may fall below 1, in [0, 1).
        clip_high: how far the ratio may rise above 1, at least 0.
        count: see `masked_mean`.

    Returns:
        the loss (scalar, with gradient) and `PolicyStats`.

    Raises:
        ValueError: clip bounds out of range, shapes that differ, an empty mask.
    """
    if not 0 <= clip_low < 1 or clip_high < 0:
        raise ValueError(f"clip_low={clip_low}, clip_high={clip_high}; need 0 <= clip_low < 1 and clip_high >= 0")
    _check_shapes(log_probs, old_log_probs, advantages, mask)
    zero = torch.zeros_like(log_probs)
    log_ratio = torch.where(mask, log_probs - old_log_probs, zero).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = -masked_mean(torch.minimum(plain, clipped), mask, count)
    with torch.no_grad():
        stats = PolicyStats(
            clip_fraction=masked_mean((clipped < plain).to(ratio.dtype), mask),
            approx_kl=masked_mean(ratio - 1 - log_ratio, mask),
            ratio_max=torch.where(mask, ratio, zero).max(),
        )
    return loss, stats


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float = 0.2,
    count: int | None = None,
) -> Tensor:
    """Half the token mean of max((V - R)^2, (V_clipped - R)^2), V_clipped within `clip` of the old value.

    The critic's loss of PPO's reference implementation (Huang et al., "The 37 Implementation Details of PPO",
    detail 9).

    Args:
        values: float (rows, T), with gradient.
        old_values: float (rows, T), the critic's estimates when the advantages were computed.
        returns: float (rows, T), as `gae` returns them.
        mask: bool (rows, T).
        clip: how far a value may move from its old one before its gradient stops, above 0.
        count: see `masked_mean`.

    Returns:
        scalar, with gradient.

    Raises:
        ValueError: a clip that is not above 0, shapes that differ, an empty mask.
    """
    if clip <= 0:
        raise ValueError(f"clip is {clip}; it must be above 0 (float('inf') turns clipping off)")
    _check_shapes(values, old_values, returns, mask)
    clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
    return 0.5 * masked_mean(torch.maximum((values - returns) ** 2, (clipped - returns) ** 2), mask, count)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy in nats of the categorical distributions with these logits (the bonus of PPO, equation 9).

    Args:
        logits: float (..., vocabulary); -inf forbids an entry (one entry at least must be finite).

    Returns:
        float32 (...), in [0, log(vocabulary)].
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    # A forbidden entry has p log p = 0; 0 * -inf would be NaN, and so would its gradient.
    finite = torch.where(log_probs > -torch.inf, log_probs, torch.zeros_like(log_probs))
    return -(log_probs.exp() * finite).sum(dim=-1)


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "k1") -> Tensor:
    """Estimates, token by token, of KL(policy || reference) for tokens sampled from the policy.

    With d = log policy - log reference: k1 = d (unbiased, of either sign), k2 = d^2 / 2 (biased, low
    variance), k3 = exp(-d) - 1 + d (unbiased, at least 0). Schulman, "Approximating KL Divergence" (2020);
    k3 is GRPO's (arXiv 2402.03300, equation 4), k1 is vanilla StarPO's.

    Args:
        log_probs: float, any shape.
        ref_log_probs: float, the same shape.
        kind: "k1", "k2" or "k3".

    Returns:
        float, the same shape.

    Raises:
        ValueError: an unknown kind.
    """
    d = log_probs - ref_log_probs
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return torch.exp(-d) - 1 + d
    raise ValueError(f"kind is {kind!r}; it must be k1, k2 or k3")


def _check_shapes(*tensors: Tensor) -> None:
    """Broadcasting would hide a mistake here, so every tensor must have the shape of the mask, the last one."""
    if any(tensor.shape != tensors[-1].shape for tensor in tensors):
        raise ValueError(f"the tensors must have one shape, got {[tuple(tensor.shape) for tensor in tensors]}")
