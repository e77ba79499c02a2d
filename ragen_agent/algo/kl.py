"""The divergence from a reference policy, estimated from the sampled tokens.

It may enter in two places. *In the reward*, as a cost of each token (``kl_penalty``, subtracted from the token's reward
with a critic, from its advantage without one): the estimate's value matters, and k1 is unbiased. *In the loss*
(``kl_loss``), where the estimate's gradient matters: that of k2 is the gradient of the divergence in expectation, that
of k1 is zero in expectation, and that of k3 is the gradient of the reversed divergence to first order. Vanilla StarPO
(RAGEN, arXiv 2504.20073) uses k1 with a weight of 0.001; StarPO-S uses none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.algo.losses import aggregate

__all__ = ["kl_loss", "kl_penalty"]


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
