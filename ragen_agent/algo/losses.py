"""The losses of the policy and the critic, one function per formula.

For each token, r = pi / pi_old is the probability ratio of the current policy to the sampling policy, A the advantage,
and sg(x) the value of x without its gradient. Tensors are (rows, T), a row is an episode and ``mask`` (bool) the tokens
in the loss; entries outside the mask may be anything. Each function of ``POLICY_LOSSES`` returns
``TokenTerms``, and ``policy_loss`` aggregates them: the loss is minus the aggregate of ``surrogate``.

OpenRLHF's rollout correction weighs the terms (``mismatch_weights``), because vLLM's probabilities of the sampled
tokens are not exactly the trainer's.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ragen_agent.algo.aggregation import aggregate, check_shapes, masked_mean
from ragen_agent.config.algorithms import POLICY_LOSSES

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this size before their exponential, so that one broken token cannot overflow it. This is
the bound of verl (``compute_policy_loss`` and ``kl_penalty`` in verl/trainer/ppo/core_algos.py) and of OpenRLHF's
PPO."""

LOWEST_LOG_PROB = -1e4
"""Log-probs are clamped from below to this: the difference of two log-probs of -inf would be NaN."""


class TokenTerms(NamedTuple):
    """Terms of a policy loss for each token; both (rows, T)."""

    surrogate: Tensor
    """float, with gradient: the term to maximise."""
    restrained: Tensor
    """The share of the token's own gradient that the loss removes: False or True, or a float from 0 to 1. CISPO and
    KL-Cov remove none; for them it is True for tokens with a capped weight or a penalty."""


def ppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> TokenTerms:
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    PPO (arXiv 1707.06347, equation 7) over whole trajectories (RAGEN, arXiv 2504.20073, section on StarPO), with the
    higher upper bound of DAPO (arXiv 2503.14476, section 3.1), which StarPO-S takes; ``clip_high=0.2`` is the symmetric
    clip of StarPO.

    Args:
        log_probs: float (rows, T), with gradient, of the tokens under the policy being trained.
        old_log_probs: float (rows, T), recorded when the tokens were sampled.
        advantages: float (rows, T).
        mask: bool (rows, T), the tokens in the loss: sampled ones only.
        clip_low: the lower bound of the ratio is 1 - clip_low, in [0, 1).
        clip_high: the upper bound of the ratio is 1 + clip_high, at least 0.
    """
    ratio = log_ratio(log_probs, old_log_probs, mask).exp()
    return _clipped(ratio, advantages, clip_low, clip_high)


def gspo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> TokenTerms:
    """min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) with s = (pi / pi_old)^(1 / length) of the whole row.

    GSPO (arXiv 2507.18071, equations 5 and 7): the ratio and its clip are per sequence, like the rewards; s is the
    geometric mean of the row's r. The bounds are the paper's (section 5.1); with them most rows are clipped. The paper
    averages rows, ``how="sequence_mean"``. If the advantages in a row differ, each of its tokens has the gradient of
    their mean (unlike the paper's GSPO-token, section 4.3). Arguments as in ``ppo``.
    """
    length = mask.sum(dim=1, keepdim=True).clamp(min=1)
    mean = log_ratio(log_probs, old_log_probs, mask).sum(dim=1, keepdim=True) / length
    return _clipped(mean.exp().expand_as(log_probs), advantages, clip_low, clip_high)


def cispo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, clip_high: float = 4.0
) -> TokenTerms:
    """sg(min(r, 1 + clip_high)) A log pi.

    CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5): the weight is clipped, not the update, so every token keeps
    its gradient; there is no lower bound, as in the paper. ``restrained``: tokens whose weight is clipped.
    """
    ratio = log_ratio(log_probs, old_log_probs, mask).exp()
    log_probs = log_probs.clamp(min=LOWEST_LOG_PROB)
    return TokenTerms(ratio.clamp(max=1 + clip_high).detach() * advantages * log_probs, ratio > 1 + clip_high)


def sapo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperatures: tuple[float, float] = (1.0, 1.05),
) -> TokenTerms:
    """(4 / tau) sigmoid(tau (r - 1)) A, with one tau for positive advantages and one for the others.

    SAPO (arXiv 2511.20347, section on the objective): the gate saturates smoothly on both sides of r = 1, where its
    slope is 1, like the slope of r. ``restrained``: 1 minus this slope, 1 - 4 p (1 - p) with p the sigmoid.
    """
    ratio = log_ratio(log_probs, old_log_probs, mask).exp()
    positive, other = (torch.full_like(advantages, temperature) for temperature in temperatures)
    tau = torch.where(advantages > 0, positive, other)
    gate = torch.sigmoid(tau * (ratio - 1))
    return TokenTerms(4 / tau * gate * advantages, 1 - 4 * gate * (1 - gate))


def clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    share: float = 2e-3,
    band: tuple[float, float] = (1.0, 5.0),
    generator: torch.Generator | None = None,
) -> TokenTerms:
    """Like ``ppo``, but 0 at tokens drawn from those with a high covariance, (log pi - mean)(A - mean).

    Clip-Cov (arXiv 2505.22617, section on Clip-Cov and KL-Cov): these tokens, likely ones with a high advantage, lower
    the entropy most. A ``share`` of all tokens in the loss, at least one, is drawn uniformly from the unclipped tokens
    whose covariance lies within ``band``; means are over the given tokens.

    ``share`` is the paper's r, there 0.0002, above 0 and at most 1; ``band`` the paper's omega_low and omega_high;
    ``generator`` is on the CPU, by default with the seed 0. Other arguments as in ``ppo``.
    """
    surrogate, clipped = ppo(log_probs, old_log_probs, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    covariance = _covariance(log_probs, advantages, mask)
    candidates = ((covariance > band[0]) & (covariance < band[1]) & ~clipped).flatten().nonzero().flatten()
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    drawn = torch.zeros_like(clipped).flatten()
    drawn[candidates[order[: _number(share, mask)]]] = True
    drawn = drawn.view_as(clipped)
    return TokenTerms(torch.where(drawn, torch.zeros_like(surrogate), surrogate), clipped | drawn)


def kl_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    share: float = 2e-3,
    weight: float = 1.0,
) -> TokenTerms:
    """The unclipped r A, minus weight |log r| at the tokens with the highest covariance, (log pi - mean)(A - mean).

    KL-Cov (arXiv 2505.22617, section on Clip-Cov and KL-Cov, the penalty as in its code): ``share`` of the tokens in
    the loss, the paper's k, at least one. At the sampling policy the penalty has no gradient, so it acts from the
    second step on a batch. ``restrained``: the penalised tokens.
    """
    change = log_ratio(log_probs, old_log_probs, mask)
    covariance = _covariance(log_probs, advantages, mask)
    highest = torch.zeros_like(mask).flatten()
    highest[covariance.flatten().topk(_number(share, mask)).indices] = True
    highest = highest.view_as(mask)
    surrogate = change.exp() * advantages
    return TokenTerms(torch.where(highest, surrogate - weight * change.abs(), surrogate), highest)


class PolicyStats(NamedTuple):
    """Statistics of ``policy_loss``; scalars without gradient."""

    clip_fraction: Tensor
    """Token mean of ``TokenTerms.restrained``: with a clip, the share of masked tokens whose term is at a bound and
    has no gradient."""
    approx_kl: Tensor
    """Token mean of the k3 estimate of KL(old || new), at least 0."""


def token_terms(
    rule: str, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, **options: Any
) -> TokenTerms:
    """The terms of a rule of ``ragen_agent.config.algorithms.POLICY_LOSSES``; ``options`` go to its function."""
    if rule not in POLICY_LOSSES:
        raise ValueError(f"rule is {rule!r}; it must be one of {', '.join(POLICY_LOSSES)}")
    check_shapes(log_probs, old_log_probs, advantages, mask)
    # A row's ratio has gradients through every entry of the row, so none may be NaN.
    advantages = torch.where(mask, advantages, torch.zeros_like(advantages))
    function = resolve_name(POLICY_LOSSES[rule].function)
    terms: TokenTerms = function(log_probs, old_log_probs, advantages, mask, **options)
    return terms


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    rule: str = "ppo",
    *,
    how: str = "token_mean",
    length: int | None = None,
    count: float | None = None,
    row_tokens: Tensor | None = None,
    weights: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, PolicyStats]:
    """Minus the aggregate of a rule's terms, and its statistics.

    The tensors are as in ``ppo``; ``how``, ``length``, ``count`` and ``row_tokens`` as in ``aggregate``. ``rule`` is a
    key of ``ragen_agent.config.algorithms.POLICY_LOSSES``, and ``options`` go to its function, such as ``clip_high``.
    ``weights``, float (rows, T), are factors of the terms, see ``mismatch_weights``.

    Returns:
        the loss (scalar, with gradient) and ``PolicyStats``.
    """
    surrogate, restrained = token_terms(rule, log_probs, old_log_probs, advantages, mask, **options)
    if weights is not None:
        check_shapes(weights, mask)
        surrogate = surrogate * torch.where(mask, weights, torch.zeros_like(weights))
    loss = -aggregate(surrogate, mask, how, length=length, count=count, row_tokens=row_tokens)
    with torch.no_grad():
        change = log_ratio(log_probs, old_log_probs, mask)
        stats = PolicyStats(
            clip_fraction=masked_mean(restrained.to(change.dtype), mask),
            approx_kl=masked_mean(change.exp() - 1 - change, mask),
        )
    return loss, stats


def mismatch_weights(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    mode: str = "clip",
    bounds: tuple[float, float] = (0.0, 2.0),
) -> tuple[Tensor, Tensor]:
    """Importance weights that correct a policy loss for the mismatch between sampling engine and trainer.

    With rho = pi_trainer / pi_rollout, both before the first step. TIS (Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training"): mode clip weighs a token by min(rho, C), here by rho within
    ``bounds``. IcePop (Ring-1T, arXiv 2510.18855): mode mask weighs by rho and drops tokens outside ``bounds``.

    Args:
        log_probs: float (rows, T), by the trainer.
        rollout_log_probs: float (rows, T), by the sampling engine.
        mask: bool (rows, T).
        mode: "clip" or "mask".
        bounds: lower and upper bound.

    Returns:
        the weights, float (rows, T), without gradient, 0 outside the mask; and bool (rows, T), the masked tokens
        outside ``bounds``.
    """
    check_shapes(log_probs, rollout_log_probs, mask)
    if mode not in ("clip", "mask"):
        raise ValueError(f"mode is {mode!r}; it must be clip or mask")
    zero = torch.zeros_like(log_probs)
    ratio = log_ratio(log_probs, rollout_log_probs, mask).detach().exp()
    outside = mask & ((ratio < bounds[0]) | (ratio > bounds[1]))
    weights = ratio.clamp(*bounds) if mode == "clip" else torch.where(outside, zero, ratio)
    return torch.where(mask, weights, zero), outside


def log_prob_gap(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """Difference of log-probs, each clamped to at least ``LOWEST_LOG_PROB``: finite, with finite gradients."""
    return log_probs.clamp(min=LOWEST_LOG_PROB) - other_log_probs.clamp(min=LOWEST_LOG_PROB)


def log_ratio(log_probs: Tensor, other_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Log of each token's probability ratio, clamped to ``MAX_LOG_RATIO``; 0 outside the mask.

    Clamped entries have no gradient.
    """
    gap = log_prob_gap(log_probs, other_log_probs)
    return torch.where(mask, gap, torch.zeros_like(gap)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float = 0.2) -> Tensor:
    """Half the token mean of max((V - R)^2, (V_clipped - R)^2), V_clipped within ``clip`` of the old value.

    As in PPO's reference implementation (Huang et al., "The 37 Implementation Details of PPO",
    detail 9).

    Args:
        values: float (rows, T), with gradient.
        old_values: float (rows, T), the critic's estimates when the advantages were computed.
        returns: float (rows, T), as ``gae`` returns them.
        mask: bool (rows, T).
        clip: maximum distance of a value from its old value before its gradient stops, above 0.

    Returns:
        scalar, with gradient.
    """
    if clip <= 0:
        raise ValueError(f"clip is {clip}; it must be above 0 (float('inf') turns clipping off)")
    check_shapes(values, old_values, returns, mask)
    clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
    errors = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * masked_mean(errors, mask)


def _clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> TokenTerms:
    """min(ratio A, clip(ratio) A)."""
    if not 0 <= clip_low < 1 or clip_high < 0:
        raise ValueError(f"clip_low={clip_low}, clip_high={clip_high}; need 0 <= clip_low < 1 and clip_high >= 0")
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return TokenTerms(torch.minimum(plain, clipped), clipped < plain)


def _covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(log pi - mean)(A - mean) of each masked token, without gradient; -inf elsewhere."""
    product = torch.ones_like(log_probs)
    for x in (log_probs.detach().clamp(min=LOWEST_LOG_PROB), advantages):
        product = product * (torch.where(mask, x, torch.zeros_like(x)) - masked_mean(x, mask))
    return torch.where(mask, product, torch.full_like(product, -torch.inf))


def _number(share: float, mask: Tensor) -> int:
    """The number of tokens in a share of the masked tokens, at least one."""
    return max(1, int(share * int(mask.sum())))
