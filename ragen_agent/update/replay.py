"""Episodes to learn from, and those of earlier iterations that are trained on again.

RAGEN (arXiv 2504.20073, section on rollout freshness) compares one update for each batch of rollouts with several.
``Training.updates`` passes over one batch several times; ``Training.replay`` mixes earlier batches in. A replayed token
keeps the log-prob with which it was sampled, so the policy loss weighs it by the ratio of the policy now to the
policy then, within the clip.
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
    """Episodes to learn from, with the advantages and group weights that they had when played, float (rows,) each."""

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
    """The kept episodes of the last ``iterations`` iterations, those without any included."""

    def __init__(self, iterations: int) -> None:
        self._past: deque[KeptEpisodes] = deque(maxlen=iterations)

    def joined(self, now: KeptEpisodes) -> KeptEpisodes:
        """This iteration's episodes, first, and those remembered; afterwards this iteration's are remembered too."""
        parts = [now, *self._past]
        self._past.append(now)
        return KeptEpisodes(
            [trajectory for part in parts for trajectory in part.trajectories],
            torch.cat([part.advantages for part in parts]),
            torch.cat([part.weights for part in parts]),
        )

    def state(self) -> list[dict[str, Any]]:
        """What ``restore`` needs, as lists and tensors."""
        return [
            {
                "trajectories": [replace(t, messages=()).to_dict() for t in part.trajectories],
                "advantages": part.advantages,
                "weights": part.weights,
            }
            for part in self._past
        ]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what ``state`` gave."""
        for part in state:
            trajectories = [Trajectory.from_dict(record) for record in part["trajectories"]]
            self._past.append(KeptEpisodes(trajectories, part["advantages"], part["weights"]))
