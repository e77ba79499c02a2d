"""The losses and the KL terms, and how the terms of many tokens become one number.

``aggregate`` decides what a token weighs: with the token mean (the default) each sampled token of the batch weighs the
same however long its episode is; with the sequence mean each episode does, so a token of a long one weighs less; the
sequence sum and its constant-length form weigh tokens alike too, but do not shrink when a batch's episodes grow.

The divergence from a reference policy is estimated from the sampled tokens and may enter in two places. *In the
reward*, as a cost of each token (``kl_penalty``, subtracted from the token's reward with a critic, from its advantage
without one): the estimate's value matters, and k1 is unbiased. *In the loss* (``kl_loss``), where the estimate's
gradient matters: that of k2 is the gradient of the divergence in expectation, that of k1 is zero in expectation, and
that of k3 is the gradient of the reversed divergence to first order. Vanilla StarPO (RAGEN, arXiv 2504.20073) uses k1
with a weight of 0.001; StarPO-S uses none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ragen_agent.config.algorithms import AGGREGATIONS

__all__ = [
    "PolicyStats",
    "aggregate",
    "entropy_of",
    "kl_loss",
    "kl_penalty",
    "loss_count",
    "masked_mean",
    "policy_loss",
    "value_loss",
]


MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this size, so that one broken token cannot overflow the exponential."""


def aggregate(
    x: Tensor, mask: Tensor, how: str = "token_mean", *, length: int | None = None, count: int | None = None
) -> Tensor:
    """One number from the masked tokens of some rows.

    Args:
        x: float (rows, T). Masked-out entries may hold anything, NaN too.
        mask: bool (rows, T).
        how: a key of ``AGGREGATIONS``.
        length: the constant length of "constant", such as the most tokens that an episode may have; at least 1.
        count: ``loss_count`` of the whole minibatch, when it is worked off in parts: the parts' losses then add up to
            the minibatch's. None counts what is here.

    Returns:
        float scalar.

    Raises:
        ValueError: an unknown way, "constant" without a length, shapes that differ, or a mask without a token.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"how is {how!r}; it must be one of {', '.join(AGGREGATIONS)}")
    if how == "token_mean":
        return masked_mean(x, mask, count)
    check_shapes(x, mask)
    if mask.ndim != 2:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; give it as (rows, T)")
    number = loss_count(mask, how) if count is None else count
    if number < 1:
        raise ValueError("the mask selects no token; skip the update when no token is left to learn from")
    sums = torch.where(mask, x, torch.zeros_like(x)).sum(dim=1)
    if how == "sequence_mean":
        sums = sums / mask.sum(dim=1).clamp(min=1)
    elif how == "constant":
        if length is None or length < 1:
            raise ValueError(f"length is {length}; 'constant' divides by it, so it must be at least 1")
        sums = sums / length
    return sums.sum() / number


def loss_count(mask: Tensor, how: str = "token_mean") -> int:
    """What ``aggregate`` divides by: the number of masked tokens, or of rows that have one.

    Args:
        mask: bool (rows, T).
        how: a key of ``AGGREGATIONS``.
    """
    return int(mask.sum()) if how == "token_mean" else int(mask.any(dim=1).sum())


def masked_mean(x: Tensor, mask: Tensor, count: int | None = None) -> Tensor:
    """Sum of x over the mask divided by the number of masked entries.

    Args:
        x: float, any shape.
        mask: bool, the shape of x. Masked-out entries may hold anything, NaN too.
        count: divide by this number instead; see ``aggregate``.

    Returns:
        float scalar.

    Raises:
        ValueError: shapes that differ, or no entry to average over.
    """
    check_shapes(x, mask)
    number = int(mask.sum()) if count is None else count
    if number < 1:
        raise ValueError("the mask selects no token; skip the update when no token is left to learn from")
    return torch.where(mask, x, torch.zeros_like(x)).sum() / number


def check_shapes(*tensors: Tensor) -> None:
    """Raises where broadcasting would hide a mistake: every tensor must have the shape of the mask, the last one."""
    if any(tensor.shape != tensors[-1].shape for tensor in tensors):
        raise ValueError(f"the tensors must have one shape, got {[tuple(tensor.shape) for tensor in tensors]}")


class PolicyStats(NamedTuple):
    """What ``policy_loss`` reports next to the loss; scalars without gradient."""

    clip_fraction: Tensor
    """Share of the masked tokens whose term is held at a bound (the dual clip's too), so that they give no gradient."""
    approx_kl: Tensor
    """Token mean of the k3 estimate of KL(old || new), at least 0."""
    ratio_max: Tensor
    """Largest probability ratio new / old of a masked token."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    count: int | None = None,
    *,
    dual_clip: float | None = None,
    how: str = "token_mean",
    length: int | None = None,
) -> tuple[Tensor, PolicyStats]:
    """Minus the aggregate of min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    rho is the probability ratio exp(log_probs - old_log_probs). PPO (arXiv 1707.06347, equation 7) over
    whole trajectories (RAGEN, arXiv 2504.20073, section on StarPO), with the higher upper bound of DAPO
    (arXiv 2503.14476, section 3.1), which StarPO-S takes; ``clip_high=0.2`` is the symmetric clip of
    StarPO. The dual clip (Ye et al., arXiv 1912.09729, equation 5) bounds the term of a negative advantage from
    below, max(min(...), dual_clip A): a token that became far likelier since it was sampled cannot dominate the step.

    Args:
        log_probs: float (rows, T), with gradient, of the tokens under the policy being trained.
        old_log_probs: float (rows, T), recorded when the tokens were sampled.
        advantages: float (rows, T).
        mask: bool (rows, T), the tokens in the loss: sampled ones only.
        clip_low: how far the ratio may fall below 1, in [0, 1).
        clip_high: how far the ratio may rise above 1, at least 0.
        count: see ``aggregate``, as ``how`` and ``length``.
        dual_clip: the bound c above 1, 3 in the paper; None for no dual clip.
        how: see ``aggregate``.
        length: see ``aggregate``.

    Returns:
        the loss (scalar, with gradient) and ``PolicyStats``.

    Raises:
        ValueError: clip bounds out of range, shapes that differ, an empty mask.
    """
    if not 0 <= clip_low < 1 or clip_high < 0:
        raise ValueError(f"clip_low={clip_low}, clip_high={clip_high}; need 0 <= clip_low < 1 and clip_high >= 0")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip is {dual_clip}; it must be above 1, for example 3 (None turns it off)")
    check_shapes(log_probs, old_log_probs, advantages, mask)
    zero = torch.zeros_like(log_probs)
    log_ratio = torch.where(mask, log_probs - old_log_probs, zero).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    surrogate = torch.minimum(plain, clipped)
    dropped = clipped < plain
    if dual_clip is not None:
        floor = dual_clip * advantages
        dropped = dropped | ((advantages < 0) & (surrogate < floor))
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, floor), surrogate)
    loss = -aggregate(surrogate, mask, how, length=length, count=count)
    with torch.no_grad():
        stats = PolicyStats(
            clip_fraction=masked_mean(dropped.to(ratio.dtype), mask),
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
    *,
    how: str = "token_mean",
    length: int | None = None,
) -> Tensor:
    """Half the aggregate of max((V - R)^2, (V_clipped - R)^2), V_clipped within ``clip`` of the old value.

    The critic's loss of PPO's reference implementation (Huang et al., "The 37 Implementation Details of PPO",
    detail 9).

    Args:
        values: float (rows, T), with gradient.
        old_values: float (rows, T), the critic's estimates when the advantages were computed.
        returns: float (rows, T), as ``gae`` returns them.
        mask: bool (rows, T).
        clip: how far a value may move from its old one before its gradient stops, above 0.
        count: see ``aggregate``, as ``how`` and ``length``.
        how: see ``aggregate``.
        length: see ``aggregate``.

    Returns:
        scalar, with gradient.

    Raises:
        ValueError: a clip that is not above 0, shapes that differ, an empty mask.
    """
    if clip <= 0:
        raise ValueError(f"clip is {clip}; it must be above 0 (float('inf') turns clipping off)")
    check_shapes(values, old_values, returns, mask)
    clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
    errors = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * aggregate(errors, mask, how, length=length, count=count)


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


def kl_loss(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    kind: str = "k2",
    how: str = "token_mean",
    *,
    length: int | None = None,
    count: int | None = None,
) -> Tensor:
    """The estimate as a term of the loss, aggregated as the policy's loss is (GRPO, arXiv 2402.03300, equation 3).

    Args:
        log_probs: float (rows, T), with gradient.
        ref_log_probs: float (rows, T).
        mask: bool (rows, T).
        kind: a key of ``ragen_agent.config.algorithms.KL_ESTIMATES``; see the module for what the gradient of each is.
        how: see ``aggregate``, as ``length`` and ``count``.
        length: see ``aggregate``.
        count: see ``aggregate``.

    Returns:
        scalar, with gradient.

    Raises:
        ValueError: see ``kl_penalty`` and ``aggregate``.
    """
    zero = torch.zeros_like(log_probs)
    # Masked before the exponential: what stands outside the mask may be anything, and its gradient must be 0.
    estimate = kl_penalty(torch.where(mask, log_probs, zero), torch.where(mask, ref_log_probs, zero), kind)
    return aggregate(estimate, mask, how, length=length, count=count)
