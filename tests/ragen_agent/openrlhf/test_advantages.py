"""OpenRLHF's tensors through our algorithms: the same numbers as on rows of the local trainer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.conform.compare import findings
from ragen_agent.conform.libraries import load
from ragen_agent.openrlhf.experience import (
    AdvantageInputs,
    StarPOExperience,
    advantage_inputs,
    log_prob_difference,
    pad_rows,
)
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.advantages import token_advantages, turn_advantages
from tests.ragen_agent.algo.known_processes import KNOWN_CREDIT, credit_settings, trajectory_of, whitened_credit

pytestmark = pytest.mark.filterwarnings("default")


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    """Rows of prompt, reply, observation, reply, ..., of several lengths."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        pieces = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
        sampled = torch.cat([torch.tensor([False] * seen + [True] * said) for seen, said in pieces]).numpy()
        ends = torch.tensor([seen + said for seen, said in pieces]).cumsum(0) - 1
        rewards = draw(st.lists(st.floats(-1, 1, width=16), min_size=len(pieces), max_size=len(pieces)))
        width = len(sampled)
        rows.append(
            Trajectory(
                ids=torch.arange(width).numpy(),
                sampled=sampled,
                log_probs=(-0.5 * torch.tensor(sampled).float()).numpy(),
                turn_ends=tuple(ends.tolist()),
                turn_rewards=tuple(rewards),
                terminated=True,
                seed=0,
            )
        )
    return rows


def stacked(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def maker(training: dict[str, Any]) -> StarPOExperience:
    made = StarPOExperience.__new__(StarPOExperience)
    made.run = RunContext(with_settings(Config(), {"training": training}), OpenRLHF(), "", (), 1)
    made.kl_ctl = SimpleNamespace(value=0.0)
    return made


def experience(rows: Sequence[Trajectory], notes: Sequence[AdvantageInputs]) -> Experience:
    mask = stacked([torch.tensor(t.sampled[1:]).long() for t in rows])
    made = Experience(
        sequences=stacked([torch.tensor(t.ids) for t in rows]),
        action_mask=mask,
        action_log_probs=torch.full(mask.shape, -0.5),
        rollout_log_probs=stacked([torch.tensor(t.log_probs[1:]) for t in rows]),
        values=torch.linspace(-1, 1, mask.numel()).view(mask.shape),
        kl=torch.zeros(mask.shape),
        labels=[note.to_json() for note in notes],
    )
    made.info = {}
    return made


@settings(max_examples=20, deadline=None)
@given(rows=trajectories())
def test_turns_with_an_advantage_of_their_own_have_it_in_both_trainers(rows: list[Trajectory]) -> None:
    """As ``training.groups_by=state`` gives it; an episode without keeps the one of the whole."""
    made = maker({"groups_by": "state"})
    own = [
        replace(t, turn_infos=tuple(TurnInfo("", 1, 1, True, advantage=i + k / 8) for k in range(len(t.turn_ends))))
        for i, t in enumerate(rows)
    ]
    given_rows, flat = [*own, rows[0]], torch.arange(len(rows) + 1) + 0.5
    notes = [
        advantage_inputs(t, float(a), made.run.config.training, str) for t, a in zip(given_rows, flat, strict=True)
    ]
    (got,) = made.compute_advantages_and_returns([experience(given_rows, notes)])
    sampled = stacked([torch.tensor(t.sampled) for t in given_rows])
    turns, ends = [turn_advantages(t) for t in given_rows], [t.turn_ends for t in given_rows]
    local = token_advantages(flat, turns, ends, sampled)
    assert torch.equal(got.advantages, local[:, 1:])
    assert got.advantages[-1][sampled[-1, 1:]].unique().tolist() == [float(flat[-1])]
    assert got.advantages[0, own[0].turn_ends[-1] - 1] == (len(own[0].turn_ends) - 1) / 8


@settings(max_examples=20, deadline=None)
@given(rows=trajectories())
def test_a_critic_s_advantages_are_whitened_over_all_batches_at_once(rows: list[Trajectory]) -> None:
    made = maker({"algo": "ppo"})
    notes = [advantage_inputs(t, 0.0, made.run.config.training, str) for t in rows]
    whole = [experience(rows, notes), experience(rows[:1], notes[:1])]
    got = made.compute_advantages_and_returns(whole)
    flat = torch.cat([e.advantages[e.action_mask.bool()] for e in got])
    if float(flat.abs().max()) > 1e-3:  # else all were equal
        assert abs(float(flat.mean())) < 1e-5
        assert float(flat.std()) == pytest.approx(1.0, abs=1e-3)
    assert all(not e.advantages[~e.action_mask.bool()].any() for e in got)
    made.task_scale = 0.25
    scaled = made.compute_advantages_and_returns([experience(rows, notes), experience(rows[:1], notes[:1])])
    for one, other in zip(got, scaled, strict=True):
        assert torch.equal(0.25 * one.advantages, other.advantages)
        assert torch.equal(one.returns, other.returns)  # the critic learns as before


@pytest.mark.parametrize(("credit", "lam"), KNOWN_CREDIT)
def test_every_credit_of_a_process_that_is_known(credit: str, lam: float) -> None:
    """As of the local trainer, whose test reads the same numbers."""
    episodes, known, right = whitened_credit(credit, lam)
    rows, settings = [trajectory_of(episode) for episode in episodes], credit_settings(credit, lam)
    made = maker({"algo": "ppo", "credit": credit, "gae_lambda": lam, "gamma_turn": settings.gamma_turn})
    notes = [advantage_inputs(t, 0.0, made.run.config.training, str) for t in rows]
    batch = experience(rows, notes)
    batch.values = known.tensors()[0][:, 1:].float()
    (got,) = made.compute_advantages_and_returns([batch])
    for row, (episode, expected) in enumerate(zip(episodes, right, strict=True)):
        assert got.advantages[row, : len(expected) - 1].tolist() == pytest.approx(expected[1:], abs=1e-5)
        first, second = episode.starts
        earned = sum(episode.rewards) if lam else episode.rewards[0] + known.value(episode.ids, second)
        assert float(got.returns[row, first - 1]) == pytest.approx(earned)


def test_padding_has_no_loss_and_fills_the_minibatch() -> None:
    rows = [
        SimpleNamespace(
            sequences=torch.arange(5)[None],
            attention_mask=torch.ones(1, 5),
            action_mask=torch.ones(1, 4),
            rollout_log_probs=torch.zeros(1, 4),
            labels=["x"],
            mm_train_inputs=[None],
            info={"a": 1},
        )
        for _ in range(5)
    ]
    filled = pad_rows(rows, 4)
    assert len(filled) == 8
    assert filled[:5] == rows
    assert [int(row.action_mask.sum()) for row in filled] == [4] * 5 + [0] * 3
    assert [row.sequences.shape[1] for row in filled] == [5] * 5 + [2] * 3, "a row of padding costs next to nothing"
    assert [row.attention_mask.shape[1] - row.rollout_log_probs.shape[1] for row in filled] == [1] * 8
    assert pad_rows(rows[:4], 4) == rows[:4]


def test_agreement_reads_the_sampled_tokens_alone() -> None:
    one = SimpleNamespace(
        rollout_log_probs=torch.tensor([[-1.0, -2.0, 9.0]]),
        action_log_probs=torch.tensor([[-1.5, -1.75, 0.0]]),
        action_mask=torch.tensor([[1, 1, 0]]),
        labels=[AdvantageInputs().to_json()],
    )
    difference = log_prob_difference([one])
    assert difference[:2] == (0.125, 0.375)
    ratios = [math.exp(-0.5), math.exp(0.25)]
    expected = sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 2
    assert difference.mismatch_kl == pytest.approx(expected), "the k3 estimate"
    one.rollout_log_probs[0, 0] = float("nan")
    assert log_prob_difference([one])[0] != log_prob_difference([one])[0]


def test_the_installed_openrlhf_computes_what_the_page_says() -> None:
    recorded = json.loads((Path(__file__).parents[3] / "benchmarks" / "conform.json").read_text())
    wanted = {row["rule"]: row["differences"] for row in recorded["libraries"]["OpenRLHF"]}
    assert {found.rule: found.differences for found in findings(load("openrlhf"))} == wanted
