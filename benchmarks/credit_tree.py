"""Rollout trees: several replies from every state that a group reaches, compared with each other.

In a tree the replies to one prompt are siblings. With r the reward of a reply and Q its mean over the replies drawn
after it,

    Q(reply) = r + mean of Q(replies after it),  A(reply) = Q(reply) - mean of Q(its siblings).

The siblings are independent of the reply, so the expected gradient is the exact one. All replies of a turn weigh alike:
1 / (replies drawn at each turn up to it). Here a tree is full; Tree-GRPO (arXiv 2509.21240, section 3) expands a few
nodes of it at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory

BRANCHES = {1: (8,), 2: (4, 2), 3: (2, 2, 2)}
"""By the most turns of an episode, the replies drawn from a state of each turn: at most 8 episodes a level."""

Path = tuple[int, ...]
"""The number of the level's group, then of the reply of each turn among its siblings, 0 where a game ended before."""


class Reply(NamedTuple):
    """A reply as it was sampled, and the seed of the transition noise that met it."""

    noise_seed: int
    ids: Sequence[int]
    log_probs: Sequence[float]


class Resumed(TokenMDP):
    """A process that plays the replies in ``past[noise seed]`` again before an episode goes on with its own noise."""

    past: Mapping[int, Sequence[Reply]]

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start an episode; ``options["noise_seed"]`` is required."""
        assert options is not None
        own = int(options["noise_seed"])
        noise_seed = next((reply.noise_seed for reply in self.past[own]), own)
        info = super().begin(seed=seed, options={"noise_seed": noise_seed})
        for reply in self.past[own]:
            noise_seed = self._reseeded(noise_seed, reply.noise_seed)
            self.append_reply(reply.ids, reply.log_probs)
        self._reseeded(noise_seed, own)
        return info

    def _reseeded(self, before: int, after: int) -> int:
        if after != before:  # else the stream goes on
            self.env.get_wrapper_attr("reseed_noise")(after)
        return after


@dataclass
class Tree:
    """The trees of a batch of groups.

    Args:
        branches: see ``BRANCHES``.

    Attributes:
        episodes: by path, the whole episode from the root.
        past: by path, its replies.
        own: by path, its first turn that no earlier episode holds.
    """

    branches: tuple[int, ...]
    episodes: dict[Path, Trajectory] = field(default_factory=dict)
    past: dict[Path, list[Reply]] = field(default_factory=dict)
    own: dict[Path, int] = field(default_factory=dict)

    def wanted(self, turn: int, groups: int) -> dict[Path, list[Reply]]:
        """The episodes to play next: those that branch at a turn, with their replies before it."""
        rest = (0,) * (len(self.branches) - turn - 1)
        if turn == 0:
            return {(group, reply, *rest): [] for group in range(groups) for reply in range(self.branches[0])}
        return {
            (*path[: turn + 1], reply, *rest): replies[:turn]
            for path, replies in self.past.items()
            if len(replies) > turn and not any(path[turn + 1 :])
            for reply in range(1, self.branches[turn])
        }

    def add(self, turn: int, path: Path, episode: Trajectory, noise_seed: int, before: Sequence[Reply]) -> None:
        """Add a played episode that branches at a turn."""
        parts = episode.split_contexts()[len(before) :]
        new = [Reply(noise_seed, p.ids[p.sampled].tolist(), p.log_probs[p.sampled].tolist()) for p in parts]
        self.episodes[path], self.past[path], self.own[path] = episode, [*before, *new], turn

    def advantages(self, width: int) -> tuple[Tensor, Tensor]:
        """A of each token in the first episode that holds it, and its weight in the gradient, float (rows, width)."""
        groups = len({path[0] for path in self.episodes})
        found, weights = torch.zeros(2, len(self.episodes), width)
        for row, (path, episode) in enumerate(self.episodes.items()):
            start = 0
            for turn, end in enumerate(episode.turn_ends):
                found[row, start : end + 1] = self._advantage(path[: turn + 2])
                weights[row, start : end + 1] = 1 / (groups * prod(self.branches[: turn + 1]))
                start = end + 1
        found *= self.owned(width)
        return found, found * weights

    def owned(self, width: int) -> Tensor:
        """The sampled tokens, each in the first episode that holds it, bool (rows, width)."""
        mask = torch.zeros(len(self.episodes), width, dtype=torch.bool)
        for row, (path, episode) in enumerate(self.episodes.items()):
            first = episode.turn_ends[self.own[path] - 1] + 1 if self.own[path] else 0
            mask[row, first : len(episode.ids)] = torch.tensor(episode.sampled[first:])
        return mask

    def _advantage(self, node: Path) -> float:
        siblings = [self._value((*node[:-1], other)) for other in range(self.branches[len(node) - 2])]
        own = siblings.pop(node[-1])
        return own - sum(siblings) / len(siblings)

    def _value(self, node: Path) -> float:
        """Q of the reply at the end of a path."""
        turn = len(node) - 2
        rewards = self.episodes[node + (0,) * (len(self.branches) - turn - 1)].turn_rewards
        if len(rewards) == turn + 1:
            return rewards[turn]
        count = self.branches[turn + 1]
        return rewards[turn] + sum(self._value((*node, reply)) for reply in range(count)) / count
