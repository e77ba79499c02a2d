"""A model that scores sampled tokens alone gives what OpenRLHF's own forward pass gives, and the same gradients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import Actor, get_llm_for_sequence_regression
from openrlhf.trainer.ppo_utils.experience import Experience
from ray import cloudpickle
from torch import Tensor, nn

from ragen_agent.openrlhf import ray_actors
from ragen_agent.openrlhf.experience import NO_RETURN
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
    """An actor, adapted."""
    model: nn.Module = adapted()
    if not lora:
        model = model.merge_and_unload()  # type: ignore[operator]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    actor = Actor(Engine(model), temperature=temperature)
    actor.temperature, actor.packing_samples = temperature, False
    adapt(actor, whole=whole)
    assert isinstance(actor, SampledActor) is not whole
    return actor


def adapt(actor: Any, *, whole: bool) -> None:
    """As under settings that allow scores of sampled tokens or (``whole``) do not."""
    stage = 3 if whole else 2
    settings = SimpleNamespace(packing_samples=False, zero_stage=stage, ring_attn_size=1, tensor_parallel_size=1)
    ray_actors._adapt(actor, SimpleNamespace(ds=settings))


def scored(
    actor: Any, ids: Tensor, mask: Tensor, attention: Tensor, **inputs: Any
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probs, entropies and the gradients of a loss that reads both."""
    log_probs, output = actor(ids, mask, attention, return_output=True, return_entropy=True, **inputs)
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
    context = SimpleNamespace(vocabulary_size=40, suppressed_ids=(11, 39), vision=None)
    monkeypatch.setattr(ray_actors, "RunContext", SimpleNamespace(from_environment=lambda: context))
    monkeypatch.setattr("openrlhf.models.actor.compute_entropy", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1))
    whole, some = (
        scored(make(lora=lora, temperature=0.7, whole=w), IDS[rows], ACTIONS[rows], ATTENTION[rows])
        for w in (True, False)
    )
    torch.testing.assert_close(some[0], whole[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some[1], whole[1], rtol=1e-4, atol=1e-5)
    assert set(some[2]) == set(whole[2])
    for name, gradient in whole[2].items():
        torch.testing.assert_close(some[2][name], gradient, rtol=1e-3, atol=1e-5, msg=name)
    assert bool(whole[0].any()) is (rows.start == 0)


@pytest.mark.filterwarnings("default")
def test_a_critic_learns_where_it_has_a_return() -> None:
    """As Ray sends the class to the process of the critic."""
    sent = cloudpickle.loads(cloudpickle.dumps(ray_actors.CriticActor.__ray_metadata__.modified_class))
    critic = sent.__new__(sent)
    critic.trainer = SimpleNamespace(replay_buffer=[])
    rows = Experience(action_mask=torch.tensor([[1, 1, 0, 1]]), returns=torch.tensor([[NO_RETURN, 2.0, 0.0, 3.0]]))
    critic.append(rows)
    assert critic.trainer.replay_buffer == [rows]
    assert rows.action_mask.tolist() == [[0, 1, 0, 1]]
    assert rows.returns.tolist() == [[0.0, 2.0, 0.0, 3.0]]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("targets", [None, "all-linear", ["q_proj"]], ids=["whole", "every layer", "without the head"])
def test_a_critic_starts_at_zero_and_learns(targets: Any, tmp_path: Path) -> None:
    """Also with LoRA, which leaves a head without an adapter frozen."""
    model: Any = adapted()
    model.merge_and_unload().save_pretrained(tmp_path)
    critic = get_llm_for_sequence_regression(
        str(tmp_path),
        "critic",
        attn_implementation="sdpa",
        lora_rank=4 if targets else 0,
        target_modules=targets,
        init_value_head=True,
    ).float()
    assert bool(critic(IDS, ACTIONS, ATTENTION).any()), "OpenRLHF's is random"
    ray_actors.start_at_zero(critic)
    values = critic(IDS, ACTIONS, ATTENTION)
    assert not bool(values.any())
    trained = [parameter for parameter in critic.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, 0.1)
    for _ in range(2):
        optimiser.zero_grad()
        ((critic(IDS, ACTIONS, ATTENTION) - 1) * ACTIONS).square().sum().backward()
        optimiser.step()
    assert bool(critic(IDS, ACTIONS, ATTENTION)[ACTIONS.bool()].all())


def test_the_norm_of_every_step_is_noted_once() -> None:
    """DeepSpeed keeps the norm of a step until the next one."""
    said = iter([0.0, 1.0, 1.0, 3.0, 3.0, 8.0])
    strategy = SimpleNamespace(get_grad_norm=lambda model: next(said), accumulated_gradient=2)
    norms = ray_actors.GradNorms(strategy)
    assert [strategy.get_grad_norm(None) for _ in range(4)] == [0.0, 1.0, 1.0, 3.0]
    assert norms.mean("grad_norm") == {"grad_norm": 2.0}
    assert norms.mean("grad_norm") == {}
    assert [strategy.get_grad_norm(None) for _ in range(2)] == [3.0, 8.0]
    assert norms.mean("grad_norm") == {"grad_norm": 8.0}


def test_an_iteration_seeds_the_tokens_that_a_loss_draws() -> None:
    policy: Any = ray_actors.PolicyActor.__ray_metadata__.modified_class
    actor = policy.__new__(policy)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    actor.actor_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    actor.trainer = SimpleNamespace(generator=None)
    actor.begin_iteration(seed=7, rate_factor=0.5)
    assert actor.trainer.generator.initial_seed() == 7
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("way", ["update_weight", "update_weight_cuda_ipc"])
def test_updates_are_counted_whichever_way_weights_arrive(way: str) -> None:
    asked: list[str] = []

    async def collective_rpc(method: str, args: Any) -> None:
        asked.append(method)

    actor: Any = ray_actors._VllmActor.__new__(ray_actors._VllmActor)
    actor.llm = SimpleNamespace(collective_rpc=collective_rpc)
    more: tuple[Any, ...] = ({},) if way.endswith("ipc") else ()
    for last in (False, True, False, True):
        asyncio.run(getattr(actor, way)("weight", torch.bfloat16, (2, 3), *more, empty_cache=last))
    assert (asked, actor.updates) == ([way] * 4, 2), "one of two parameters each"
