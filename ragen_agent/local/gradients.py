"""Gradient norms of the loss's terms by return std, on a batch of their own.

RAGEN-2 (arXiv 2604.06268) explains collapse by the balance of two gradients: the task's, which is small for groups
whose returns hardly differ, and that of the entropy bonus and the KL term, which does not depend on returns. As in its
code (``gradient_reporter.py``, ``split_into_buckets``) all groups of a batch are ordered by their return std and cut
into buckets of equally many groups, the last with the remainder, and each bucket is a minibatch without a step.

A norm of a mean over few episodes is mostly noise: it stays above 0 where the true gradient is 0. So beside each norm
stands an estimate of the squared norm of the *expected* gradient, 4 g1 . g2, where g1 and g2 are the sums over every
other group of the bucket, which are independent. It is unbiased but for the divisors and the slightly different stds
of the two halves, noisy itself, and negative as often as not where the true gradient is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ragen_agent.config import Training
from ragen_agent.config.algorithms import POLICY_LOSSES
from ragen_agent.local.backend import RolloutWorker
from ragen_agent.local.policy_update import Learner, cut, policy_terms, targets_of
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.trajectory import Trajectory, without_failed
from ragen_agent.update.advantages import weighted
from ragen_agent.update.batches import Batch
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.loss import Divisors, Targets
from ragen_agent.update.metrics import piece_decoder
from ragen_agent.update.scoring import passes

BUCKETS = 6


def _unfiltered(settings: Training) -> Training:
    """The settings with every group in the loss, at its full weight."""
    if settings.critic:
        raise ValueError(
            f"training.algo is {settings.algo}, whose advantages come from a critic, and a checkpoint holds none; "
            "measure the gradients of another estimator: --set training.algo=grpo, with training.credit=trajectory."
        )
    if POLICY_LOSSES[settings.policy_loss].batch_statistics:
        raise ValueError(
            f"training.policy_loss is {settings.policy_loss}, which compares the tokens of a whole minibatch, so a "
            "bucket has no gradient of its own; measure another loss: --set training.policy_loss=ppo."
        )
    plain: dict[str, Any] = {"filter": "none", "filter_statistic": "std", "filter_loss_scaling": "none", "keep": 1.0}
    return replace(settings, **plain, zero_task_advantage=False, refills=0)


def bucket_groups(return_std: Tensor) -> list[Tensor]:
    """Indices of each bucket's groups, by ascending ``return_std``, float (groups,); the last has the remainder."""
    size = len(return_std) // BUCKETS
    return list(return_std.argsort(stable=True).tensor_split([size * bucket for bucket in range(1, BUCKETS)]))


def gradient_buckets(policy: Policy, groups: int, reference: Policy | None = None) -> list[dict[str, Any]]:
    """Plays the iteration after a run's last and measures the gradients of its buckets, the first of all groups.

    Args:
        policy: the model to measure; its weights stay as they are, and all of them count, after LoRA too.
        groups: how many levels are played, ``training.group_size`` episodes each; at least two a bucket.
        reference: the run's start, for the KL term; None leaves that term out.

    Returns:
        For each bucket ``bucket`` (0 for all, or from 1 by ascending return std), ``groups``, ``episodes``, ``tokens``
        (sampled), ``return_std`` (mean), ``return_std_low``, ``return_std_high``; and of the terms ``task``,
        ``entropy`` and ``kl`` that have a weight the gradient's norm, and under ``..._expected`` the root of the
        estimate of the expected gradient's squared norm, with its sign.

    Raises:
        ValueError: too few groups; advantages that come from a critic, which a checkpoint does not hold; a loss that
            compares the tokens of a minibatch; or all episodes failed.
    """
    if groups < 2 * BUCKETS:
        raise ValueError(f"the batch has {groups} groups; give at least {2 * BUCKETS}, two for each of the buckets.")
    settings = _unfiltered(policy.config.training)
    number, config = settings.iterations, replace(policy.config, training=settings)
    worker = RolloutWorker(config, replace(policy, config=config))
    rollouts = worker.play(number, worker.instances(number, groups))
    without_failed(rollouts.trajectories)  # raises where none is left
    limit = config.turns.max_tokens_per_turn
    iteration = Iteration.score_and_filter(number, rollouts.trajectories, rollouts.games, settings, 0, limit)
    model = policy.model.requires_grad_(True)
    learner = Learner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),  # takes no step
        policy.engine.bias,
        reference_model=None if reference is None else reference.model,
        piece=piece_decoder(policy.tokenizer),
        longest=config.turns.max_tokens_per_episode,
    )
    learner.observe(iteration)
    rows, size, std = iteration.kept, settings.group_size, iteration.groups.return_std
    played = [iteration.learned[row] for row in rows]
    episodes, advantages = weighted(played, iteration.groups.advantages.flatten()[rows], 1.0, settings)
    place = {row: number for number, row in enumerate(rows)}
    found = []
    for bucket, chosen in enumerate([std.argsort(stable=True), *bucket_groups(std)]):
        halves = [
            [place[row] for group in half for row in range(group * size, (group + 1) * size) if row in place]
            for half in (chosen[::2].tolist(), chosen[1::2].tolist())
        ]
        own = [*halves[0], *halves[1]]
        stds = {"": std[chosen].mean(), "_low": std[chosen].min(), "_high": std[chosen].max()}
        found.append(
            {"bucket": bucket, "groups": len(chosen), "episodes": len(own)}
            | {f"return_std{name}": float(value) for name, value in stds.items()}
            | _measured(learner, [episodes[row] for row in own], advantages[own], len(halves[0]), settings)
        )
    return found


def _measured(
    learner: Learner, episodes: Sequence[Trajectory], advantages: Tensor, first: int, settings: Training
) -> dict[str, float]:
    """Tokens and gradients of a bucket's episodes, of which the ``first`` ones are of every other group."""
    if not episodes:
        return {"tokens": 0}
    batch = Batch.of(episodes, learner.bias.device)
    targets = targets_of(learner, batch, episodes, advantages, settings)
    halves = torch.arange(len(episodes)).split([first, len(episodes) - first])
    found: dict[str, float] = {"tokens": int(batch.sampled.sum())}
    kl = learner.reference_model is not None
    for term in ["task", *["entropy"] * bool(settings.entropy_bonus), *["kl"] * kl]:
        one, other = (_gradient(learner, batch, targets, half, term, settings) for half in halves)
        common = _dot(one, other)
        found[term] = math.sqrt(max(0.0, _dot(one, one) + 2 * common + _dot(other, other)))
        found[f"{term}_expected"] = math.copysign(2 * math.sqrt(abs(common)), common)
    return found


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return sum(float((a * b).sum(dtype=torch.float64)) for a, b in zip(one, other, strict=True))


def _gradient(
    learner: Learner, batch: Batch, targets: Targets, rows: Tensor, term: str, settings: Training
) -> list[Tensor]:
    """The part of some rows in the gradient of a term of the whole batch's loss, float32, of each weight."""
    weights = list(learner.model.parameters())
    total = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    divisors = Divisors.of(batch.sampled, targets["mask"], settings)
    for part in passes(learner.model, batch.rows(rows)) if len(rows) else []:
        chosen = rows[part.cpu()]
        some = batch.rows(chosen)
        wanted = _only(cut(targets, chosen, some), term, settings)
        terms, _ = policy_terms(learner, some, wanted, settings, divisors)
        name = {"task": "policy", "kl": "kl" if "kl" in terms else "policy"}.get(term, term)
        for sum_, gradient in zip(total, torch.autograd.grad(terms[name], weights, allow_unused=True), strict=True):
            if gradient is not None:
                sum_ += gradient
    return total


def _only(targets: Targets, term: str, settings: Training) -> Targets:
    """The targets for one term: a KL penalty of the reward is part of the advantages, and is taken apart here."""
    if "divergence" not in targets:
        return targets
    cost = settings.kl * targets["divergence"]
    return targets | {"advantages": -cost if term == "kl" else targets["advantages"] + cost}
