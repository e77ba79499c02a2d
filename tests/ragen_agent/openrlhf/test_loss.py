"""The policy's step in OpenRLHF's trainer: our terms, under every aggregation and however it is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import PolicyLoss, ValueLoss
from openrlhf.trainer.ppo_utils import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor, ppo_critic
from torch import Tensor, nn

from ragen_agent import algo
from ragen_agent.config import Config, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS
from ragen_agent.openrlhf import loss
from ragen_agent.openrlhf.experience import EPISODE_SHARE, EPISODE_TOKENS

#: What ``loss.install`` replaces in OpenRLHF's module.
INSTALLED = "iter_grad_accum_global_norm"


class Scripted(nn.Module):
    """A policy whose log-probs and entropies are given."""

    def __init__(self, log_probs: Tensor, entropy: Tensor) -> None:
        super().__init__()
        self.log_probs, self.entropy = log_probs, entropy

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.log_probs, SimpleNamespace(entropy=self.entropy)


def example() -> dict[str, Tensor]:
    """Two rows of 5 and of 3 tokens in the loss; the engine's log-probs are a little off the trainer's."""
    generator = torch.Generator().manual_seed(4)
    old = -torch.rand(2, 5, generator=generator, dtype=torch.float64) * 3 - 0.05
    noise = [torch.randn(2, 5, generator=generator, dtype=torch.float64) for _ in range(3)]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]])
    new = (old + 0.3 * noise[0]).requires_grad_()
    return {
        "new": new,
        "old": old,
        "advantages": noise[1],
        "mask": mask,
        "rollout": (old + 0.4 * noise[2]).clamp(max=-0.01),
    }


@pytest.mark.parametrize(("mode", "bounds"), [("clip", (0.0, 1.2)), ("mask", (0.7, 1.4))])
def test_the_correction_is_that_of_openrlhf(mode: str, bounds: tuple[float, float]) -> None:
    """The loss of OpenRLHF's ``PolicyLoss``, its gradient, and the share outside the bounds."""
    x = example()
    chosen = x["mask"].bool()
    theirs = PolicyLoss(
        0.2,
        0.28,
        is_correction_level="token",
        is_correction_mode=mode,
        is_correction_gating="ratio",
        is_correction_threshold=list(bounds),
    )
    loss, _, _, _, share = theirs(
        x["new"], x["old"], x["advantages"], action_mask=x["mask"], rollout_log_probs=x["rollout"]
    )
    weights, outside = algo.mismatch_weights(x["old"], x["rollout"], chosen, mode=mode, bounds=bounds)
    ours, _ = algo.policy_loss(x["new"], x["old"], x["advantages"], chosen, weights=weights)
    same(ours, loss, x["new"])
    found = outside[chosen].double().mean()
    assert 0 < float(found) < 1, "the example has something on either side"
    torch.testing.assert_close(found, share.double(), rtol=1e-6, atol=1e-6)


def test_gspo_with_a_correction_is_that_of_openrlhf() -> None:
    """The trainer compares whole rows with the policy that sampled, so it has nothing left to correct."""
    x = example()
    theirs = PolicyLoss(0.002, 0.08, policy_loss_type="gspo", is_correction_level="token")
    value, clipped, *_ = theirs(
        x["new"], x["old"], x["advantages"], action_mask=x["mask"], rollout_log_probs=x["rollout"]
    )
    config = with_settings(
        Config(), {"training": {"policy_loss": "gspo", "aggregation": "sequence_mean", "correction": "none"}}
    )
    targets = loss._targets(rows_of(x, x["mask"]), config)
    assert "weights" not in targets
    ours, stats = algo.policy_loss(
        x["new"],
        targets["old"],
        targets["advantages"],
        targets["mask"],
        "gspo",
        how="sequence_mean",
        clip_low=0.002,
        clip_high=0.08,
    )
    same(ours, value, x["new"])
    assert 0 < float(clipped) < 1, "the example has something on either side"
    torch.testing.assert_close(stats.clip_fraction, clipped.double(), rtol=1e-6, atol=1e-6)


def rows_of(x: dict[str, Tensor], mask: Tensor) -> Experience:
    """The example as OpenRLHF hands it to the trainer."""
    return Experience(
        sequences=torch.zeros(2, 6, dtype=torch.long),
        attention_mask=torch.ones(2, 6),
        action_mask=mask,
        action_log_probs=x["old"],
        base_action_log_probs=x["old"] - 0.5,
        rollout_log_probs=x["rollout"],
        advantages=x["advantages"],
        info={EPISODE_TOKENS: torch.tensor([5.0, 3.0])},
    )


def same(ours: Tensor, theirs: Tensor, new: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 2.0])
@pytest.mark.parametrize("correction", ["none", "clip"])
@pytest.mark.parametrize("place", ["", "reward", "loss"])
def test_every_micro_batch_has_the_same_figures_in_the_same_order(
    place: str, correction: str, smoothing: float
) -> None:
    """The processes add them up one by one, and one of them may have padding alone."""
    kl = {"kl_kind": "k3", "kl_place": place, "starpo_s": False} if place else {}
    training = {"correction": correction, "entropy_smoothing": smoothing, "entropy_bonus": smoothing / 4, **kl}
    config = with_settings(Config(), {"training": training})
    x, losses = example(), list[Tensor]()
    trainer = SimpleNamespace(
        actor=Scripted(x["new"], torch.ones(2, 5)),
        generator=None,
        actor_optim=None,
        actor_scheduler=None,
        strategy=SimpleNamespace(
            ring_attn_group=None,
            backward=lambda loss, *_: losses.append(loss),
            optimizer_step=lambda *_, **__: None,
            get_grad_norm=lambda _: 0.0,
        ),
    )
    trainer.actor.train()
    found = []
    for mask in (x["mask"], torch.zeros_like(x["mask"])):
        found.append(loss._training_step(trainer, config, rows_of(x, mask), 0.1, 0, 8.0))
    names, weights = [[*step["metrics"]] for step in found], [step["weights"] for step in found]
    assert names[0] == names[1]
    assert weights[0] == weights[1]
    assert ("kl" in names[0]) == (place == "loss")
    assert float(losses[1]) == 0.0
    assert losses[1].requires_grad


class Weighed(nn.Module):
    """A model of one weight: its log-probs, or its values, and the entropy that they have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(-1.0))

    def forward(self, sequences: Tensor, *_: Any, **__: Any) -> Any:
        found = self.weight.expand(len(sequences), sequences.shape[1] - 1)
        return found, SimpleNamespace(entropy=-found)


def steps_of(trainer: Any, model: Weighed, masks: list[list[int]]) -> tuple[Any, list[float]]:
    """The trainer with rows to read one at a time, two in a step, and the gradient after each of them."""
    gradients: list[float] = []

    def step(*_: Any, **__: Any) -> None:
        assert model.weight.grad is not None
        gradients.append(float(model.weight.grad))

    trainer.strategy = SimpleNamespace(
        ring_attn_group=None,
        accumulated_gradient=2,
        is_rank_0=lambda: False,
        all_reduce=lambda found: {n: float(v) for n, v in found.items()} if isinstance(found, dict) else found,
        backward=lambda loss, *_: loss.backward(),
        optimizer_step=step,
        get_grad_norm=lambda _: 0.0,
    )
    trainer.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=False),
        ds=SimpleNamespace(tensor_parallel_size=1),
        actor=SimpleNamespace(aux_loss_coef=0.0),
    )
    trainer.max_epochs, trainer.aux_loss, trainer.dataloader_pin_memory = 1, False, False
    trainer.replay_buffer = NaiveReplayBuffer(1, 0, True, False, False)
    for mask in masks:
        numbers = torch.zeros(1, len(mask))
        row = Experience(
            sequences=torch.zeros(1, len(mask) + 1, dtype=torch.long),
            attention_mask=torch.ones(1, len(mask) + 1, dtype=torch.long),
            action_mask=torch.tensor([mask]),
            action_log_probs=numbers - 1,
            rollout_log_probs=numbers - 1,
            advantages=numbers + 1,
            values=numbers,
            returns=numbers + 1,
            info={EPISODE_TOKENS: torch.ones(1), EPISODE_SHARE: torch.tensor([float(any(mask))])},
        )
        trainer.replay_buffer.append(row)
    return trainer, gradients


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("masks", [[[1, 1], [0, 0]], [[0, 0], [0, 0]]], ids=["a row", "a whole step"])
def test_rows_without_a_token_in_the_loss_cost_nothing(
    masks: list[list[int]], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read alone they are padding, or rows that a mask empties: OpenRLHF divides by their number of tokens."""
    for module in (ppo_actor, ppo_critic):
        monkeypatch.setattr(module, INSTALLED, getattr(module, INSTALLED))
    found = []
    for kept in (masks, [mask for mask in masks if any(mask)]):
        actor = ppo_actor.ActorPPOTrainer.__new__(ppo_actor.ActorPPOTrainer)
        actor.actor, actor.actor_optim, actor.ema_model = Weighed(), None, None
        actor.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        trainer, gradients = steps_of(actor, actor.actor, kept)
        trainer.strategy.accumulated_gradient = len(kept)
        settings = {"training": {"aggregation": how, "entropy_bonus": 0.5}, "turns": {"max_tokens_per_episode": 5}}
        loss.install(trainer, with_settings(Config(), settings))
        found.append((trainer.ppo_train(0.0) if kept else {}, gradients[-1:]))
    (whole, [gradient]), (alone, expected) = found
    assert gradient == pytest.approx(2 * expected[0] if expected else 0.0), "DeepSpeed halves it: two parts of a step"
    for name in ("entropy", "approx_kl", "clip_fraction"):
        assert float(whole[name]) == pytest.approx(float(alone.get(name, 0.0)))
    critic = ppo_critic.CriticPPOTrainer.__new__(ppo_critic.CriticPPOTrainer)
    critic.critic, critic.critic_optim, critic.critic_loss_fn = Weighed(), None, ValueLoss(0.2)
    critic.critic_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer, gradients = steps_of(critic, critic.critic, masks)
    loss.install_critic()
    assert trainer.ppo_train()["critic_loss"] == pytest.approx(2.0 if any(map(any, masks)) else 0.0)
    assert gradients[-1] == pytest.approx(-4.0 if any(map(any, masks)) else 0.0)
