"""The update of StarPO on a model small enough to look at."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from ragen_agent.config import Config, Lora, Training, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS, POLICY_LOSSES
from ragen_agent.local import policy_update
from ragen_agent.local.policy_update import Critic, Learner, cut, policy_terms, targets_of, update
from ragen_agent.models.parameters import adapt
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update import scoring
from ragen_agent.update.batches import Batch
from ragen_agent.update.loss import Divisors
from ragen_agent.update.prefix_tree import shares_prefixes
from tests.ragen_agent.algo.known_processes import (
    KNOWN_CREDIT,
    Known,
    credit_settings,
    trajectory_of,
    whitened_credit,
)

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
    assert measured["kl"] == pytest.approx(0.0, abs=1e-5), "logged where it is part of the reward, too"


class PerfectCritic(torch.nn.Module):
    """Says the value before each sampled token of a known process."""

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.known = known

    def forward(self, batch: Batch) -> torch.Tensor:
        values = torch.full(batch.ids.shape, 50.0)
        for row, place in batch.sampled.nonzero().tolist():
            values[row, place] = self.known.value(batch.ids[row].tolist(), place)
        return values


@pytest.mark.parametrize(("credit", "lam"), KNOWN_CREDIT)
def test_every_credit_of_a_process_that_is_known(credit: str, lam: float, agent: Policy) -> None:
    episodes, known, right = whitened_credit(credit, lam)
    rows, learner = [trajectory_of(episode) for episode in episodes], policy_of(agent)
    learner.critic = cast(Critic, PerfectCritic(known))
    targets = targets_of(learner, Batch.of(rows), rows, torch.zeros(len(rows)), credit_settings(credit, lam))
    for row, (episode, expected) in enumerate(zip(episodes, right, strict=True)):
        assert targets["advantages"][row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
        first, second = episode.starts
        earned = sum(episode.rewards) if lam else episode.rewards[0] + known.value(episode.ids, second)
        assert float(targets["returns"][row, first]) == pytest.approx(earned)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_rows_without_a_token_in_the_loss(how: str, agent: Policy) -> None:
    """Half of the rows are masked: of sums they count as rows, of means they do not; and so in parts of a minibatch."""
    rows, settings = played(agent, 1.0), Training(aggregation=how, entropy_bonus=0.0)
    learner, batch = policy_of(agent), Batch.of(rows)
    learner.longest = 64
    targets = targets_of(learner, batch, rows, torch.linspace(-1, 1, 8), settings)
    targets["mask"] = batch.sampled & (torch.arange(8) % 2 == 0)[:, None]
    whole = policy_terms(learner, batch, targets, settings)[0]["policy"]
    sums = (targets["advantages"] * targets["mask"]).sum(1)  # on the policy that sampled every ratio is 1
    number = targets["mask"].sum(1)
    expected = {
        "token_mean": sums.sum() / number.sum(),
        "sequence_mean": (sums / number)[::2].sum() / 4,
        "sequence_sum": sums.sum() / 8,
        "constant": sums.sum() / 8 / 64,
    }[how]
    torch.testing.assert_close(whole, -expected, rtol=1e-4, atol=1e-6)
    counts, found = Divisors.of(batch.sampled, targets["mask"], settings), torch.zeros(())
    for some in ([0, 1, 3], [2, 5], [4, 6, 7]):
        chosen = torch.tensor(some)
        part = batch.rows(chosen)
        found = found + policy_terms(learner, part, cut(targets, chosen, part), settings, counts)[0]["policy"]
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        *(("ppo", how) for how in AGGREGATIONS),
        *((name, "token_mean") for name, row in POLICY_LOSSES.items() if row.batch_statistics),
    ],
)
def test_a_minibatch_of_several_passes_takes_the_step_of_a_whole_one(
    rule: str, how: str, agent: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, Any] = {"policy_loss": rule, "aggregation": how}
    settings = Training(minibatch=8, kl_kind="k2", kl_place="loss", kl=0.5, entropy_bonus=0.1, **more)
    trajectories, start = played(agent, 1.0), copy.deepcopy(agent.model)
    advantages = torch.linspace(-1, 1, 8)
    found = []
    for limit in (scoring.TOKENS_PER_PASS, 100):
        monkeypatch.setattr(scoring, "TOKENS_PER_PASS", limit)
        agent.model.load_state_dict(start.state_dict())
        with torch.no_grad():  # away from the reference, whose divergence has no gradient
            agent.model.get_output_embeddings().weight.mul_(1.2)
        learner = policy_of(agent)
        learner.reference_model = start
        measured = update(learner, trajectories, advantages, settings, seed=0)
        gradients = {name: weight.grad for name, weight in agent.model.named_parameters()}
        found.append((measured, gradients, len(scoring.passes(agent.model, Batch.of(trajectories)))))
    (whole, expected, one), (parts, gradients, several) = found
    assert (one, several > 1) == (1, True)
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-6)


def loss_settings(rule: str) -> dict[str, Any]:
    """A policy loss with the aggregation that it takes."""
    how = "sequence_mean" if POLICY_LOSSES[rule].sequences else "token_mean"
    return {"policy_loss": rule, "aggregation": how}


@pytest.mark.parametrize("rule", POLICY_LOSSES)
def test_every_policy_loss_takes_steps_and_reports_what_it_restrains(rule: str, agent: Policy) -> None:
    """From the second pass over the batch on, the policy is not the one that sampled."""
    settings = Training(minibatch=8, updates=3, **loss_settings(rule))
    before = copy.deepcopy(agent.model.state_dict())
    learner = policy_of(agent)
    learner.optimiser.param_groups[0]["lr"] = 0.02
    measured = update(learner, played(agent, 1.0), torch.linspace(-1, 1, 8), settings, seed=0)
    assert measured["updates"] == 3
    assert measured["approx_kl"] > 0.01
    assert 0 < measured["clip_fraction"] < 1
    assert any(not torch.equal(before[name], value) for name, value in agent.model.state_dict().items())


@pytest.mark.parametrize(
    ("algo", "rule", "lora"),
    [*(("grpo", rule, 0) for rule in POLICY_LOSSES), ("ppo", "ppo", 0), ("grpo", "ppo", 4), ("ppo", "ppo", 4)],
)
def test_an_update_over_shared_prefixes_has_the_gradients_of_padded_rows(
    algo: str, rule: str, lora: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights that are no longer those that sampled: ratios, clips and the divergence have gradients."""
    turns = {"max_turns": 3, "max_tokens_per_turn": 12, "max_tokens_per_episode": 400}
    settings: dict[str, Any] = {"game": "FrozenLake", "turns": turns, "demonstrations": {"thought": "direction"}}
    agent = Policy.build(with_settings(CONFIG, settings))
    trajectories, start = played(agent, 1.0), copy.deepcopy(agent.model)
    assert max(len(each.turn_ends) for each in trajectories) > 1
    rewarded = [replace(t, turn_rewards=(1.0 * (i % 3),) * len(t.turn_ends)) for i, t in enumerate(trajectories)]
    training = Training(
        algo=algo, minibatch=8, kl_kind="k2", kl_place="loss", kl=0.5, entropy_bonus=0.1, **loss_settings(rule)
    )
    with torch.no_grad():
        agent.model.get_output_embeddings().weight.mul_(1.2)
    if lora:
        adapt(agent.model, Lora(rank=lora), 0)
    assert shares_prefixes(agent.model)
    found = []
    for shares in (True, False):
        monkeypatch.setattr(scoring, "shares_prefixes", shares_prefixes if shares else lambda model: False)
        monkeypatch.setattr(policy_update, "shares_prefixes", shares_prefixes if shares else lambda model: False)
        learner = policy_of(replace(agent, model=copy.deepcopy(agent.model)))
        learner.reference_model = start
        if algo == "ppo":
            learner.critic = Critic(learner.model)
            torch.nn.init.constant_(learner.critic.head.weight, 0.1)
            learner.critic_optimiser = torch.optim.AdamW(learner.critic.parameters(), 1e-3)
        measured = update(learner, rewarded, torch.linspace(-1, 1, 8), training, seed=0)
        modules = [learner.model, *([] if learner.critic is None else [learner.critic])]
        found.append((measured, [p.grad for m in modules for p in m.parameters() if p.grad is not None]))
    (tree, gradients), (padded, expected) = found
    assert tree == pytest.approx(padded, rel=1e-4, abs=1e-6)
    assert len(gradients) == len(expected) > 4
    assert sum(bool(gradient.any()) for gradient in expected) > 4
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-5)


def test_the_correction_compares_what_was_recorded_with_what_the_weights_say(agent: Policy) -> None:
    """Log-probs recorded 0.1 too low: every ratio of trainer to rollout is exp(0.1), by which the terms are weighed.

    The loss itself then compares with the trainer's own log-probs, so nothing is clipped.
    """
    trajectories = played(agent, 1.0)
    shifted = [replace(t, log_probs=(t.log_probs - 0.1 * t.sampled).astype(np.float32)) for t in trajectories]
    norms = {}
    for name, rows, options in (
        ("exact", trajectories, {}),
        ("weighed", shifted, {"correction": "clip"}),
        ("cut", shifted, {"correction": "clip", "correction_bounds": [0.0, 1.0]}),
        ("left out", shifted, {"correction": "mask", "correction_bounds": [0.5, 1.05]}),
    ):
        settings = Training(minibatch=8, entropy_bonus=0.0, **options)
        learner = policy_of(copy.deepcopy(agent))
        measured = update(learner, rows, torch.linspace(-1, 1, 8), settings, seed=0)
        norms[name] = measured["grad_norm"]
        assert measured["clip_fraction"] == 0
        assert measured.get("corrected") == {"exact": None, "weighed": 0.0}.get(name, 1.0)
    assert norms["weighed"] == pytest.approx(math.exp(0.1) * norms["exact"], rel=1e-3)
    assert norms["cut"] == pytest.approx(norms["exact"], rel=1e-3)
    assert norms["left out"] == 0


def test_entropy_smoothing_pulls_back_into_the_band(agent: Policy) -> None:
    """Without advantages only the bonus pulls: within the band it raises the entropy, far above it lowers it."""
    trajectories, start = played(agent, 1.0), copy.deepcopy(agent.model.state_dict())
    usual = -sum(float(t.log_probs.sum()) for t in trajectories) / sum(int(t.sampled.sum()) for t in trajectories)
    for average, up in ((usual, True), (usual / 10, False)):
        agent.model.load_state_dict(start)
        learner = policy_of(agent)
        learner.average_entropy = average
        settings = Training(minibatch=8, updates=4, entropy_bonus=1.0, entropy_smoothing=5.0)
        first = update(learner, trajectories, torch.zeros(8), replace(settings, updates=1), seed=0)
        last = update(learner, trajectories, torch.zeros(8), settings, seed=0)
        assert (last["entropy"] > first["entropy"]) is up
        assert (first["entropy_deviation"] == 0) is up
        if not up:
            assert first["entropy_deviation"] == pytest.approx(first["entropy"] - 1.5 * average, rel=0.2)


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


@pytest.mark.parametrize("broken", ["policy", "critic"])
def test_where_one_of_policy_and_critic_breaks_the_other_takes_its_step(agent: Policy, broken: str) -> None:
    trajectories, learner = played(agent, 1.0), policy_of(agent)
    learner.critic = Critic(agent.model)
    learner.critic_optimiser = torch.optim.AdamW(learner.critic.parameters())
    modules = {"policy": agent.model.get_output_embeddings(), "critic": learner.critic.head}
    weights = {name: copy.deepcopy(module.state_dict()) for name, module in modules.items()}
    settings = Training(algo="ppo", minibatch=8)
    with modules[broken].register_forward_hook(
        lambda module, inputs, output: output * float("nan") if torch.is_grad_enabled() else output
    ):
        measured = update(learner, trajectories, torch.zeros(8), settings, seed=0)
    assert ("grad_norm" in measured, "value_loss" in measured) == (broken == "critic", broken == "policy")
    assert measured["updates"] == 1
    assert "skipped_steps" not in measured
    for name, module in modules.items():
        same = all(torch.equal(weights[name][key], value) for key, value in module.state_dict().items())
        assert same is (name == broken)
