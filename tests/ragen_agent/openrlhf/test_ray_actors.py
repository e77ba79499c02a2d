"""A model that scores sampled tokens alone gives what OpenRLHF's own forward pass gives, and the same gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import Actor
from torch import Tensor, nn

from ragen_agent.openrlhf import ray_actors
from ragen_agent.openrlhf.ray_actors import SampledActor
from tests.ragen_agent.openrlhf.test_lora import adapted

IDS = torch.tensor([[5, 6, 7, 8, 9, 1, 2], [5, 6, 7, 8, 3, 4, 0], [5, 6, 2, 0, 0, 0, 0], [5, 6, 0, 0, 0, 0, 0]])
LENGTHS = torch.tensor([7, 6, 3, 2])
ATTENTION = (torch.arange(7) < LENGTHS[:, None]).long()
#: Columns are one less than the tokens'; the last row is padding without a sampled token.
ACTIONS = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])


class Engine(nn.Module):
    """What DeepSpeed wraps a model in."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)


def make(*, lora: bool, temperature: float, whole: bool) -> Actor:
    """An actor, adapted under settings that allow scores of sampled tokens or (``whole``) do not."""
    model: nn.Module = adapted()
    if not lora:
        model = model.merge_and_unload()  # type: ignore[operator]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    actor = Actor(Engine(model), temperature=temperature)
    actor.temperature, actor.packing_samples = temperature, False
    settings = SimpleNamespace(
        packing_samples=False, zero_stage=3 if whole else 2, ring_attn_size=1, tensor_parallel_size=1
    )
    ray_actors._adapt(actor, SimpleNamespace(ds=settings))
    assert isinstance(actor, SampledActor) is not whole
    return actor


def scored(actor: Actor, rows: slice) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probs, entropies and the gradients of a loss that reads both."""
    mask = ACTIONS[rows]
    log_probs, output = actor(IDS[rows], mask, ATTENTION[rows], return_output=True, return_entropy=True)
    entropy = output.entropy[:, -mask.shape[1] :] * mask
    (log_probs.sum() + 0.5 * entropy.sum()).backward()
    gradients = {name: p.grad for name, p in actor.named_parameters() if p.grad is not None}
    return log_probs.detach(), entropy.detach(), gradients


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("rows", [slice(0, 4), slice(3, 4)], ids=["rows", "padding alone"])
def test_scores_and_gradients_are_those_of_the_whole_pass(
    monkeypatch: pytest.MonkeyPatch, lora: bool, rows: slice
) -> None:
    context = SimpleNamespace(vocabulary_size=40, suppressed_ids=(11, 39))
    monkeypatch.setattr(ray_actors, "RunContext", SimpleNamespace(from_environment=lambda: context))
    monkeypatch.setattr("openrlhf.models.actor.compute_entropy", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1))
    whole, some = (scored(make(lora=lora, temperature=0.7, whole=w), rows) for w in (True, False))
    torch.testing.assert_close(some[0], whole[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some[1], whole[1], rtol=1e-4, atol=1e-5)
    assert set(some[2]) == set(whole[2])
    for name, gradient in whole[2].items():
        torch.testing.assert_close(some[2][name], gradient, rtol=1e-3, atol=1e-5, msg=name)
    assert bool(whole[0].any()) is (rows.start == 0)
