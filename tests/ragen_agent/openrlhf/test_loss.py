"""The policy's loss: OpenRLHF's own step adds up our terms, under every aggregation and however it is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import ppo_actor
from torch import Tensor, nn

from ragen_agent import algo
from ragen_agent.config import Config, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS
from ragen_agent.openrlhf import loss
from ragen_agent.openrlhf.experience import EPISODE_ROWS, EPISODE_TOKENS

#: What ``loss.install`` replaces in OpenRLHF's module.
INSTALLED = ("aggregate_loss", "iter_grad_accum_global_norm")


class Scripted(nn.Module):
    """A policy whose log-probs and entropies are given."""

    def __init__(self, log_probs: Tensor, entropy: Tensor) -> None:
        super().__init__()
        self.log_probs, self.entropy = log_probs, entropy

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.log_probs, SimpleNamespace(entropy=self.entropy)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_every_term_of_the_loss_is_aggregated_alike(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF's own step on two rows of 3 tokens and of 1 in the loss, against our terms."""
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
    settings = {"training": {"aggregation": how}, "turns": {"max_tokens_per_episode": 5}}
    loss.install(trainer, with_settings(Config(), settings))
    rows = Experience(
        sequences=torch.zeros(2, 4, dtype=torch.long),
        attention_mask=torch.ones(2, 4),
        action_mask=mask,
        action_log_probs=old,
        base_action_log_probs=reference,
        rollout_log_probs=old,
        advantages=advantages,
        info={EPISODE_TOKENS: torch.tensor([3.0, 1.0]), EPISODE_ROWS: torch.ones(2)},
    )
    recorded = trainer.training_step(rows, 0.25, 0)["metrics"]
    chosen = mask.bool()
    policy, stats = algo.policy_loss(log_probs, old, advantages, chosen, how=how, length=5)
    divergence = algo.kl_loss(log_probs, reference, chosen, "k2", how, length=5)
    expected = policy + 0.25 * divergence - 0.5 * algo.aggregate(entropy, chosen, how, length=5)
    torch.testing.assert_close(losses[0], expected)
    torch.testing.assert_close(recorded["approx_kl"], stats.approx_kl)
    torch.testing.assert_close(recorded["entropy_loss"], algo.masked_mean(entropy, chosen))
    torch.testing.assert_close(recorded["kl"], divergence)


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
    tokens, rows = torch.tensor([3.0, 3.0, 3.0, 1.0]), torch.tensor([2.0, 2.0, 1.0, 1.0])
    batches = [
        Experience(action_mask=mask[part], info={EPISODE_TOKENS: list(tokens[part]), EPISODE_ROWS: list(rows[part])})
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
