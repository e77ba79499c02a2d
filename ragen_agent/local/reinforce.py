"""The update of StarPO: score groups of episodes, step the policy (RAGEN, arXiv 2504.20073, section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.local.batches import Batch, sampled_logits
from ragen_agent.local.critic import Critic
from ragen_agent.token_mdp import Trajectory

__all__ = ["Policy", "score", "update"]


@dataclass
class Policy:
    """What an update changes. `critic` (PPO) and `start`, the frozen model of vanilla StarPO's KL term, may be None."""

    model: PreTrainedModel
    optimiser: torch.optim.Optimizer
    bias: Tensor
    critic: Critic | None = None
    critic_optimiser: torch.optim.Optimizer | None = None
    start: PreTrainedModel | None = None


def score(trajectories: Sequence[Trajectory], settings: Training) -> tuple[Tensor, Tensor, Tensor]:
    """Compares the members of each group, which stand side by side.

    Returns:
        advantages (groups, members), kept (groups, members) bool, spread (groups,): the standard deviation of
        returns. Failed episodes are never kept.
    """
    shape = (-1, settings.members)
    returns = torch.tensor([t.total_reward for t in trajectories]).view(shape)
    counted = torch.tensor([t.failure is None for t in trajectories]).view(shape)
    spread = algo.spread(returns, counted)
    groups = algo.keep_top(spread, settings.keep) if settings.starpo_s else torch.ones_like(spread, dtype=torch.bool)
    return algo.normalised(returns, counted=counted), groups[:, None] & counted, spread


def update(
    policy: Policy, trajectories: Sequence[Trajectory], advantages: Tensor, settings: Training, seed: int
) -> dict[str, float]:
    """Gradient steps on the kept trajectories.

    Args:
        policy: changed in place.
        trajectories: rows to learn from, none of them failed.
        advantages: float (rows,), of whole trajectories; PPO estimates its own and does not read them.
        settings: `Training`.
        seed: of the minibatches.

    Returns:
        Means over the steps: entropy (nats a token), grad_norm (before clipping), clip_fraction, approx_kl, and with
        a critic value_loss; train_tokens, all tokens that went forward and backward; and, only where there were any,
        skipped_steps, those not taken because the gradient was not finite (they are in none of the means).
    """
    batch = Batch.of(trajectories, policy.bias.device)
    targets = _targets(policy, batch, trajectories, advantages, settings)
    generator = torch.Generator().manual_seed(seed)
    sums: dict[str, float] = {}
    steps = tokens = skipped = 0
    for _ in range(settings.updates):
        for chosen in torch.randperm(len(trajectories), generator=generator).split(settings.minibatch):
            part = batch.rows(chosen)
            measured = _step(policy, part, [target[chosen, : part.ids.shape[1]] for target in targets], settings)
            tokens += part.tokens * (1 if policy.critic is None else 2)
            if not all(map(math.isfinite, measured.values())):
                skipped += 1
                continue
            sums = {name: sums.get(name, 0.0) + value for name, value in measured.items()}
            steps += 1
    counts = {"train_tokens": tokens} | ({"skipped_steps": skipped} if skipped else {})
    return {name: value / steps for name, value in sums.items()} | counts


def _targets(
    policy: Policy, batch: Batch, trajectories: Sequence[Trajectory], advantages: Tensor, settings: Training
) -> list[Tensor]:
    """Advantages (rows, width), and for a critic its returns and its values before the update.

    Vanilla StarPO's KL penalty enters as a cost of each token, `kl` times the k1 estimate: with PPO as part of the
    reward, with GRPO as part of the token's advantage. (The gradient of k1 taken as a loss is zero in expectation.)
    """
    cost = torch.zeros_like(batch.log_probs)
    with torch.no_grad():
        if policy.start is not None:
            parts = torch.arange(len(trajectories)).split(settings.minibatch)
            for rows in parts:
                part = batch.rows(rows)
                reference = sampled_logits(policy.start, part, policy.bias, settings.temperature)[1]
                cost[rows, : part.ids.shape[1]] = settings.kl * algo.kl_penalty(part.log_probs, reference)
        if policy.critic is None:
            return [algo.broadcast_to_tokens(advantages.to(cost.device), batch.sampled) - cost]
        rewards = -cost
        for row, trajectory in enumerate(trajectories):
            rewards[row, list(trajectory.turn_ends)] += torch.tensor(trajectory.turn_rewards, device=cost.device)
        values = torch.where(batch.sampled, policy.critic(batch), 0.0)
        estimated, returns = algo.gae(rewards, values, batch.sampled, settings.gamma, settings.gae_lambda)
        return [algo.whiten(estimated, batch.sampled), returns, values]


def _step(policy: Policy, batch: Batch, targets: list[Tensor], settings: Training) -> dict[str, float]:
    clip_high = settings.clip_high if settings.starpo_s else settings.clip_low
    logits, log_probs = sampled_logits(policy.model, batch, policy.bias, settings.temperature)
    loss, stats = algo.policy_loss(log_probs, batch.log_probs, targets[0], batch.sampled, settings.clip_low, clip_high)
    entropy = algo.entropy_of(logits).mean()
    norm = _descend(policy.optimiser, loss - settings.entropy_bonus * entropy, policy.model, settings)
    measured = {
        "entropy": entropy,
        "grad_norm": norm,
        "clip_fraction": stats.clip_fraction,
        "approx_kl": stats.approx_kl,
    }
    if policy.critic is not None and policy.critic_optimiser is not None:
        _, returns, old = targets
        critic_loss = algo.value_loss(policy.critic(batch), old, returns, batch.sampled)
        critic_norm = _descend(policy.critic_optimiser, critic_loss, policy.critic, settings)
        measured["value_loss"] = critic_loss if bool(critic_norm.isfinite()) else critic_norm
    return {name: float(value.detach()) for name, value in measured.items()}


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, module: torch.nn.Module, settings: Training) -> Tensor:
    """The norm of the gradient before clipping; no step is taken where it is not finite, or the weights were lost."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
    if bool(norm.isfinite()):
        optimiser.step()
    return norm
