"""Episodes to learn from, and replay of earlier iterations.

RAGEN (arXiv 2504.20073, section on rollout freshness) compares one update for each batch of rollouts with several.
``Training.updates`` passes over one batch several times; ``Training.replay`` mixes earlier batches in. A replayed token
keeps its sampled log-prob, so the policy loss weighs it by the ratio of the current policy to the sampling policy,
within the clip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.iteration import Iteration

__all__ = ["KeptEpisodes", "ReplayBuffer"]


@dataclass(frozen=True)
class KeptEpisodes:
    """Episodes to learn from, with their original advantages and group weights, float (rows,) each."""

    trajectories: list[Trajectory]
    advantages: Tensor
    weights: Tensor

    @classmethod
    def of(cls, iteration: Iteration, rows: Sequence[int]) -> KeptEpisodes:
        """Episodes of an iteration by their indices."""
        groups, chosen = iteration.groups, list(rows)
        weights = groups.weights[:, None].expand(groups.kept.shape).flatten()
        return cls([iteration.learned[row] for row in chosen], groups.advantages.flatten()[chosen], weights[chosen])


class ReplayBuffer:
    """The kept episodes of the last ``iterations`` iterations; iterations without any count too."""

    def __init__(self, iterations: int) -> None:
        self._past: deque[KeptEpisodes] = deque(maxlen=iterations)

    def joined(self, now: KeptEpisodes) -> KeptEpisodes:
        """This iteration's episodes followed by the stored ones; then stores this iteration's."""
        parts = [now, *self._past]
        self._past.append(now)
        return KeptEpisodes(
            [trajectory for part in parts for trajectory in part.trajectories],
            torch.cat([part.advantages for part in parts]),
            torch.cat([part.weights for part in parts]),
        )

    def state(self) -> list[dict[str, Any]]:
        """The state for ``restore``, as lists and tensors."""
        return [
            {
                "trajectories": [replace(t, messages=()).to_dict() for t in part.trajectories],
                "advantages": part.advantages,
                "weights": part.weights,
            }
            for part in self._past
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restores the result of ``state``."""
        for part in state:
            trajectories = [Trajectory.from_dict(record) for record in part["trajectories"]]
            self._past.append(KeptEpisodes(trajectories, part["advantages"], part["weights"]))
