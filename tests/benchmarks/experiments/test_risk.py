"""The exact drift against hand-made formulas and a simulation through the functions that training uses."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.experiments.plan import plan
from benchmarks.experiments.risk import (
    ESTIMATORS,
    GROUPS,
    KEEP,
    WORLDS,
    Choice,
    bandit,
    bernoulli,
    drift,
    gradients,
)
from benchmarks.experiments.risk_page import TWO_LAKES, break_even, direction, lakes, section
from benchmarks.experiments.spec import read
from ragen_agent import algo
from ragen_gym.games.registry import find
from tests.benchmarks.experiments.test_hypothesis_tests import run


@pytest.mark.parametrize("q", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("chance", [0.1, 0.25, 0.7])
def test_pairs_by_hand(q: float, chance: float) -> None:
    """In a pair GRPO's advantages are -+1 / sqrt(2), whatever the difference, so it counts which arm pays more often.

    Only pairs of one pull each count, of probability 2 q (1 - q): half of A_risky, which is 1 / sqrt(2) after a win.
    Dr. GRPO's are half the difference, RLOO's and the critic's in expectation the difference.
    """
    choice, even = bandit(chance), q * (1 - q)
    assert drift(choice, q, 2, "GRPO") == pytest.approx(even * (2 * chance - 1) / sqrt(2), abs=1e-5)
    assert drift(choice, q, 2, "Dr. GRPO") == pytest.approx(even * (chance - 0.15) / 2)
    assert drift(choice, q, 2, "RLOO") == pytest.approx(even * (chance - 0.15))


@pytest.mark.parametrize("size", [3, 8])
def test_without_division_the_drift_is_the_true_gradient_times_a_constant(size: int) -> None:
    """d/dtheta of the expected return is q (1 - q) (mean risky - mean safe)."""
    for choice in WORLDS.values():
        safe, risky = choice.means
        true = 0.3 * 0.7 * (risky - safe)
        assert drift(choice, 0.3, size, "critic") == pytest.approx(true, abs=1e-12)
        assert drift(choice, 0.3, size, "RLOO") == pytest.approx(true, abs=1e-12)
        assert drift(choice, 0.3, size, "Dr. GRPO") == pytest.approx(true * (size - 1) / size, abs=1e-12)


def test_outcomes_are_a_distribution() -> None:
    chances, _, std = gradients(bernoulli(0.6, 0.4), 0.3, 8, "GRPO")
    assert chances.sum() == pytest.approx(1)
    wins = 0.3 * 0.4 + 0.7 * 0.6
    assert chances[std == 0].sum() == pytest.approx(wins**8 + (1 - wins) ** 8)


def _simulated(choice: Choice, q: float, size: int, rule: str, filtered: bool, batches: int) -> tuple[float, float]:
    """Mean and standard error of the drift of sampled batches, by the advantages and the filter of training."""
    draw = np.random.default_rng(7)
    shape = (batches, GROUPS, size)
    risky = draw.random(shape) < q
    ways = [np.array(way) for way in (choice.safe, choice.risky)]
    safe_pay, risky_pay = (draw.choice(way[:, 0], size=shape, p=way[:, 1]) for way in ways)
    returns = torch.tensor(np.where(risky, risky_pay, safe_pay))
    score = torch.tensor(risky - q)
    found = []
    for batch, scores in zip(returns, score, strict=True):
        kept = algo.keep_groups(algo.group_std(batch), "top" if filtered else "none", KEEP)
        gradient = algo.normalised(batch, rule) * scores
        found.append(float(gradient[kept].mean()) if bool(kept.any()) else 0.0)
    return float(np.mean(found)), float(np.std(found) / sqrt(batches))


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO"])
@pytest.mark.parametrize(("world", "q"), [("better", 0.3), ("worse", 0.5), ("equal", 0.1)])
def test_sums_equal_a_simulation(world: str, q: float, name: str, filtered: bool) -> None:
    mean, error = _simulated(WORLDS[world], q, 8, ESTIMATORS[name], filtered, 2000)
    assert error < 0.01
    assert drift(WORLDS[world], q, 8, name, filtered=filtered) == pytest.approx(mean, abs=4.5 * error)


def test_a_small_batch_of_equal_groups_is_filtered_exactly() -> None:
    """Two groups, one kept: with pairs that differ or not, the kept one is any that differs."""
    choice, q = Choice(((0.0, 1.0),), ((1.0, 1.0),)), 0.3  # a pair differs with probability 2 q (1 - q)
    some = 1 - (1 - 2 * q * (1 - q)) ** 2
    assert drift(choice, q, 2, "Dr. GRPO", filtered=True, groups=2) == pytest.approx(some * 0.25)


def test_an_independent_simulation_agrees() -> None:
    """Of 200,000 groups, written apart from this module."""
    shares = (0.1, 0.3, 0.5, 0.7, 0.9)
    eight = [drift(WORLDS["better"], q, 8, "GRPO") for q in shares]
    assert eight == pytest.approx([-0.081, -0.099, -0.062, -0.031, -0.01], abs=0.001)
    sixteen = [drift(WORLDS["better"], q, 16, "GRPO") for q in shares]
    assert [value > 0 for value in sixteen] == [False, False, True, True, True]
    assert drift(WORLDS["worse"], 0.5, 8, "Dr. GRPO", filtered=True) > 0 > drift(WORLDS["worse"], 0.5, 8, "Dr. GRPO")


def test_directions_by_name() -> None:
    """Dr. GRPO has none where the arms pay the same; GRPO in groups of 8 points to the safe arm throughout."""
    assert direction(WORLDS["better"], 8, "GRPO", False) == [(0.05, "safe")]
    assert direction(WORLDS["better"], 8, "Dr. GRPO", False) == [(0.05, "risky")]
    assert direction(WORLDS["equal"], 8, "RLOO", False) == [(0.05, "none")]
    assert [way for _, way in direction(WORLDS["worse"], 8, "Dr. GRPO", True)] == ["safe", "risky"]


def test_in_pairs_grpo_moves_to_the_risky_arm_where_it_wins_more_often_than_not() -> None:
    assert break_even(2) in (0.5, 0.51)  # at a half the two are alike but for epsilon
    assert 0.15 < break_even(16) < break_even(8) < 0.5


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_returns_of_0_and_1_never_mislead(name: str, filtered: bool) -> None:
    for safe, risky in [(0.9, 0.2), (0.2, 0.9), (0.05, 0.1), (1.0, 0.99), (0.0, 0.01)]:
        for q in (0.05, 0.5, 0.95):
            assert drift(bernoulli(safe, risky), q, 5, name, filtered=filtered) * (risky - safe) > 0
    assert drift(bernoulli(0.4, 0.4), 0.3, 5, name, filtered=filtered) == pytest.approx(0, abs=1e-12)


def test_over_two_levels_the_division_can_turn_the_gradient() -> None:
    """Of the mean success, though on each level alone it is right."""
    assert sum(risky - safe for safe, risky in (lake.means for lake in TWO_LAKES)) < 0
    assert sum(drift(lake, 0.5, 16, "Dr. GRPO") for lake in TWO_LAKES) < 0
    assert sum(drift(lake, 0.5, 16, "GRPO") for lake in TWO_LAKES) > 0


def test_lakes_are_pairs_of_different_chances() -> None:
    pairs = [*lakes()]
    assert len(pairs) > 100
    assert all(0 <= a <= 1 and 0 <= b <= 1 and a != b for a, b in pairs)


@pytest.mark.slow
def test_the_computed_part_of_the_page(tmp_path: Path) -> None:
    start = {"GRPO": run(0.3, [0.3], start=0.5), "GRPO, top half": run(0.4, [0.4], start=0.5)}
    runs = {f"better, SmolLM2, {corner}": {0: each} for corner, each in start.items()}
    lines, pictures = section(tmp_path, runs)
    text = " ".join(lines)
    expected = drift(WORLDS["better"], 0.5, 8, "GRPO")
    assert f"| GRPO | all | {expected:+.3f} | 50.0 % | 30.0 % | 0.0 % | 10.0 % |" in text
    assert "differs between the 20 different levels" in text
    assert "GRPO on the top half ends above GRPO on all groups in 1 of 1 seeds (+10.0 points; p = 1)." in text
    assert "GRPO points to the safe arm at all 19 values of q from 0.05 to 0.95." in text
    assert "GRPO has 0 wrong signs" in text
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_the_trained_worlds_are_the_computed_ones(tmp_path: Path) -> None:
    """Their arms pay as the sums assume, but for the world "equal", where success must count one arm."""
    for planned in plan(read("risk"), tmp_path, 1):
        world, training = planned.arm.name.partition(",")[0], planned.config.training
        game = find(planned.config.game).game_class(**planned.config.env_options)
        low, high, chance, pulls, _ = game.params
        slack = 0.0011 if world == "equal" else 1e-12
        assert (low, high, pulls) == (0.15, 1.0, 1)
        assert bandit(chance).means[1] == pytest.approx(WORLDS[world].means[1], abs=slack)
        assert (training.groups, training.keep) == (GROUPS, KEEP)
        assert training.groups * training.group_size <= training.minibatch, "one step an iteration"
        assert (training.kl_estimate, training.entropy_bonus) == ("none", 0.0)
