"""Weights of the advantages: the steps that they stand for, on a model small enough to look at."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from ragen_agent.config import Config, Training, with_settings
from ragen_agent.local.policy_update import Learner, update
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.advantages import task_scale, weighted
from ragen_agent.update.iteration import Iteration
from tests.ragen_agent.update.test_iteration import DIFFERENT

FILTERED: dict[str, Any] = {"groups": 4, "group_size": 2, "filter": "top", "keep": 0.5, "minibatch": 8}


@pytest.fixture(scope="module")
def agent() -> Policy:
    small = {"hidden": 32, "layers": 1, "feed_forward": 32}
    settings = {"game": "Bandit", "small_model": small, "turns": {"max_tokens_per_turn": 12}}
    return Policy.build(with_settings(Config(), settings))


@pytest.fixture(scope="module")
def played(agent: Policy) -> list[Trajectory]:
    """Four groups of two; the returns of the first two groups differ most."""
    rewards = [0.0, 4.0, 1.0, 4.0, 0.0, 1.0, 2.0, 2.5]
    rows = agent.play(agent.processes("train", 8), group([1, 2, 3, 4], 2), 1.0, seed=3)
    return [
        replace(t, turn_rewards=(reward, *[0.0] * (len(t.turn_ends) - 1)))
        for t, reward in zip(rows, rewards, strict=True)
    ]


def iteration(played: list[Trajectory], **settings: Any) -> Iteration:
    return Iteration.score_and_filter(0, played, ["Bandit"] * 4, Training(**FILTERED | settings), 0)


def weights_after(agent: Policy, learned: tuple[list[Trajectory], torch.Tensor], settings: Training) -> torch.Tensor:
    """The weights after one step of plain gradient descent."""
    model = copy.deepcopy(agent.model)
    learner = Learner(model, torch.optim.SGD(model.parameters(), 1.0), agent.engine.bias)
    update(learner, *learned, settings, seed=0)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_scale_by_hand() -> None:
    for scaling, scale in (("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)):
        assert task_scale(8, Training(filter_loss_scaling=scaling)) == scale
    assert task_scale(8, Training(zero_task_advantage=True)) == 0


def test_linear_scaling_is_the_step_of_all_groups_with_the_dropped_ones_silent(
    agent: Policy, played: list[Trajectory]
) -> None:
    shared = {"entropy_bonus": 0.0, "aggregation": "sequence_sum", "max_grad_norm": 1e3}
    kept = iteration(played, filter_loss_scaling="linear", **shared)
    assert kept.rows == [0, 1, 2, 3]
    silent = torch.cat([iteration(played, **shared).update_on[1], torch.zeros(4)])
    stepped = weights_after(agent, kept.update_on, kept.settings)
    torch.testing.assert_close(stepped, weights_after(agent, (played, silent), kept.settings))
    unscaled = iteration(played, **shared)
    assert not torch.allclose(stepped, weights_after(agent, unscaled.update_on, unscaled.settings))


def test_without_task_advantages_only_the_regulariser_moves(agent: Policy, played: list[Trajectory]) -> None:
    """The returns no longer matter; the entropy bonus alone takes the same episodes to another place."""
    control = iteration(played, zero_task_advantage=True)
    assert control.rows == iteration(played).rows
    stepped = weights_after(agent, control.update_on, control.settings)
    swapped = [replace(t, turn_rewards=tuple(-r for r in t.turn_rewards)) for t in played]
    other = iteration(swapped, zero_task_advantage=True)
    assert torch.equal(stepped, weights_after(agent, other.update_on, other.settings))
    before = torch.cat([p.detach().flatten() for p in agent.model.parameters()])
    assert not torch.equal(stepped, before)
    assert not torch.allclose(stepped, weights_after(agent, iteration(played).update_on, control.settings))


def test_with_length_weights_an_episode_pulls_alike_however_long() -> None:
    """Four sampled tokens in the first episode, three in the others: 3.25 on average."""
    episodes = [replace(DIFFERENT[0], turn_infos=(TurnInfo("", 1, 1, True, advantage=3.0),)), *DIFFERENT[1:]]
    weighed, advantages = weighted(episodes, torch.ones(4), 0.5, Training(advantage_length_weight=True))
    torch.testing.assert_close(advantages, torch.tensor([0.5 * 3.25 / 4, *[0.5 * 3.25 / 3] * 3]))
    assert weighed[0].turn_infos[0].advantage == pytest.approx(3 * 0.5 * 3.25 / 4)
