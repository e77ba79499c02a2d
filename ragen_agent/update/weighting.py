"""Weights of the advantages in the loss: by the filter's kept share, by length, and none at all.

RAGEN's code applies these three to finished advantages (``filter_loss_scaling``, ``grpo_advantage_length_weight``,
``zero_task_advantage``). A KL penalty in the reward of a rule without critic, and the other terms of the loss, keep
their weight, so the factors set how strongly the task acts against the regularisers. AdamW divides by the gradient's
size: without a regulariser a constant factor hardly changes its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config import Training
from ragen_agent.tokens.trajectory import Trajectory

__all__ = ["task_scale", "weighted"]


def task_scale(kept: int, settings: Training) -> float:
    """Factor of all advantages of an iteration, in [0, 1].

    ``kept`` is the number of groups that the filter keeps; the share is of ``Training.groups``, which dynamic sampling
    does not exceed. A critic's advantages take it after their whitening.
    """
    if settings.zero_task_advantage:
        return 0.0
    share = kept / settings.groups
    return {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[settings.filter_loss_scaling]


def weighted(
    trajectories: Sequence[Trajectory], advantages: Tensor, scale: float, settings: Training
) -> tuple[list[Trajectory], Tensor]:
    """The episodes and their advantages, float (rows,), times the scale and with it, if set, ``algo.length_weights``.

    The turns' own advantages, if there are any, get the weight of their episode.
    """
    weights = torch.full_like(advantages, scale)
    if settings.advantage_length_weight and len(trajectories):
        weights *= algo.length_weights(torch.tensor([int(t.sampled.sum()) for t in trajectories]))
    if bool((weights == 1).all()):
        return list(trajectories), advantages
    changed = []
    for trajectory, weight in zip(trajectories, weights.tolist(), strict=True):
        infos = [
            turn if turn.advantage is None else replace(turn, advantage=turn.advantage * weight)
            for turn in trajectory.turn_infos
        ]
        changed.append(replace(trajectory, turn_infos=tuple(infos)))
    return changed, advantages * weights
