"""Answers and verdicts on returns whose right answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ragen_agent.learnable.answers import BLIND, GAP, SIGNAL, Answer, Measured, answers, verdict
from ragen_gym.core.stats import mean_interval

LEVELS, REPEATS = 64, 4
HALF = np.random.default_rng(0).integers(2, size=(LEVELS, REPEATS)).astype(float)
ALL, NONE = np.ones((LEVELS, REPEATS)), np.zeros((LEVELS, REPEATS))


def measured(**returns: np.ndarray) -> Measured:
    found = {"start": HALF, "trained": ALL, "shuffled": HALF, "blind": HALF} | returns
    return Measured(found, {}, random=[0.0, 1.0], oracle=[], least=0.0, best=1.0, first_messages=9)


def by_question(found: Measured) -> dict[str, Answer]:
    return {each.question: each for each in answers(found)}


def test_a_gain_that_shuffled_rewards_do_not_give_is_a_signal() -> None:
    signal = by_question(measured())[SIGNAL]
    assert signal.answer == "yes"
    assert signal.value == pytest.approx(1 - HALF.mean())
    assert signal.n == LEVELS * REPEATS
    assert by_question(measured(shuffled=ALL))[SIGNAL].answer == "no"
    assert by_question(measured(trained=HALF))[SIGNAL].answer == "no"
    assert by_question(measured(trained=NONE))[SIGNAL].answer == "no"


def test_the_verdicts() -> None:
    assert verdict(answers(measured())) == "teaches"
    assert verdict(answers(measured(blind=ALL))) == "pays without reading"
    assert verdict(answers(measured(trained=HALF))) == "no signal"
    solved = dict.fromkeys(("start", "trained"), HALF)
    assert verdict(answers(replace(measured(), successes=solved))) == "pays without solving"
    assert verdict(answers(replace(measured(), successes=solved | {"trained": ALL}))) == "teaches"


def test_what_was_cut_leaves_no_verdict_where_it_decides() -> None:
    cut, solved = replace(measured(), cut=True), dict.fromkeys(("start", "trained"), HALF)
    assert verdict(answers(cut)) == "teaches"
    for equal in ({"trained": HALF}, {"shuffled": ALL}):
        assert verdict(answers(replace(measured(**equal), cut=True))) == "not applicable"
    for missing, hacked in (("shuffled", "not applicable"), ("blind", "pays without solving")):
        found = measured()
        del found.returns[missing]
        assert verdict(answers(found)) == "not applicable"
        assert verdict(answers(replace(found, successes=solved))) == hacked
    unshared = measured(shuffled=ALL)
    del unshared.returns["blind"]
    assert verdict(answers(unshared)) == "no signal"


def test_equal_returns_give_no_signal() -> None:
    same = replace(measured(**dict.fromkeys(("start", "trained", "shuffled", "blind"), ALL)), least=1.0)
    found = by_question(same)
    assert verdict(list(found.values())) == "no signal"
    assert found["reward reachable"].answer == "no"
    assert found["difficulty differs by level"].answer == "not applicable"


def test_failed_episodes_are_left_out() -> None:
    trained = ALL.copy()
    trained[0] = np.nan
    signal = by_question(measured(trained=trained))[SIGNAL]
    assert signal.n == (LEVELS - 1) * REPEATS
    assert signal.value == pytest.approx(1 - HALF[1:].mean())


def test_difficulty_is_the_share_of_the_variance_between_levels() -> None:
    # A known case: half of the levels are always won, half never, but for one episode.
    start = np.repeat([[1.0], [0.0]], LEVELS // 2, axis=0) * np.ones(REPEATS)
    start[0, 0] = 0.0
    apart = by_question(measured(start=start))["difficulty differs by level"]
    assert apart.answer == "yes"
    assert apart.value is not None
    assert apart.value > 0.95
    alike = by_question(measured())["difficulty differs by level"]
    assert alike.answer == "no"
    assert alike.low is not None
    assert alike.high is not None
    assert alike.low < 0 < alike.high


def test_what_does_not_apply_says_why() -> None:
    found = by_question(replace(measured(), first_messages=1))
    assert found[BLIND].answer == found[GAP].answer == "not applicable"
    assert "same message" in found[BLIND].detail
    assert "does not tell success" in found[GAP].detail


def test_headroom_is_to_the_oracle_or_to_what_the_model_has_reached() -> None:
    random = [0.0, 1.0] * 32
    reached = replace(measured(), random=random)
    coin = replace(measured(trained=HALF), random=random)  # its best episode earns 1 too
    solved = replace(coin, oracle=[0.9] * 64)
    half = mean_interval(random).half_width
    for found, answer, value in ((reached, "yes", 0.5), (coin, "not applicable", None), (solved, "yes", 0.4)):
        headroom = by_question(found)["headroom"]
        assert headroom.answer == answer
        if value is not None:
            assert (headroom.value, headroom.low, headroom.high) == pytest.approx((value, value - half, value + half))
    assert by_question(replace(coin, oracle=random))["headroom"].answer == "no"
