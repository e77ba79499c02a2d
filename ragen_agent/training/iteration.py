"""What an iteration's episodes are worth: the groups to learn from, and how much better each episode did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.token_mdp import Trajectory

__all__ = ["ScoredGroups", "rewarded", "score"]


class ScoredGroups(NamedTuple):
    """The episodes compared with one another; a group's members stand side by side."""

    advantages: Tensor
    """float (groups, members), by the rule of `Training.algo`, times the group's weight; of no meaning for ppo."""
    kept: Tensor
    """bool (groups, members): the episodes to learn from. Failed ones are never kept."""
    spread: Tensor
    """float (groups,): the standard deviation of the returns."""
    weights: Tensor
    """float (groups,): the groups' weights by their spread; 1 without `Training.reweight`."""


def score(trajectories: Sequence[Trajectory], settings: Training, seed: int = 0) -> ScoredGroups:
    """Compares the members of each group, which stand side by side.

    Args:
        trajectories: an iteration's episodes, `settings.group_size` of each group.
        settings: rule, filter and weights.
        seed: of the random filter.
    """
    shape = (-1, settings.group_size)
    returns = torch.tensor([t.total_reward for t in trajectories]).view(shape)
    counted = torch.tensor([t.failure is None for t in trajectories]).view(shape)
    spread = algo.spread(returns, counted)
    filtered_by = algo.spread(_numbers(trajectories, settings, returns), counted, settings.filter_statistic)
    generator = torch.Generator().manual_seed(seed)
    groups = algo.keep_groups(filtered_by, settings.filter_rule, settings.keep, generator)
    weights = torch.ones_like(spread)
    if settings.reweight:
        weights = algo.spread_weights(spread, settings.reweight)
    advantages = algo.normalised(returns, "arpo" if settings.critic else settings.algo, counted=counted)
    return ScoredGroups(advantages * weights[:, None], groups[:, None] & counted, spread, weights)


def rewarded(trajectories: Sequence[Trajectory], rule: str) -> list[Trajectory]:
    """The episodes with `algo.format_reward` added to their turns, as the algorithms are to see them.

    Raises:
        ValueError: an environment that does not say whether its replies were well formed.
    """
    if rule == "none":
        return list(trajectories)
    changed = []
    for trajectory in trajectories:
        if len(trajectory.turn_facts) != len(trajectory.turn_ends):
            raise ValueError(
                f"training.format_reward is {rule!r}, but the environment does not say which replies were well "
                "formed; use training.format_reward=none."
            )
        formed = torch.tensor([not facts.problem for facts in trajectory.turn_facts], dtype=torch.bool)
        extra = algo.format_reward(formed, rule).tolist()
        rewards = tuple(reward + more for reward, more in zip(trajectory.turn_rewards, extra, strict=True))
        changed.append(replace(trajectory, turn_rewards=rewards))
    return changed


def _numbers(trajectories: Sequence[Trajectory], settings: Training, returns: Tensor) -> Tensor:
    """The number of each episode whose spread the filter reads, float (groups, members)."""
    if settings.filter_by == "reward":
        return returns
    lengths = torch.tensor([float(t.sampled.sum()) for t in trajectories])
    if settings.filter_by == "entropy":
        # By sampling: minus the log-prob of a sampled token is the entropy in the mean.
        surprise = torch.tensor([-float(t.log_probs.sum(dtype="float64")) for t in trajectories])
        lengths = surprise / lengths.clamp(min=1)
    return lengths.view(returns.shape)
