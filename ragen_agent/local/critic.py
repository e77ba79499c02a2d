"""PPO's critic: its own copy of the policy's backbone and a linear head, one value for each position."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_agent.training.batches import Batch

__all__ = ["Critic"]


class Critic(nn.Module):
    """Estimates the return still to come before each token is sampled. It starts at 0 everywhere."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        # Frozen weights are the same for both: with an adapter the critic has its own beside them.
        frozen = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        self.backbone = copy.deepcopy(model.base_model, frozen)
        embeddings = model.get_input_embeddings().weight
        assert isinstance(embeddings, Tensor)
        self.head = nn.Linear(embeddings.shape[1], 1, device=model.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """float32 (rows, width): the value before each token, read where the token before it stands; 0 at the first.

        In rows that were read in several contexts, only the sampled tokens have a value.
        """
        read = batch.as_read()
        output = self.backbone(read.ids, use_cache=False)
        values: Tensor = self.head(output.last_hidden_state.float()).squeeze(-1)
        before = torch.nn.functional.pad(values[:, :-1], (1, 0))
        if not batch.contexts:
            return before
        return torch.zeros(batch.ids.shape, device=before.device).masked_scatter(batch.sampled, before[read.sampled])
