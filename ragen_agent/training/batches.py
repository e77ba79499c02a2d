"""Trajectories as right-padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ragen_agent.trajectory import Trajectory
from ragen_gym.inference.vision import ImageTable

__all__ = ["Batch", "by_length", "common_prefix", "distinct_prefixes", "rows_of"]


@dataclass(frozen=True)
class Batch:
    """Rows of equal width: ``ids``, ``sampled`` (bool), ``attention``, ``log_probs`` (as recorded), each (rows, width).

    ``contexts``: for each row where the model began to read anew; empty if it read every row as a whole. ``images``:
    the pictures of all rows, whose visual tokens stand in ``ids`` as it numbers them; None where there are none.
    """

    ids: Tensor
    sampled: Tensor
    attention: Tensor
    log_probs: Tensor
    contexts: tuple[tuple[int, ...], ...] = ()
    images: ImageTable | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], device: torch.device | str = "cpu") -> Batch:
        """Pads on the right, with id 0, to the longest trajectory."""
        width = max(len(t.ids) for t in trajectories)
        shape = (len(trajectories), width)
        ids, log_probs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        sampled, attention = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long)
        images = ImageTable() if any(t.images for t in trajectories) else None
        for row, t in enumerate(trajectories):
            ids[row, : len(t.ids)] = torch.as_tensor(t.ids if images is None else images.keys(t.ids, t.images))
            sampled[row, : len(t.ids)] = torch.as_tensor(t.sampled)
            log_probs[row, : len(t.ids)] = torch.as_tensor(t.log_probs, dtype=torch.float32)
            attention[row, : len(t.ids)] = 1
        contexts = tuple(t.contexts or (0,) for t in trajectories) if any(t.contexts for t in trajectories) else ()
        return cls(ids.to(device), sampled.to(device), attention.to(device), log_probs.to(device), contexts, images)

    def rows(self, rows: Tensor) -> Batch:
        """These rows, without the columns that are padding in all of them."""
        width = int(self.attention[rows].sum(1).max())
        contexts = tuple(self.contexts[row] for row in rows.tolist()) if self.contexts else ()
        parts = [part[rows, :width] for part in (self.ids, self.sampled, self.attention, self.log_probs)]
        return Batch(parts[0], parts[1], parts[2], parts[3], contexts, self.images)

    def split_contexts(self) -> Batch:
        """The rows as the model read them: one for each context that holds a sampled token.

        The sampled tokens stand in the same order, row by row, so ``masked_scatter`` brings what was made of them back.
        """
        if not self.contexts:
            return self
        lengths, drawn = self.attention.sum(1).tolist(), self.sampled.cpu().numpy()
        spans = [
            (row, first, end)
            for row, starts in enumerate(self.contexts)
            for first, end in zip(starts, [*starts[1:], lengths[row]], strict=True)
            if drawn[row, first:end].any()
        ]
        rows, firsts, ends = torch.tensor(spans, device=self.ids.device).T[:, :, None]
        columns = firsts + torch.arange(max(end - first for _, first, end in spans), device=self.ids.device)
        places, padding = (rows, columns.clamp(max=self.ids.shape[1] - 1)), columns >= ends
        ids, sampled, attention, log_probs = (
            part[places].masked_fill(padding, 0) for part in (self.ids, self.sampled, self.attention, self.log_probs)
        )
        return Batch(ids, sampled, attention, log_probs, (), self.images)

    def inputs(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """What the model reads for the rows as they are."""
        return {"input_ids": self.ids} if self.images is None else self.images.inputs(model, self.ids)

    @property
    def tokens(self) -> int:
        """Tokens after distinct prefixes: what one forward and backward pass is counted as."""
        lengths = self.attention.sum(1).tolist()
        return distinct_prefixes([row[:length] for row, length in zip(self.ids.tolist(), lengths, strict=True)])


def rows_of(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """The ids of each row, where placeholders of different pictures differ."""
    images = ImageTable()
    return [(images.keys(t.ids, t.images) if t.images else t.ids).tolist() for t in trajectories]


def distinct_prefixes(rows: Sequence[list[int]]) -> int:
    """How many different beginnings the rows have, each of a token or more: what a pass over them has to compute."""
    before: list[int] = []
    count = 0
    for row in sorted(rows):
        count += len(row) - common_prefix(before, row)
        before = row
    return count


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if len(differ) else size


def by_length(lengths: Sequence[int], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Index batches of rows of like length, in random order: sorting within random pools of 8 batches saves padding."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), 8 * size):
        pool = sorted(order[start : start + 8 * size], key=lambda index: lengths[index])
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
