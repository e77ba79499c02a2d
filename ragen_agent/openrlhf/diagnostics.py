"""Diagnostics of an iteration (``ragen_agent.run.diagnostics``) on the policy's processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent.inference.vision import ImageTable
from ragen_agent.openrlhf.experience import EpisodeGenerator, StarPOExperience
from ragen_agent.openrlhf.pictures import packed

__all__ = ["ActorDiagnostics"]

Arguments = tuple[Tensor, Tensor, Tensor, Sequence[Mapping[str, Tensor] | None]]
"""A batch: ids, mask of actions, mask of ids, and the pictures of each row."""


class ActorDiagnostics:
    """See ``ragen_agent.run.information.MeasuredPolicy``."""

    def __init__(self, maker: StarPOExperience, rollouts: EpisodeGenerator) -> None:
        self.maker, self.rollouts = maker, rollouts

    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """As the protocol says."""
        scores = torch.zeros(len(rows), dtype=torch.float64)
        wanted = torch.tensor([index for index, (_, said) in enumerate(rows) if said])
        parts = wanted.split(self.maker.args.rollout.micro_batch_size)
        batches = [self._batch([rows[index] for index in part.tolist()], images) for part in parts]
        for part, log_probs in zip(parts, self._everywhere("forward", batches), strict=True):
            scores[part] = log_probs.sum(dim=1, dtype=torch.float64)
        return scores

    def _batch(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None) -> Arguments:
        """The second part of each row is its actions; padded on the right."""
        ids = pad_sequence([torch.tensor([*before, *said]) for before, said in rows], batch_first=True)
        first = torch.tensor([len(before) for before, _ in rows])[:, None]
        end = first + torch.tensor([len(said) for _, said in rows])[:, None]
        places = torch.arange(ids.shape[1])
        pictures: list[Mapping[str, Tensor] | None] = [None] * len(rows)
        if images is not None:
            vision = self.rollouts.vision
            assert vision is not None, "a model that reads pictures"
            pictures = [packed(images.pictures_of(row), vision.processor) for row in ids.tolist()]
            ids = torch.where(ids < 0, vision.image_id, ids)
        return ids, ((places >= first) & (places < end)).long()[:, 1:], (places < end).long(), pictures

    def _everywhere(self, method: str, batches: Sequence[Arguments]) -> list[Any]:
        """What a method of the policy's processes says of each batch.

        Each process works off as many batches, since those of a divided model compute together.
        """
        arguments = self.maker.args
        copies = arguments.ds.ring_attn_size * arguments.ds.tensor_parallel_size
        processes = arguments.actor.num_nodes * arguments.actor.num_gpus_per_node // copies
        filled = [*batches, *[batches[-1]] * (-len(batches) % processes)]
        names = ("sequences", "action_mask", "attention_mask", "mm_train_inputs_list")
        columns = dict(zip(names, map(list, zip(*filled, strict=True)), strict=True))
        refs = self.maker.actor_model_group.async_run_method_batch(method_name=method, **columns)
        results: list[Any] = self.maker._flatten_results(refs, copies)
        return results[: len(batches)]
