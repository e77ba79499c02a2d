"""Trajectories as right-padded tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragen_agent.inference.vision import ImageTable
from ragen_agent.tokens.trajectory import Trajectory


@dataclass(frozen=True)
class Batch:
    """Rows of equal width: ``ids``, ``sampled`` (bool), ``attention``, ``log_probs`` (as recorded), each (rows, width).

    ``contexts``: for each row, the indices at which the model began to read anew; empty if it read every row as a
    whole. ``images``: the pictures of all rows, which number the visual tokens in ``ids``; None if there are none.
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

        The sampled tokens keep their order, row by row, so ``masked_scatter`` puts results for them back.
        """
        if not self.contexts:
            return self
        spans = [(row, first, end) for row, found in enumerate(self._spans()) for first, end in found]
        rows, firsts, ends = torch.tensor(spans, device=self.ids.device).T[:, :, None]
        columns = firsts + torch.arange(max(end - first for _, first, end in spans), device=self.ids.device)
        places, padding = (rows, columns.clamp(max=self.ids.shape[1] - 1)), columns >= ends
        ids, sampled, attention, log_probs = (
            part[places].masked_fill(padding, 0) for part in (self.ids, self.sampled, self.attention, self.log_probs)
        )
        return Batch(ids, sampled, attention, log_probs, (), self.images)

    def inputs(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The model's inputs for the rows as they are."""
        return {"input_ids": self.ids} if self.images is None else self.images.inputs(model, self.ids)

    @property
    def readings(self) -> list[list[list[int]]]:
        """For each row the ids of each of its rows in ``split_contexts``."""
        rows = zip(self.ids.tolist(), self._spans(), strict=True)
        return [[ids[first:end] for first, end in spans] for ids, spans in rows]

    @property
    def tokens(self) -> int:
        """Tokens after distinct prefixes, as the model reads them: the cost of one forward and backward pass."""
        return distinct_prefixes(list(chain.from_iterable(self.readings)))

    def _spans(self) -> list[list[tuple[int, int]]]:
        lengths, drawn = self.attention.sum(1).tolist(), self.sampled.cpu().numpy()
        if not self.contexts:
            return [[(0, length)] for length in lengths]
        return [
            read_spans(starts, length, row[:length])
            for starts, length, row in zip(self.contexts, lengths, drawn, strict=True)
        ]


def read_spans(contexts: Sequence[int], length: int, sampled: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The (first, end) of each context with a sampled token: the parts to read for training on the row.

    ``contexts`` are the indices at which the model began to read anew; empty if it read the row as a whole.
    """
    if not contexts:
        return [(0, length)]
    spans = zip(contexts, (*contexts[1:], length), strict=True)
    return [(first, end) for first, end in spans if sampled[first:end].any()]


def readings_of(trajectories: Sequence[Trajectory]) -> list[list[list[int]]]:
    """For each trajectory the ids of each context; placeholders of different pictures differ."""
    images, readings = ImageTable(), []
    for t in trajectories:
        ids = (images.keys(t.ids, t.images) if t.images else t.ids).tolist()
        readings.append([ids[first:end] for first, end in read_spans(t.contexts, len(ids), t.sampled)])
    return readings


def rows_of(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """The readings of all trajectories, one after another."""
    return list(chain.from_iterable(readings_of(trajectories)))


def distinct_prefixes(rows: Sequence[list[int]]) -> int:
    """Number of distinct non-empty prefixes of the rows: the tokens that a pass over them computes."""
    before: list[int] = []
    count = 0
    for row in sorted(rows):
        count += len(row) - common_prefix(before, row)
        before = row
    return count


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if len(differ) else size


def by_length(lengths: Sequence[int], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Index batches of rows of similar length, in random order; sorting in random pools of 8 batches saves padding."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), 8 * size):
        pool = sorted(order[start : start + 8 * size], key=lambda index: lengths[index])
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
