"""Advantages: how much better an episode, or a token, did than expected.

GRPO gives every sampled token of an episode the episode's return, normalised within the group of episodes
that share a level; PPO estimates an advantage for each token with a critic and GAE. Both over whole
trajectories: RAGEN (arXiv 2504.20073), section on StarPO.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.algo.filters import spread

__all__ = ["NORMALISATIONS", "broadcast_to_tokens", "gae", "group_normalised", "whiten"]

NORMALISATIONS = ("grpo", "mean_only", "none")


def group_normalised(returns: Tensor, mode: str = "grpo", eps: float = 1e-6, counted: Tensor | None = None) -> Tensor:
    """Advantages of whole episodes within the group that shares a level (RAGEN, StarPO with GRPO).

    `grpo`: (R - mean) / (std + eps), where std divides by G - 1 (the sample standard deviation, which is what
    torch.std and the implementations of GRPO compute; GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1).
    `mean_only`: R - mean (Dr. GRPO, arXiv 2503.20783, section 3.2: dividing by the std favours groups that
    are nearly decided). `none`: R itself.

    Args:
        returns: float (groups, members).
        mode: one of `NORMALISATIONS`.
        eps: added to the standard deviation.
        counted: bool (groups, members) or None; episodes that failed are False: they take no part in the
            mean and the std, and their advantage is 0. None counts all.

    Returns:
        float (groups, members); 0 for `grpo` and `mean_only` where a group's counted returns are all equal.

    Raises:
        ValueError: an unknown mode, or returns of another shape.
    """
    if mode not in NORMALISATIONS:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(NORMALISATIONS)}")
    deviation = spread(returns, counted)[:, None]
    keep = torch.ones_like(returns, dtype=torch.bool) if counted is None else counted
    zero = torch.zeros_like(returns)
    if mode == "none":
        return torch.where(keep, returns, zero)
    safe = torch.where(keep, returns, zero)
    centred = safe - safe.sum(dim=1, keepdim=True) / keep.sum(dim=1, keepdim=True).clamp(min=1)
    scaled = centred / (deviation + eps) if mode == "grpo" else centred
    return torch.where(keep & (deviation > 0), scaled, zero)


def broadcast_to_tokens(advantages: Tensor, sampled: Tensor) -> Tensor:
    """Each row's advantage at each of its sampled tokens, 0 at all others (RAGEN, StarPO with GRPO).

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


def gae(
    rewards: Tensor, values: Tensor, sampled: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over the sampled tokens (arXiv 1506.02438, equation 16).

    delta_t = r_t + gamma V_t' - V_t and A_t = delta_t + gamma lam A_t', where t' is the next *sampled*
    token of the row, and V_t' = A_t' = 0 after the last one. Tokens that were not sampled (prompt,
    observations, template) are not decisions of the policy: they are passed over and cost no discount. An
    episode that was truncated ends as one that terminated does: the budgets belong to the task.

    Args:
        rewards: float (rows, T); a turn's reward stands at its last sampled token.
        values: float (rows, T); values[t] is the critic's estimate before token t is sampled.
        sampled: bool (rows, T).
        gamma: discount per sampled token, in [0, 1].
        lam: the trace parameter lambda, in [0, 1].

    Returns:
        advantages and returns (advantages + values), both float (rows, T) and 0 where not sampled.

    Raises:
        ValueError: shapes that differ, or a reward at a token that was not sampled, which would be lost.
    """
    if not rewards.shape == values.shape == sampled.shape or rewards.ndim != 2:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}, values {tuple(values.shape)}, sampled {tuple(sampled.shape)}; they "
            "must share one shape (rows, T)"
        )
    if bool((rewards.ne(0) & ~sampled).any()):
        raise ValueError("a reward stands at a token that was not sampled; put it at its turn's last sampled token")
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(next_value)
    for t in reversed(range(values.shape[1])):
        here = sampled[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
        advantages[:, t] = torch.where(here, advantage, torch.zeros_like(advantage))
    return advantages, torch.where(sampled, advantages + values, torch.zeros_like(values))


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
