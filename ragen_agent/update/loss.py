"""The terms of the policy's loss, as every backend computes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.config.algorithms import POLICY_LOSSES

Targets = dict[str, Tensor]
"""What a step reads next to its batch, each (rows, width): ``old``, the log-probs that the ratio compares with;
``advantages``; ``mask`` (M_loss); with a critic ``returns``, ``values`` and ``critic_mask`` (M_loss and M_adv); with a
KL term in the loss ``reference``, the log-probs of the start; with one in the reward ``divergence``, its estimate at
each sampled token; with a correction for the rollouts ``weights`` and ``corrected``: ``algo.mismatch_weights``."""


class Divisors(NamedTuple):
    """Divisors of the means over a minibatch, also where only some of its rows are computed at a time."""

    sampled: float  # tokens
    masked: float  # tokens in the loss
    terms: float  # ``algo.loss_count``
    row_tokens: Tensor | None = None  # see ``algo.aggregate``

    @classmethod
    def of(cls, sampled: Tensor, mask: Tensor, settings: Training) -> Divisors:
        """Of a whole minibatch; bool (rows, width) each."""
        return cls(int(sampled.sum()), int(mask.sum()), algo.loss_count(mask, settings.aggregation))


def loss_terms(
    log_probs: Tensor,
    entropy: Tensor,
    sampled: Tensor,
    targets: Targets,
    settings: Training,
    divisors: Divisors,
    *,
    length: int,
    average_entropy: float = 0.0,
    generator: torch.Generator | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The terms of the policy's loss: ``policy``, ``entropy`` (minus the bonus), and with a KL term in it ``kl``.

    Each is the aggregate over M_loss. With the divisors of a minibatch, the terms and figures of its parts add up to
    its own.

    Args:
        log_probs: float (rows, width), with gradient, of the sampled tokens.
        entropy: float (rows, width), with gradient, of the distributions that they were drawn from, in nats.
        sampled: bool (rows, width).
        targets: see ``Targets``; its mask has a token.
        settings: the algorithm's.
        divisors: of the minibatch.
        length: the most tokens that an episode may have, for the aggregation ``constant``.
        average_entropy: of the rollouts so far, in nats a token, for ``Training.entropy_smoothing``.
        generator: for a policy loss that draws tokens.

    Returns:
        the terms, with gradient, whose sum is the loss; and figures: ``entropy`` (the mean over all sampled tokens),
        ``clip_fraction`` and ``approx_kl`` (``algo.PolicyStats``), ``kl`` with a KL term, ``corrected`` (the share of
        tokens outside the bounds of the correction), and ``entropy_deviation`` (``algo.entropy_deviation``).
    """
    mask, how, rule = targets["mask"], settings.aggregation, settings.policy_loss
    summed: dict[str, Any] = {"length": length, "count": divisors.terms, "row_tokens": divisors.row_tokens}
    options: dict[str, Any] = settings.policy_loss_options
    if POLICY_LOSSES[rule].random:
        options["generator"] = generator
    loss, stats = algo.policy_loss(
        log_probs,
        targets["old"],
        targets["advantages"],
        mask,
        rule,
        how=how,
        weights=targets.get("weights"),
        **summed,
        **options,
    )
    bonus = algo.aggregate(entropy, mask, how, **summed)
    share = int(mask.sum()) / divisors.masked
    figures = {
        "entropy": algo.masked_mean(entropy, sampled, divisors.sampled),
        "clip_fraction": share * stats.clip_fraction,
        "approx_kl": share * stats.approx_kl,
    }
    if settings.entropy_smoothing:
        outside = algo.entropy_deviation(entropy, mask, average_entropy)
        figures["entropy_deviation"] = algo.masked_mean(outside, mask, divisors.masked)
        penalty = algo.aggregate(outside, mask, how, **summed)
        bonus = bonus - settings.entropy_smoothing * penalty
    if "corrected" in targets:
        figures["corrected"] = algo.masked_mean(targets["corrected"].float(), mask, divisors.masked)
    terms = {"policy": loss, "entropy": -settings.entropy_bonus * bonus}
    if "reference" in targets:
        figures["kl"] = algo.kl_loss(log_probs, targets["reference"], mask, settings.kl_estimate, how, **summed)
        terms["kl"] = settings.kl * figures["kl"]
    elif "divergence" in targets:
        figures["kl"] = algo.masked_mean(targets["divergence"], sampled, divisors.sampled)
    return terms, figures
