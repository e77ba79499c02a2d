"""Diagnostics of an iteration (``ragen_agent.run.diagnostics``) on the model of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent.config import Training
from ragen_agent.inference.vision import ImageTable
from ragen_agent.local.policy_update import Learner
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores

__all__ = ["LearnerDiagnostics"]


class LearnerDiagnostics:
    """See ``ragen_agent.run.diagnostics.MeasuredPolicy``."""

    def __init__(self, learner: Learner, settings: Training) -> None:
        self.learner, self.settings = learner, settings

    @torch.no_grad()
    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """As the protocol says."""
        learner, settings = self.learner, self.settings
        scores = torch.zeros(len(rows), dtype=torch.float64)
        wanted = [index for index, (_, said) in enumerate(rows) if said]
        for part in torch.tensor(wanted).split(settings.minibatch):
            batch = replace(_batch([rows[index] for index in part.tolist()], learner.bias.device), images=images)
            log_probs = sampled_scores(learner.model, batch, learner.bias, settings.temperature).log_probs
            scores[part] = log_probs.sum(dim=1, dtype=torch.float64).cpu()
        return scores


def _batch(rows: Sequence[tuple[list[int], list[int]]], device: torch.device) -> Batch:
    """Pairs of ids padded on the right, the second of each marked as sampled."""
    whole = [torch.tensor([*before, *said]) for before, said in rows]
    marks = [torch.tensor([False] * len(before) + [True] * len(said)) for before, said in rows]
    attention = [torch.ones(len(ids), dtype=torch.long) for ids in whole]
    ids, sampled, attended = (pad_sequence(part, batch_first=True).to(device) for part in (whole, marks, attention))
    return Batch(ids, sampled, attended, torch.zeros(ids.shape, device=device))
