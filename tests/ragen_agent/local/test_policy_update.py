"""The update of StarPO on a model small enough to look at."""

from __future__ import annotations

import copy

import pytest
import torch

from ragen_agent.config import Config, Training, with_settings
from ragen_agent.local.policy_update import Learner, update
from ragen_agent.rollout import group
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.policy import Policy

CONFIG = with_settings(
    Config(),
    {
        "game": "Bandit",
        "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
        "turns": {"max_tokens_per_turn": 12},
        "demonstrations": {"thought": "choose"},
    },
)


@pytest.fixture
def agent() -> Policy:
    return Policy.build(CONFIG)


def played(agent: Policy, temperature: float) -> list[Trajectory]:
    return agent.play(agent.processes("train", 8), group([1, 2], 4), temperature, seed=3)


def policy_of(agent: Policy) -> Learner:
    model = agent.model
    return Learner(model, torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0), agent.engine.bias)


def test_before_the_first_step_the_policy_is_the_one_that_sampled(agent: Policy) -> None:
    settings = Training(temperature=0.7, minibatch=8)
    measured = update(policy_of(agent), played(agent, 0.7), torch.zeros(8), settings, seed=0)
    assert abs(measured["approx_kl"]) < 1e-6
    assert measured["clip_fraction"] == 0


def test_a_policy_at_its_reference_pays_no_divergence(agent: Policy) -> None:
    settings = Training(temperature=0.7, minibatch=8, starpo_s=False, kl=1.0, entropy_bonus=0.0)
    policy = policy_of(agent)
    policy.reference_model = copy.deepcopy(agent.model)
    measured = update(policy, played(agent, 0.7), torch.zeros(8), settings, seed=0)
    assert measured["grad_norm"] < 1e-4, "no advantage, no divergence: nothing pulls"


def test_a_gradient_that_is_not_finite_costs_its_step_only(agent: Policy) -> None:
    before = copy.deepcopy(agent.model.state_dict())
    advantages = torch.full((8,), float("nan"))
    measured = update(policy_of(agent), played(agent, 1.0), advantages, Training(minibatch=4), seed=0)
    assert measured.pop("skipped_steps") == 2
    assert measured.keys() == {"train_tokens", "updates"}
    assert all(torch.equal(before[name], value) for name, value in agent.model.state_dict().items())
    advantages = torch.tensor([1.0, -1.0] * 4)
    measured = update(policy_of(agent), played(agent, 1.0), advantages, Training(minibatch=4), seed=0)
    assert "skipped_steps" not in measured
    assert any(not torch.equal(before[name], value) for name, value in agent.model.state_dict().items())
