"""Regularisers of the policy loss: the entropy bonus with its band, and the divergence from a reference policy.

The divergence is estimated from the sampled tokens and may enter in two places. *In the reward*, as a cost of each
token (``kl_penalty``, subtracted from the token's reward with a critic, from its advantage without one), the estimate's
value matters, and k1 is unbiased. *In the loss* (``kl_loss``), the estimate's gradient matters: in expectation k2 has
the gradient of KL(policy || reference), k1 has none, and k3 has the gradient of KL(reference || policy), which agrees
with k2's to first order. Vanilla StarPO (RAGEN, arXiv 2504.20073) uses k1 in the
reward with a weight of 0.001; StarPO-S uses none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.algo.aggregation import aggregate, check_shapes
from ragen_agent.algo.losses import MAX_LOG_RATIO, log_prob_gap


def entropy_deviation(entropy: Tensor, mask: Tensor, average: float, band: tuple[float, float] = (0.5, 1.5)) -> Tensor:
    """Distance of each row's mean entropy from [low average, high average], at each of its masked tokens.

    EPO (arXiv 2509.22576, section on the entropy smoothing regularizer): the loss has -lambda (H - beta P), H the
    entropy, with P a penalty for an entropy outside a band around its mean over the iterations so far. In the paper and
    its code P is constant outside the band and so has no gradient; here it is the distance from the band, which has
    one. The entropy is averaged per row, the code's mode "seq".

    Args:
        entropy: float (rows, T), with gradient, nats.
        mask: bool (rows, T).
        average: nats a token, at least 0.
        band: the paper's kappa_l and kappa_r.

    Returns:
        float (rows, T), with gradient, at least 0; 0 outside the mask.
    """
    check_shapes(entropy, mask)
    zero = torch.zeros_like(entropy)
    mean = torch.where(mask, entropy, zero).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    outside = (band[0] * average - mean).clamp(min=0) + (mean - band[1] * average).clamp(min=0)
    return torch.where(mask, outside, zero)


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "k1") -> Tensor:
    """Token-wise estimates of KL(policy || reference) for tokens sampled from the policy.

    With d = log policy - log reference: k1 = d (unbiased, of either sign), k2 = d^2 / 2 (biased, low
    variance), k3 = exp(-d) - 1 + d (unbiased, at least 0). Schulman, "Approximating KL Divergence" (2020);
    k3 is GRPO's estimate (arXiv 2402.03300, equation 4), k1 vanilla StarPO's. In k3, d is clamped from below to
    -``losses.MAX_LOG_RATIO``, like the ratios of the policy losses, and has no gradient beyond it. Log-probs are
    clamped to at least ``losses.LOWEST_LOG_PROB``, so each estimate is finite.

    Args:
        log_probs: float, any shape.
        ref_log_probs: float, the same shape.
        kind: "k1", "k2" or "k3".

    Returns:
        float, the same shape.
    """
    d = log_prob_gap(log_probs, ref_log_probs)
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        d = d.clamp(min=-MAX_LOG_RATIO)
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
    count: float | None = None,
    row_tokens: Tensor | None = None,
) -> Tensor:
    """The estimate as a loss term, aggregated like the policy loss (GRPO, arXiv 2402.03300, equation 3).

    ``log_probs``, with gradient, ``ref_log_probs`` and ``mask`` are (rows, T); ``kind`` is a key of
    ``ragen_agent.config.algorithms.KL_ESTIMATES``, see the module for their gradients; the rest as in ``aggregate``.

    Returns:
        scalar, with gradient.
    """
    zero = torch.zeros_like(log_probs)
    # Masked before the exponential: entries outside the mask may be anything, and their gradient must be 0.
    estimate = kl_penalty(torch.where(mask, log_probs, zero), torch.where(mask, ref_log_probs, zero), kind)
    return aggregate(estimate, mask, how, length=length, count=count, row_tokens=row_tokens)
