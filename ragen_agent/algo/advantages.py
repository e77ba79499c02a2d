"""Advantages on tokens: from one number for each episode, and on a common scale."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["broadcast_to_tokens", "whiten"]


def broadcast_to_tokens(advantages: Tensor, sampled: Tensor) -> Tensor:
    """Each row's advantage at each of its sampled tokens, 0 at all others (StarPO with GRPO, arXiv 2504.20073).

    Args:
        advantages: float (rows,).
        sampled: bool (rows, T).

    Returns:
        float (rows, T).
    """
    if advantages.ndim != 1 or sampled.ndim != 2 or len(advantages) != len(sampled):
        raise ValueError(
            f"advantages {tuple(advantages.shape)} and sampled {tuple(sampled.shape)} do not fit; "
            "give (rows,) and (rows, T)"
        )
    return advantages[:, None] * sampled.to(advantages.dtype)


def whiten(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the masked entries, 0 elsewhere.

    The usual last step on PPO's advantages (Huang et al., "The 37 Implementation Details of PPO", detail
    7). The variance divides by n - 1; with fewer than two masked entries the result is 0 everywhere.

    Args:
        x: float, any shape.
        mask: bool, the shape of x.
        eps: added to the variance.

    Returns:
        float, the shape of x.
    """
    zero = torch.zeros_like(x)
    number = mask.sum()
    if int(number) < 2:
        return zero
    mean = torch.where(mask, x, zero).sum() / number
    centred = torch.where(mask, x - mean, zero)
    return centred * torch.rsqrt((centred**2).sum() / (number - 1) + eps)
