"""OpenRLHF's tensors through our algorithms: the same numbers as on rows of the local trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from ragen_agent import algo
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS, CREDITS
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import loss
from ragen_agent.openrlhf.experience import (
    AdvantageInputs,
    StarPOExperience,
    advantage_inputs,
    log_prob_difference,
    narrow_to_returns,
    pad_rows,
    row_advantages,
)
from ragen_agent.openrlhf.processes import RunContext
from ragen_agent.tokens.trajectory import Trajectory, TurnInfo
from ragen_agent.update.step_groups import token_advantages, turn_advantages
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


@settings(max_examples=40, deadline=None)
@given(rows=trajectories(), credit=st.sampled_from(sorted(CREDITS)), seed=st.integers(0, 99))
def test_estimates_are_those_of_the_local_trainer(rows: list[Trajectory], credit: str, seed: int) -> None:
    read = {"tokens": ["gamma"], "turns": ["gamma_turn"], "both": ["gamma", "gamma_turn"]}[CREDITS[credit].recursion]
    discounts: dict[str, Any] = {name: {"gamma": 0.9, "gamma_turn": 0.8}[name] for name in read}
    training = Training(algo="ppo", credit=credit, gae_lambda=0.7, **discounts)
    sampled = stacked([torch.tensor(t.sampled) for t in rows])
    values = torch.randn(sampled.shape, generator=torch.Generator().manual_seed(seed))
    ends, earned = [list(t.turn_ends) for t in rows], [list(t.turn_rewards) for t in rows]
    rewards, seen = algo.rewards_at(ends, earned, values), torch.where(sampled, values, 0.0)
    local = {
        "trajectory": lambda: algo.gae(rewards, seen, sampled, 0.9, 0.7),
        "turn": lambda: algo.turn_wise_gae(rewards, seen, sampled, ends, 0.8, 0.7),
        "regret": lambda: algo.turn_wise_gae(rewards, seen, sampled, ends, 0.8, 0.7),  # of rewards shaped before
        "bi_level": lambda: algo.bi_level_gae(rewards, seen, sampled, ends, 0.8, 0.9, 0.7),
    }[credit]()
    notes = [advantage_inputs(t, 0.0, training, str) for t in rows]
    found, mask = row_advantages(notes, sampled[:, 1:], values[:, 1:], torch.zeros_like(values[:, 1:]), training)
    assert torch.equal(mask, sampled[:, 1:])
    torch.testing.assert_close(found.advantages, local[0][:, 1:])
    torch.testing.assert_close(found.returns, local[1][:, 1:])
    compared = algo.turn_end_mask(ends, sampled) if credit in ("turn", "regret") else sampled
    assert torch.equal(found.compared, compared[:, 1:])


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
def test_without_a_critic_every_sampled_token_has_its_episode_s_advantage(rows: list[Trajectory]) -> None:
    made = maker({})
    notes = [advantage_inputs(t, 0.5 + i, made.run.config.training, str) for i, t in enumerate(rows)]
    (got,) = made.compute_advantages_and_returns([experience(rows, notes)])
    for i, trajectory in enumerate(rows):
        width = len(trajectory.ids) - 1
        assert got.advantages[i, :width].tolist() == [(0.5 + i) * s for s in trajectory.sampled[1:]]
        assert not got.advantages[i, width:].any()
    assert got.labels == [""] * len(rows)


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


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_episodes_that_the_loss_is_divided_by(how: str) -> None:
    """Of three episodes one has no thought, and one is two rows of which one has a thought; and two rows of padding."""
    made = maker({"loss_tokens": "reasoning", "aggregation": how})
    words = ["P", "a", "</think>", "Up"]
    spoken = [[0, 1, 2, 3], [0, 1], [0, 1], [0, 1, 2, 3]]
    rows = [replace(row_of([0] + [1] * (len(t) - 1), [len(t) - 1], [1.0]), ids=np.array(t)) for t in spoken]
    notes = [advantage_inputs(t, 1.0, made.run.config.training, lambda token: words[token]) for t in rows]
    notes = [replace(note, continues=number == 3) for number, note in enumerate(notes)]
    blank = [replace(row_of([0, 1], [1], [0.0]), sampled=np.zeros(2, bool), turn_ends=(), turn_rewards=(), failure="")]
    whole = [
        experience(rows[:2], notes[:2]),
        experience([*rows[2:], *blank, *blank], [*notes[2:], *[AdvantageInputs()] * 2]),
    ]
    got = made.compute_advantages_and_returns(whole)
    expected = 3.0 if how in ("sequence_sum", "constant") else 2.0
    if how != "token_mean":
        assert sum(loss.count_episodes(e) for e in got) == expected


def row_of(sampled: Sequence[int], ends: Sequence[int], rewards: Sequence[float]) -> Trajectory:
    return Trajectory(
        ids=torch.arange(len(sampled)).numpy(),
        sampled=torch.tensor(sampled).bool().numpy(),
        log_probs=torch.zeros(len(sampled)).numpy(),
        turn_ends=tuple(ends),
        turn_rewards=tuple(rewards),
        terminated=True,
        success=True,
        seed=0,
    )


REASONING, ANSWERS = [0, 1, 2, 5, 6], [3, 7, 8]  # columns, one less than the tokens'


@pytest.mark.parametrize(
    ("loss", "estimated", "policy", "critic"),
    [
        ("answer", "all", ANSWERS, ANSWERS),
        ("all", "reasoning", sorted(REASONING + ANSWERS), REASONING),
        ("answer", "answer", ANSWERS, ANSWERS),
    ],
)
def test_selective_masks_narrow_the_loss_and_the_recursion(
    loss: str, estimated: str, policy: list[int], critic: list[int]
) -> None:
    words = ["P", "<think>", "a", "</think>", "Up", "O", "<think>", "</think>", "Left", "Down"]
    row = row_of([0, 1, 1, 1, 1, 0, 1, 1, 1, 1], (4, 9), (0.25, 1.0))
    made = maker({"algo": "ppo", "loss_tokens": loss, "advantage_tokens": estimated})
    note = advantage_inputs(row, 0.0, made.run.config.training, lambda token: words[token])
    (got,) = made.compute_advantages_and_returns([experience([row], [note])])
    advantages = {"all": REASONING + ANSWERS, "reasoning": REASONING, "answer": ANSWERS}[estimated]
    assert got.action_mask[0].nonzero().flatten().tolist() == policy
    assert got.advantages[0].nonzero().flatten().tolist() == sorted(advantages)
    narrow_to_returns(got)  # as the critic's process does
    assert got.action_mask[0].nonzero().flatten().tolist() == critic
    assert bool(got.returns.isfinite().all())


def test_turns_are_whitened_as_one_number_each_in_all_batches() -> None:
    """Advantages 1 and 0 of turns of 4 tokens and of 1, in batches of their own."""
    rows = [row_of([0, 1, 1, 1, 1], [4], [1.0]), row_of([0, 1], [1], [0.0])]
    made = maker({"algo": "ppo", "credit": "turn"})
    batches = [experience([row], [advantage_inputs(row, 0.0, made.run.config.training, str)]) for row in rows]
    for batch in batches:
        batch.values = torch.zeros_like(batch.values)
    got = made.compute_advantages_and_returns(batches)
    torch.testing.assert_close(got[0].advantages, torch.full((1, 4), 0.5**0.5))
    torch.testing.assert_close(got[1].advantages, torch.full((1, 1), -(0.5**0.5)))


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
