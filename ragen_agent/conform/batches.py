"""Small batches of rollouts, each made to show one difference between trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

LENGTH, CONSTANT = 12, 16
"""Columns of a batch, and the constant length that Dr. GRPO divides by."""

GAMMA, LAMBDA = 0.99, 0.9


@dataclass(frozen=True)
class Batch:
    """Rollouts of some groups, a row each; all floats are float64 unless a batch says otherwise."""

    groups: Tensor  # int64 (rows,), ascending
    rewards: Tensor  # (rows,), earned at the row's last sampled token
    mask: Tensor  # bool (rows, LENGTH), the sampled tokens; others are observations between turns, or padding
    log_probs: Tensor  # (rows, LENGTH), of the policy being trained
    old: Tensor  # (rows, LENGTH), when the tokens were sampled
    reference: Tensor  # (rows, LENGTH), of the policy before training
    values: Tensor  # (rows, LENGTH), of a critic before each token
    advantages: Tensor  # (rows, LENGTH), given to the losses

    @property
    def token_rewards(self) -> Tensor:
        """(rows, LENGTH): each row's reward at its last sampled token."""
        columns = torch.arange(LENGTH).expand_as(self.mask)
        last = torch.where(self.mask, columns, -1).amax(dim=1, keepdim=True)
        return self.rewards[:, None] * ((columns == last) & self.mask)

    @property
    def responses(self) -> Tensor:
        """Bool (rows, LENGTH): all tokens up to the last sampled one, observations between turns too."""
        return self.mask.flip(1).cummax(dim=1).values.flip(1)

    @property
    def ids(self) -> list[list[int]]:
        """Rows of each group."""
        return [torch.nonzero(self.groups == group).flatten().tolist() for group in self.groups.unique()]


def _batch(sizes: list[int], rewards: list[float], lengths: list[int], dtype: torch.dtype = torch.float64) -> Batch:
    """A batch of one turn a row, with ratios within any usual clip."""
    rows = len(rewards)
    generator = torch.Generator().manual_seed(0)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(rows, LENGTH, generator=generator, dtype=torch.float64)

    old = -1 + noise(0.2)
    returns = torch.tensor(rewards, dtype=dtype)
    signs = torch.tensor([1.0, -1.0, 0.5, -0.25] * rows, dtype=torch.float64)[:rows]
    return Batch(
        groups=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        rewards=returns,
        mask=torch.arange(LENGTH) < torch.tensor(lengths)[:, None],
        log_probs=old + noise(0.03).clamp(-0.08, 0.08),
        old=old,
        reference=old + noise(0.3),
        values=noise(0.5),
        advantages=signs[:, None].expand(rows, LENGTH).clone(),
    )


def _two_turns(batch: Batch) -> Batch:
    """The batch with observations at tokens 3 to 5, between two turns."""
    mask = batch.mask.clone()
    mask[:, 3:6] = False
    return replace(batch, mask=mask)


def advantage_batches() -> dict[str, Batch]:
    """Batches for the rules that compare the returns of a group."""
    wide = [0.0, 1.0, 0.25, 0.0, 1.0, 1.0, 0.0, 0.5]
    return {
        "returns far apart": _batch([4, 4], wide, [6] * 8),
        "returns close together": _batch([4], [1e-5, -1e-5, 0.0, 2e-5], [6] * 4),
        "a group of one": _batch([1, 4], [0.5, *wide[:4]], [6] * 5),
    }


def equal_batches() -> dict[str, Batch]:
    """Two groups of eight whose rollouts all return the same, in float32, as trainers hold rewards."""
    return {f"{value}": _batch([8, 8], [value] * 16, [6] * 16, torch.float32) for value in (-0.3, 9.9)}


def value_batches() -> dict[str, Batch]:
    """Batches for advantages with a critic."""
    batch = _batch([4], [0.0, 1.0, 0.25, 0.5], [12, 7, 9, 12])
    return {"one turn": batch, "two turns": _two_turns(batch)}


def loss_batches() -> dict[str, Batch]:
    """Batches for the losses of the policy."""
    batch = _batch([4], [0.0, 1.0, 0.25, 0.5], [12, 7, 9, 4])
    shift = torch.zeros_like(batch.log_probs)
    shift[0, 0], shift[1, 1], shift[2, 2], shift[3, 3] = 0.6, -0.6, -0.7, 0.5
    far = shift.clone()
    far[1, 1] = 1.5  # a ratio of 4.5 where the advantage is negative
    empty = batch.mask.clone()
    empty[3] = False
    return {
        "ratios near 1": batch,
        "two turns": _two_turns(batch),
        "ratios beyond the clip": replace(batch, log_probs=batch.log_probs + shift),
        "a ratio above 3": replace(batch, log_probs=batch.log_probs + far),
        "a row without tokens": replace(batch, mask=empty),
    }


def divergence_batches() -> dict[str, Batch]:
    """Batches for the divergence from the reference."""
    batch = _batch([4], [0.0, 1.0, 0.25, 0.5], [12, 7, 9, 4])

    def further(nats: float) -> Batch:
        """The batch with a token that the reference finds far more likely."""
        reference = batch.reference.clone()
        reference[0, 0] = batch.log_probs[0, 0] + nats
        return replace(batch, reference=reference)

    return {"near the reference": batch, "4 nats below it": further(4), "12 nats below it": further(12)}
