"""Trajectories as right-padded tensors, and the model's log-probs of what was sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ragen_agent.token_mdp import Trajectory

__all__ = ["Batch", "by_length", "sampled_logits"]


@dataclass(frozen=True)
class Batch:
    """Rows of equal width: ``ids``, ``sampled`` (bool), ``attention``, ``log_probs`` (as recorded), each (rows, width).

    ``contexts``: for each row where the model began to read anew; empty if it read every row as a whole.
    """

    ids: Tensor
    sampled: Tensor
    attention: Tensor
    log_probs: Tensor
    contexts: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], device: torch.device | str = "cpu") -> Batch:
        """Pads on the right, with id 0, to the longest trajectory."""
        width = max(len(t.ids) for t in trajectories)
        shape = (len(trajectories), width)
        ids, log_probs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        sampled, attention = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long)
        for row, t in enumerate(trajectories):
            ids[row, : len(t.ids)] = torch.as_tensor(t.ids)
            sampled[row, : len(t.ids)] = torch.as_tensor(t.sampled)
            log_probs[row, : len(t.ids)] = torch.as_tensor(t.log_probs, dtype=torch.float32)
            attention[row, : len(t.ids)] = 1
        contexts = tuple(t.contexts or (0,) for t in trajectories) if any(t.contexts for t in trajectories) else ()
        return cls(ids.to(device), sampled.to(device), attention.to(device), log_probs.to(device), contexts)

    def rows(self, rows: Tensor) -> Batch:
        """These rows, without the columns that are padding in all of them."""
        width = int(self.attention[rows].sum(1).max())
        contexts = tuple(self.contexts[row] for row in rows.tolist()) if self.contexts else ()
        parts = [part[rows, :width] for part in (self.ids, self.sampled, self.attention, self.log_probs)]
        return Batch(parts[0], parts[1], parts[2], parts[3], contexts)

    def split_contexts(self) -> Batch:
        """The rows as the model read them: one for each context that holds a sampled token.

        The sampled tokens stand in the same order, row by row, so ``masked_scatter`` brings what was made of them back.
        """
        if not self.contexts:
            return self
        lengths = self.attention.sum(1).tolist()
        spans = [
            (row, first, end)
            for row, starts in enumerate(self.contexts)
            for first, end in zip(starts, [*starts[1:], lengths[row]], strict=True)
            if bool(self.sampled[row, first:end].any())
        ]
        ids, sampled, attention, log_probs = (
            pad_sequence([part[row, first:end] for row, first, end in spans], batch_first=True)
            for part in (self.ids, self.sampled, self.attention, self.log_probs)
        )
        return Batch(ids, sampled, attention, log_probs)

    @property
    def tokens(self) -> int:
        """Tokens without padding: what one forward and backward pass is counted as."""
        return int(self.attention.sum())


def sampled_logits(
    model: PreTrainedModel, batch: Batch, bias: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The logits from which each token was sampled, and the log-prob of each sampled token.

    Args:
        model: any causal LM.
        batch: rows to score.
        bias: (vocabulary,), 0 or ``SUPPRESSED``: ``ragen_gym.inference.torch_engine.suppression``.
        temperature: with which the tokens were sampled, above 0; the engine records log-probs under it too.

    Returns:
        logits float32 (sampled tokens in all, vocabulary) in row-major order, divided by the temperature; log-probs
        float32 (rows, width), 0 where nothing was sampled.
    """
    read = batch.split_contexts()
    first = int(read.sampled.any(0).int().argmax())  # nothing before it is scored, so no logits are made there
    kept = read.ids.shape[1] - first + 1
    output = model(
        read.ids, use_cache=False, logits_to_keep=kept
    )  # padded on the right: causal attention never sees it
    mask = read.sampled[:, first:]
    logits = (output.logits[:, :-1][mask].float() + bias) / temperature
    chosen = read.ids[:, first:][mask]
    scores = logits.log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)
    log_probs = torch.zeros(batch.ids.shape, device=scores.device)
    return logits, log_probs.masked_scatter(batch.sampled, scores)


def by_length(lengths: Sequence[int], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Index batches of rows of like length, in random order: sorting within random pools of 8 batches saves padding."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), 8 * size):
        pool = sorted(order[start : start + 8 * size], key=lambda index: lengths[index])
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
