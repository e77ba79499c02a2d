"""The policy's loss: OpenRLHF's own step adds up our terms, under every aggregation and however it is cut."""

from __future__ import annotations

import math
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
from ragen_agent.config.algorithms import AGGREGATIONS, POLICY_LOSSES
from ragen_agent.openrlhf import loss
from ragen_agent.openrlhf.experience import AVERAGE_ENTROPY, ENTROPY_PHASE, EPISODE_SHARE, EPISODE_TOKENS

#: What ``loss.install`` replaces in OpenRLHF's module.
INSTALLED = ("aggregate_loss", "iter_grad_accum_global_norm", "compute_approx_kl")


class Scripted(nn.Module):
    """A policy whose log-probs and entropies are given."""

    def __init__(self, log_probs: Tensor, entropy: Tensor) -> None:
        super().__init__()
        self.log_probs, self.entropy = log_probs, entropy

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.log_probs, SimpleNamespace(entropy=self.entropy)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("smoothing", [0.0, 2.0])
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_every_term_of_the_loss_is_aggregated_alike(
    how: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenRLHF's own step on two rows of 3 tokens and of 1 in the loss, against our terms, those of EPO included."""
    mask = torch.tensor([[1, 1, 1], [0, 1, 0]])
    log_probs = torch.tensor([[-1.0, -0.5, -2.0], [-3.0, -0.25, -4.0]])
    entropy = torch.tensor([[0.5, 1.0, 1.5], [9.0, 3.0, 9.0]])
    old, reference = log_probs - 0.125, log_probs - torch.tensor([[0.5, 1.0, 0.25], [5.0, 2.0, 5.0]])
    advantages = torch.tensor([[1.0, -1.0, 0.5], [7.0, 2.0, 7.0]])
    losses: list[Tensor] = []
    trainer = ppo_actor.ActorPPOTrainer.__new__(ppo_actor.ActorPPOTrainer)
    trainer.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=False),
        actor=SimpleNamespace(entropy_coef=0.5, aux_loss_coef=0.0),
        algo=SimpleNamespace(
            kl=SimpleNamespace(use_loss=True, init_coef=0.25, estimator="k2", unbiased_gradient=False)
        ),
    )
    trainer.actor = Scripted(log_probs, entropy)
    trainer.strategy = SimpleNamespace(
        ring_attn_group=None,
        backward=lambda loss, *_: losses.append(loss),
        optimizer_step=lambda *_, **__: None,
        get_grad_norm=lambda _: 0.0,
    )
    trainer.actor_optim = trainer.ema_model = trainer.replay_buffer = None
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer.aux_loss = False
    trainer.actor_loss_fn = PolicyLoss(0.2, 0.28, token_level_loss=how == "token_mean")
    for name in INSTALLED:
        monkeypatch.setattr(ppo_actor, name, getattr(ppo_actor, name))  # put back afterwards
    settings = {
        "training": {"aggregation": how, "entropy_smoothing": smoothing},
        "turns": {"max_tokens_per_episode": 5},
    }
    loss.install(trainer, with_settings(Config(), settings))
    rows = Experience(
        sequences=torch.zeros(2, 4, dtype=torch.long),
        attention_mask=torch.ones(2, 4),
        action_mask=mask,
        action_log_probs=old,
        base_action_log_probs=reference,
        rollout_log_probs=old,
        advantages=advantages,
        info={
            EPISODE_TOKENS: torch.tensor([3.0, 1.0]),
            EPISODE_SHARE: torch.ones(2),
            AVERAGE_ENTROPY: torch.full((2,), 1.0),
            ENTROPY_PHASE: torch.full((2,), 0.5),
        },
    )
    recorded = trainer.training_step(rows, 0.25, 0)["metrics"]
    chosen = mask.bool()
    policy, stats = algo.policy_loss(log_probs, old, advantages, chosen, how=how, length=5)
    divergence = algo.kl_loss(log_probs, reference, chosen, "k2", how, length=5)
    outside = algo.entropy_deviation(entropy, chosen, 1.0, (0.5, 1.5))
    assert outside.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.5, 0.0]]
    bonus = algo.aggregate(entropy - 0.5 * smoothing * outside, chosen, how, length=5)
    expected = policy + 0.25 * divergence - 0.5 * bonus
    torch.testing.assert_close(losses[0], expected)
    torch.testing.assert_close(recorded["approx_kl"], stats.approx_kl)
    torch.testing.assert_close(recorded["entropy_loss"], algo.masked_mean(entropy, chosen))
    torch.testing.assert_close(recorded["kl"], divergence)
    if smoothing:
        torch.testing.assert_close(recorded["entropy_deviation"], algo.masked_mean(outside, chosen))


EPISODES = {
    # Episode A is a row of 2 tokens and one of 1, B a row of 3; the last row is padding.
    "token_mean": (1 + 2 + 6 + 4 + 5 + 9) / 6,
    "sequence_mean": ((1 + 2 + 6) / 3 + (4 + 5 + 9) / 3) / 2,
    "sequence_sum": (1 + 2 + 6 + 4 + 5 + 9) / 2,
    "constant": (1 + 2 + 6 + 4 + 5 + 9) / 2 / 10,
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_sequence_is_an_episode_of_several_rows(how: str) -> None:
    """In two micro-batches, whose parts DeepSpeed divides by their number and adds up."""
    values = torch.tensor([[1.0, 2.0, 7.0], [6.0, 7.0, 7.0], [4.0, 5.0, 9.0], [7.0, 7.0, 7.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    tokens, rows = torch.tensor([3.0, 3.0, 3.0, 1.0]), torch.tensor([0.5, 0.5, 1.0, 0.0])
    batches = [
        Experience(action_mask=mask[part], info={EPISODE_TOKENS: list(tokens[part]), EPISODE_SHARE: list(rows[part])})
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert [loss.count_episodes(batch) for batch in batches] == [1.0, 1.0]
    strategy = SimpleNamespace(all_reduce=lambda value: value)
    whole = 0.0
    for part, (batch, counts) in zip(
        (slice(0, 2), slice(2, 4)), loss._steps(batches, strategy, 2, lambda b: b.action_mask), strict=True
    ):
        aggregation = loss.Aggregation(how, 10)
        aggregation.episode_tokens = torch.stack(batch.info[EPISODE_TOKENS])
        whole += float(aggregation(values[part], batch.action_mask, **counts)) / 2
    assert whole == pytest.approx(EPISODES[how])


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


AXES = [
    ("token", "clip", "ratio", (0.0, 1.2)),
    ("token", "mask", "ratio", (0.7, 1.4)),
    ("sequence", "mask", "ratio", (0.95, 1.4)),
    ("token", "mask", "binary_kl", (0.0, 0.02)),
    ("sequence", "mask", "binary_kl", (0.0, 0.04)),
    ("token", "mask", "tv", (0.0, 0.05)),
    ("sequence", "mask", "tv", (0.0, 0.08)),
]


@pytest.mark.parametrize(("level", "mode", "gating", "bounds"), AXES)
def test_the_correction_is_that_of_openrlhf(level: str, mode: str, gating: str, bounds: tuple[float, float]) -> None:
    """On every axis: the loss of OpenRLHF's ``PolicyLoss``, its gradient, and the share outside the bounds."""
    x = example()
    chosen = x["mask"].bool()
    theirs = PolicyLoss(
        0.2,
        0.28,
        is_correction_level="seq" if level == "sequence" else level,
        is_correction_mode=mode,
        is_correction_gating=gating,
        is_correction_threshold=list(bounds),
    )
    loss, _, _, _, share = theirs(
        x["new"], x["old"], x["advantages"], action_mask=x["mask"], rollout_log_probs=x["rollout"]
    )
    weights, outside = algo.mismatch_weights(
        x["old"], x["rollout"], chosen, level=level, mode=mode, gating=gating, bounds=bounds
    )
    ours, _ = algo.policy_loss(x["new"], x["old"], x["advantages"], chosen, weights=weights)
    same(ours, loss, x["new"])
    units = outside.any(dim=1).double().mean() if level == "sequence" else outside[chosen].double().mean()
    assert 0 < float(units) < 1, "the example has something on either side"
    torch.testing.assert_close(units, share.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", ["off", "token"])
def test_gspo_is_that_of_openrlhf(level: str) -> None:
    """With a correction OpenRLHF compares with the policy that sampled, as the local trainer always does."""
    x = example()
    theirs = PolicyLoss(0.05, 0.08, policy_loss_type="gspo", is_correction_level=level)
    loss, clipped, *_ = theirs(
        x["new"], x["old"], x["advantages"], action_mask=x["mask"], rollout_log_probs=x["rollout"]
    )
    old = x["old"] if level == "off" else x["rollout"]
    options: dict[str, Any] = {"clip_low": 0.05, "clip_high": 0.08}
    ours, stats = algo.policy_loss(
        x["new"], old, x["advantages"], x["mask"].bool(), "gspo", how="sequence_mean", **options
    )
    same(ours, loss, x["new"])
    torch.testing.assert_close(stats.clip_fraction, clipped.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("level", ["off", "token"])
@pytest.mark.parametrize("rule", POLICY_LOSSES)
def test_no_gap_of_log_probs_overflows_a_loss(rule: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of OpenRLHF's losses and ours, in float32; and of every estimate of the divergence that its step takes."""
    for name in INSTALLED:
        monkeypatch.setattr(ppo_actor, name, getattr(ppo_actor, name))
    sequences = POLICY_LOSSES[rule].sequences
    training = {"policy_loss": rule, "aggregation": "sequence_mean" if sequences else "token_mean"}
    stock = PolicyLoss(policy_loss_type=POLICY_LOSSES[rule].openrlhf or "ppo", is_correction_level=level)
    kl = SimpleNamespace(use_loss=True)
    trainer = SimpleNamespace(
        actor_loss_fn=stock, training_step=None, args=SimpleNamespace(algo=SimpleNamespace(kl=kl))
    )
    loss.install(trainer, with_settings(Config(), {"training": training}))
    stock.generator = torch.Generator().manual_seed(0)
    old = torch.tensor([[-1.0, -1.0, -1.0, -51.0, -201.0, -1e4, -1.0, -math.inf, -math.inf]])
    new = torch.tensor([[-1e4, -201.0, -51.0, -1.0, -1.0, 0.0, -math.inf, -1.0, -math.inf]]).requires_grad_()
    mask = torch.ones(1, 9, dtype=torch.long)
    for sign in (1.0, -1.0):
        found = trainer.actor_loss_fn(
            new, old, torch.full((1, 9), sign), action_mask=mask, rollout_log_probs=new.detach().flip(1)
        )
        (gradient,) = torch.autograd.grad(found[0], new)
        assert bool(found[0].isfinite())
        assert bool(gradient.isfinite().all())
    for kind in ("k1", "k2", "k3"):
        estimate = ppo_actor.compute_approx_kl(new, old, log_probs_old=old, kl_estimator=kind, unbiased_gradient=False)
        torch.testing.assert_close(estimate, algo.kl_penalty(new, old, kind))
        (gradient,) = torch.autograd.grad(estimate.sum(), new)
        assert bool(gradient.isfinite().all())


def same(ours: Tensor, theirs: Tensor, new: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("correction", ["", "none", "sequence"])
@pytest.mark.parametrize("rule", [name for name, row in POLICY_LOSSES.items() if not row.openrlhf])
def test_losses_that_openrlhf_lacks_are_ours(rule: str, correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In OpenRLHF's actor the loss is ours, weighed by the correction; rows of padding alone cost nothing."""
    for name in INSTALLED:
        monkeypatch.setattr(ppo_actor, name, getattr(ppo_actor, name))
    mode = {"correction_mode": "mask", "correction_bounds": [0.95, 1.4]} if correction == "sequence" else {}
    wide = {"cov_share": 0.1, "cov_band": [0.0, 9.0]}
    read = {name: value for name, value in wide.items() if name in POLICY_LOSSES[rule].options.values()}
    training = {"policy_loss": rule, "correction": correction, **read, **mode}
    config = with_settings(Config(), {"training": training})
    level = "seq" if correction == "sequence" else "token"
    bounds = config.training.correction_bounds
    stock = PolicyLoss(
        0.2,
        0.28,
        is_correction_level=level,
        is_correction_mode=config.training.correction_mode,
        is_correction_threshold=bounds,
    )
    kl = SimpleNamespace(use_loss=False)
    trainer = SimpleNamespace(
        actor_loss_fn=stock, training_step=None, args=SimpleNamespace(algo=SimpleNamespace(kl=kl))
    )
    loss.install(trainer, config)
    stock.generator = torch.Generator().manual_seed(14)
    x = {name: value.float() if value.is_floating_point() else value for name, value in example().items()}
    x["new"] = x["new"].detach().requires_grad_()
    given = {"action_mask": x["mask"], "rollout_log_probs": x["rollout"]}
    found, restrained, *_ = trainer.actor_loss_fn(x["new"], x["old"], x["advantages"], **given)
    later = trainer.actor_loss_fn(x["new"], x["old"], x["advantages"], **given)[0]
    chosen = x["mask"].bool()
    options = config.training.policy_loss_options
    if POLICY_LOSSES[rule].random:
        options["generator"] = torch.Generator().manual_seed(14)
    weights = None
    if correction != "none":
        weights, _ = algo.mismatch_weights(x["old"], x["rollout"], chosen, **config.training.correction_options)
    expected, stats = algo.policy_loss(x["new"], x["old"], x["advantages"], chosen, rule, weights=weights, **options)
    same(expected, found, x["new"])
    torch.testing.assert_close(restrained, stats.clip_fraction)
    expected, _ = algo.policy_loss(x["new"], x["old"], x["advantages"], chosen, rule, weights=weights, **options)
    same(expected, later, x["new"])
    assert (float(later) != float(found)) is POLICY_LOSSES[rule].random, "micro-batches of a step draw on"
    blank = given | {"action_mask": torch.zeros_like(x["mask"])}
    counts = {"dp_size": 1, "batch_num_tokens": 7.0, "global_batch_size": 2.0}
    nothing = trainer.actor_loss_fn(x["new"], x["old"], x["advantages"], **blank, **counts)[0]
    (gradient,) = torch.autograd.grad(nothing, x["new"])
    assert float(nothing) == float(gradient.abs().sum()) == 0


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
        actor=SimpleNamespace(entropy_coef=0.5, aux_loss_coef=0.0),
        algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)),
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
    for name in INSTALLED:
        monkeypatch.setattr(ppo_actor, name, getattr(ppo_actor, name))
    monkeypatch.setattr(ppo_critic, INSTALLED[1], getattr(ppo_critic, INSTALLED[1]))
    found = []
    for kept in (masks, [mask for mask in masks if any(mask)]):
        actor = ppo_actor.ActorPPOTrainer.__new__(ppo_actor.ActorPPOTrainer)
        actor.actor, actor.actor_optim, actor.ema_model = Weighed(), None, None
        actor.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        actor.actor_loss_fn = PolicyLoss(0.2, 0.28)
        trainer, gradients = steps_of(actor, actor.actor, kept)
        trainer.strategy.accumulated_gradient = len(kept)
        settings = {"training": {"aggregation": how}, "turns": {"max_tokens_per_episode": 5}}
        loss.install(trainer, with_settings(Config(), settings))
        found.append((trainer.ppo_train(0.0) if kept else {}, gradients[-1:]))
    (whole, [gradient]), (alone, expected) = found
    assert gradient == pytest.approx(2 * expected[0] if expected else 0.0), "DeepSpeed halves it: two parts of a step"
    for name in ("entropy_loss", "approx_kl", "ppo_clip_ratio"):
        assert float(whole[name]) == pytest.approx(float(alone.get(name, 0.0)))
    critic = ppo_critic.CriticPPOTrainer.__new__(ppo_critic.CriticPPOTrainer)
    critic.critic, critic.critic_optim, critic.critic_loss_fn = Weighed(), None, ValueLoss(0.2)
    critic.critic_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    trainer, gradients = steps_of(critic, critic.critic, masks)
    loss.install_critic()
    assert trainer.ppo_train()["critic_loss"] == pytest.approx(2.0 if any(map(any, masks)) else 0.0)
    assert gradients[-1] == pytest.approx(-4.0 if any(map(any, masks)) else 0.0)
