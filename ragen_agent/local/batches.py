"""Trajectories as right-padded tensors, and the model's log-probs of what was sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.token_mdp import Trajectory

__all__ = ["Batch", "by_length", "sampled_logits"]


@dataclass(frozen=True)
class Batch:
    """Rows of equal width: `ids`, `sampled` (bool), `attention`, `log_probs` (as recorded), each (rows, width)."""

    ids: Tensor
    sampled: Tensor
    attention: Tensor
    log_probs: Tensor

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], device: torch.device | str = "cpu", pad_id: int = 0) -> Batch:
        """Pads on the right to the longest trajectory."""
        width = max(len(t.ids) for t in trajectories)
        shape = (len(trajectories), width)
        ids, log_probs = torch.full(shape, pad_id), torch.zeros(shape)
        sampled, attention = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long)
        for row, t in enumerate(trajectories):
            ids[row, : len(t.ids)] = torch.as_tensor(t.ids)
            sampled[row, : len(t.ids)] = torch.as_tensor(t.sampled)
            log_probs[row, : len(t.ids)] = torch.as_tensor(t.log_probs, dtype=torch.float32)
            attention[row, : len(t.ids)] = 1
        return cls(ids.to(device), sampled.to(device), attention.to(device), log_probs.to(device))

    def rows(self, rows: Tensor) -> Batch:
        """These rows, without the columns that are padding in all of them."""
        width = int(self.attention[rows].sum(1).max())
        return Batch(*(part[rows, :width] for part in (self.ids, self.sampled, self.attention, self.log_probs)))

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
        bias: (vocabulary,), 0 or `SUPPRESSED`: `ragen_agent.engines.torch_engine.suppression`.
        temperature: with which the tokens were sampled, above 0; the engine records log-probs under it too.

    Returns:
        logits float32 (sampled tokens in all, vocabulary) in row-major order, divided by the temperature; log-probs
        float32 (rows, width), 0 where nothing was sampled.
    """
    first = int(batch.sampled.any(0).int().argmax())  # nothing before it is scored, so no logits are made there
    kept = batch.ids.shape[1] - first + 1
    output = model(
        batch.ids, use_cache=False, logits_to_keep=kept
    )  # padded on the right: causal attention never sees it
    mask = batch.sampled[:, first:]
    logits = (output.logits[:, :-1][mask].float() + bias) / temperature
    chosen = batch.ids[:, first:][mask]
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
