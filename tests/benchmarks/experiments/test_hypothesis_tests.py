"""Intervals, verdicts and their reasons, and collapses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.experiments.collapse import (
    collapse_sentence,
    collapse_start,
    not_excluded,
    outcome,
    without_copies,
)
from benchmarks.experiments.hypothesis_tests import (
    BY_CHANCE,
    TOO_LARGE,
    UNLEARNED,
    Finding,
    adjust,
    answer,
    compare,
    format_difference,
    format_measure,
    is_decided,
    stopped_early,
    verdict,
)
from benchmarks.experiments.overview import markdown_overview
from benchmarks.experiments.pages import starts_below_random
from benchmarks.experiments.spec import Comparison, end_row, measure, read, window_means
from ragen_agent.config import Config, with_settings
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.stats import Estimate, mean_interval


def run(
    after: float | None = None,
    success: Sequence[float] = (),
    iterations: int = 1,
    before: Sequence[float] = (),
    start: float = 0.0,
    **more: Sequence[float],
) -> RecordedRun:
    """A run with these figures in its iterations; the others are those of a healthy run.

    ``before`` are the evaluations before the last one, backwards; ``start`` is success before reinforcement.
    """
    rows: list[dict[str, Any]] = []
    for place, rate in enumerate(success):
        row: dict[str, Any] = {
            "iteration": place,
            "success": rate,
            "return": rate,
            "return_std": 0.4,
            "entropy": 0.5,
            "grad_norm": 1.0,
            "invalid_rate": 0.0,
            "repeated_rate": 0.1,
            "reply_tokens": 12.0,
            "effective_rate": 0.9,
        }
        rows.append(row | {name: values[place] for name, values in more.items()})
    summary: dict[str, Any] = (
        {} if after is None else {"after": {"rate": after}, "random": {"rate": 0.1}, "optimal": {"rate": 0.9}}
    )
    summary |= {"before": {"rate": start}, "blind": {"rate": 0.6}}
    summary |= {end_row(place): {"rate": rate} for place, rate in enumerate(before, 1)}
    config = with_settings(Config(), {"training": {"iterations": max(iterations, len(rows))}})
    return RecordedRun("run", RunFolder(Path()), config, summary, rows)


def with_start(played: RecordedRun, start: float) -> RecordedRun:
    return replace(played, summary={**played.summary, "before": {"rate": start}})


@given(st.lists(st.integers(0, 1000).map(lambda thousandths: thousandths / 1000), min_size=2, max_size=9))
def test_the_interval_is_that_of_students_t(values: list[float]) -> None:
    found = mean_interval(values)
    if found.low == found.high:  # scipy divides by zero here
        assert len(set(values)) == 1 or math.isclose(min(values), max(values))
        assert not found.significant
        return
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.significant == (low > 0 or high < 0)


@pytest.mark.parametrize(
    ("found", "claim", "expected"),
    [
        (None, "higher", "missing"),
        (Estimate(0.1, -0.1, 0.3, 3), "higher", "open"),
        (Estimate(0.1, -0.1, 0.3, 3), "equal", "open"),
        (Estimate(0.01, -0.02, 0.04, 3), "equal", "supported"),
        (Estimate(0.03, 0.02, 0.04, 3), "equal", "supported"),
        (Estimate(0.03, 0.02, 0.06, 3), "equal", "open"),
        (Estimate(0.07, 0.05, 0.09, 3), "equal", "contradicted"),
        (Estimate(-0.07, -0.09, -0.04, 3), "equal", "open"),
        (Estimate(0.01, -0.02, 0.04, 3), "higher", "equivalent"),
        (Estimate(0.01, -0.02, 0.04, 3), "", "equivalent"),
        (Estimate(0.01, -0.02, 0.05, 3), "higher", "open"),
        (Estimate(0.03, 0.02, 0.04, 3), "higher", "supported"),
        (Estimate(0.2, 0.1, 0.3, 3), "higher", "supported"),
        (Estimate(0.2, 0.1, 0.3, 3), "lower", "contradicted"),
        (Estimate(-0.2, -0.3, -0.1, 3), "lower", "supported"),
        (Estimate(-0.2, -0.3, -0.1, 3), "equal", "contradicted"),
        (Estimate(0.2, 0.1, 0.3, 3), "", "seen"),
        (Estimate(0.2, 0.2, 0.2, 3), "", "open"),
        (Estimate(0.2, 0.2, 0.2, 3), "higher", "open"),
        (Estimate(0.2, 0.2 - 1e-16, 0.2 + 1e-16, 3), "higher", "open"),
    ],
)
def test_verdicts(found: Estimate | None, claim: str, expected: str) -> None:
    assert verdict(found, claim, 0.05) == expected


def test_looking_again_and_again_errs_no_more_often() -> None:
    """Of arms that do not differ some 5 % would be called different if each look were at 95 %; here fewer."""
    rng, looks = np.random.default_rng(0), (3, 6, 12, 24)
    found = {"looks": 0, "as often": 0}
    for _ in range(400):
        values = rng.normal(0, 0.2, looks[-1])
        runs = {"new": {seed: run(float(value)) for seed, value in enumerate(values)}}
        comparison = Comparison("new", "after", "More than nothing?", claim="higher", looks=looks, margin=0.0)
        found["looks"] += is_decided(compare(runs, comparison))
        found["as often"] += any(mean_interval(values[:look].tolist()).significant for look in looks)
    assert found["looks"] / 400 < 0.05, found
    assert found["as often"] / 400 > 0.07, found


def test_a_claim_is_decided_by_the_last_look_that_is_complete() -> None:
    looks = (2, 4)
    claim = Comparison("new", "after", "Better?", "old", "higher", looks=looks)
    old = {seed: run(0.5) for seed in range(4)}
    few = compare({"new": {0: run(0.7)}, "old": old}, claim)
    assert (few.verdict, is_decided(few)) == ("open", False)
    assert few.decision == "one seed says nothing about other seeds"
    first = compare({"new": {0: run(0.7), 1: run(0.701)}, "old": old}, claim)
    assert (first.verdict, is_decided(first)) == ("supported", True)
    assert first.decision == "higher, as claimed"
    later = compare({"new": {0: run(0.7), 1: run(0.701), 2: run(0.1), 3: run(0.1)}, "old": old}, claim)
    assert later.verdict == "open", "later seeds disagree"
    third = compare({"new": {0: run(0.7), 1: run(0.1), 2: run(0.1)}, "old": old}, claim)
    assert third.interval is not None
    assert third.interval.n == 2, "seeds between two looks do not count yet"
    same = {seed: run(0.5 + offset) for seed, offset in enumerate((0.01, -0.01, 0.012, -0.008))}
    equal = compare({"new": same, "old": old}, claim)
    assert (equal.verdict, is_decided(equal)) == ("equivalent", True)
    assert equal.decision == "less than 5.0 points apart"
    everywhere = compare({"new": same, "old": old}, replace(claim, margin=0.0))
    assert not is_decided(everywhere)
    assert is_decided(compare({}, replace(claim, claim="")))


def test_differences_of_which_half_are_equal_decide_nothing() -> None:
    claim = Comparison("new", "end", "Better?", "old", "higher", looks=(8, 16), margin=0.05)
    old = {seed: run(0.0) for seed in range(8)}
    rare = compare({"new": {**old, 5: run(0.03)}, "old": old}, claim)
    assert rare.verdict == "open"
    assert "equal in half of the seeds or more, of which Student's interval says nothing" in rare.decision
    half = compare({"new": {**old, **{seed: run(0.001 * (seed + 1)) for seed in range(4)}}, "old": old}, claim)
    assert half.verdict == "open"
    assert half.interval is not None
    assert half.interval.high < claim.margin, "which would be equivalent"
    learned = {"new": {seed: run(0.3 + 0.001 * seed) for seed in range(8)}, "old": {seed: run(0.3) for seed in old}}
    varied = compare(learned, claim)
    assert varied.verdict == "supported"
    assert "higher, as claimed, by less than 5.0 points" in varied.decision


def test_a_look_waits_for_the_seeds_before_it() -> None:
    claim = Comparison("new", "end", "Better?", "old", "higher", looks=(4, 8), margin=0.05)
    old = {seed: run(0.1) for seed in range(6)}
    new = {seed: run(0.5 + 0.01 * seed) for seed in range(6)}
    assert compare({"new": new, "old": old}, claim).verdict == "supported"
    late = compare({"new": {seed: each for seed, each in new.items() if seed != 3}, "old": old}, claim)
    assert (late.verdict, late.decision) == ("open", "the first look is at 4 seeds")


def test_the_interval_of_a_difference_of_shares_ends_at_one_hundred_points() -> None:
    runs = {"new": {0: run(1.0), 1: run(0.2), 2: run(1.0)}, "old": {seed: run(0.0) for seed in range(3)}}
    found = compare(runs, Comparison("new", "after", "Better?", "old", "higher"))
    assert found.interval is not None
    assert found.interval.high == 1.0
    assert "to +100.0]" in format_difference(found)


def test_the_difference_that_would_be_missed_is_of_the_whole_interval() -> None:
    claim = Comparison("new", "after", "Better?", "old", "higher")
    old = {seed: run(0.5) for seed in range(3)}
    close = compare({"new": {0: run(0.5), 1: run(0.7), 2: run(0.9)}, "old": old}, claim)
    assert close.interval is not None
    half = 0.2 * stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert f"; a difference of {100 * half:.1f} points would be missed half the time" in close.decision
    cut = compare({"new": {0: run(0.9), 1: run(0.5), 2: run(1.0)}, "old": {**old, 1: run(0.7)}}, claim)
    assert cut.interval is not None
    half = np.std([0.4, -0.2, 0.5], ddof=1) * stats.t.ppf(0.975, 2) / math.sqrt(3)
    assert 1 - np.mean([0.4, -0.2, 0.5]) < half < 1, "the interval is cut at 100 points"
    assert f"; a difference of {100 * half:.1f} points would be missed half the time" in cut.decision
    wide = compare({"new": {0: run(0.0), 1: run(1.0), 2: run(0.9)}, "old": old}, claim)
    assert "; even the largest difference would be missed half the time or more" in wide.decision


def test_before_the_first_look_nothing_is_said() -> None:
    runs = {"new": {seed: run(0.9) for seed in range(3)}, "old": {seed: run(0.1 * seed) for seed in range(3)}}
    claim = Comparison("new", "end", "Better?", "old", "higher", looks=(8, 16))
    early = compare(runs, claim)
    assert (early.verdict, is_decided(early)) == ("open", False)
    assert early.decision == "the first look is at 8 seeds"
    experiment = replace(read("thinking"), comparisons=(claim,))
    page = markdown_overview([experiment], {"thinking": [early]}, {"thinking": [*runs["new"].values()]})
    assert "**0 of 1 claims are decided**: 0 supported, 0 contradicted, 0 equivalent, 0 close to 0, 0 without" in page
    assert " 0 without learning, 1 open, 0 missing." in page
    assert (
        "| new \N{MINUS SIGN} old | higher | +80.0 | 3 | \N{EN DASH} | **open**: the first look is at 8 seeds |" in page
    )
    assert experiment.title not in markdown_overview([experiment], {"thinking": [early]}, {"thinking": []})


def test_arms_are_compared_seed_by_seed() -> None:
    runs = {
        "new": {0: run(0.5), 1: run(0.71), 2: run(0.59), 3: run(0.9)},
        "old": {0: run(0.3), 1: run(0.5), 2: run(0.41)},
    }
    finding = compare(runs, Comparison("new", "after", "Better?", "old", "higher"))
    assert finding.differences == pytest.approx({0: 0.2, 1: 0.21, 2: 0.18})
    assert finding.verdict == "supported"
    assert finding.decision == "higher, as claimed"
    alone = compare(runs, Comparison("new", "after", "More than nothing?"))
    assert alone.verdict == "seen"
    nothing = compare(runs, Comparison("new", "after", "Against nobody?", "absent", "higher"))
    assert (nothing.verdict, nothing.decision) == ("missing", "no seed has both")
    assert answer([finding, alone, nothing]) == (
        "Of 2 claims 1 is supported and 1 missing: the arms differ by new \N{MINUS SIGN} old, after +19.7 [+15.9 to "
        "+23.5]. Seen where nothing was claimed: new \N{MINUS SIGN} 0, after +67.5 [+40.0 to +95.0]."
    )
    assert answer([nothing]) == "Of 1 claims 1 is missing: no difference is established."
    assert answer([alone]).startswith("Nothing is claimed. Seen where")


def test_arms_that_did_not_learn_are_not_called_equal() -> None:
    """A difference of a point says nothing where neither arm left its start by more than the margin of five."""
    ends = {"new": (0.31, 0.30, 0.305, 0.30), "old": (0.30, 0.302, 0.30, 0.296)}
    runs: dict[str, dict[int, RecordedRun]] = {}
    for start, expected in ((0.28, "open"), (0.25, "equivalent")):
        runs = {arm: {seed: run(end, start=start) for seed, end in enumerate(row)} for arm, row in ends.items()}
        found = compare(runs, Comparison("new", "end", "Better?", "old", "higher"))
        assert found.verdict == expected
        assert ("neither arm learned" in found.reason) == (expected == "open")
        same = compare(runs, Comparison("new", "end", "As high?", "old", "equal"))
        assert same.verdict == ("open" if expected == "open" else "supported")
    lifted = {"new": runs["new"], "old": {seed: with_start(each, 0.29) for seed, each in runs["old"].items()}}
    assert compare(lifted, Comparison("new", "end", "Better?", "old", "higher")).verdict == "equivalent", "one learned"


def test_a_difference_that_the_correction_does_not_keep_is_open() -> None:
    """Alone it is significant; as one of eleven tests, of which ten show nothing, it is not."""
    old = {seed: run(0.5) for seed in range(4)}
    new = {seed: run(0.5 + gain) for seed, gain in enumerate((0.05, 0.1, 0.15, 0.2))}
    found = compare({"new": new, "old": old}, Comparison("new", "end", "Better?", "old", "higher"))
    assert found.p is not None
    assert found.p == pytest.approx(stats.ttest_1samp([0.05, 0.1, 0.15, 0.2], 0).pvalue)
    assert 0.005 < found.p < 0.05
    [alone] = adjust({"mine": [found]})["mine"]
    assert (alone.verdict, alone.adjusted) == ("supported", found.p)
    [of_many] = adjust({"mine": [found]}, [1.0] * 10)["mine"]
    assert of_many.verdict == "open"
    assert of_many.adjusted == pytest.approx(11 * found.p)
    assert of_many.reason == "higher, as claimed; not significant after the correction for 11 tests"
    both = adjust({"mine": [found], "other": [found]})
    assert both["mine"] == both["other"]
    assert both["mine"][0].adjusted == alone.adjusted, "all tables are corrected together"


def test_a_measure_of_success_has_its_own_gain() -> None:
    """Arms that end 40 points above their start, but are 2 above it early: nothing follows of learning early."""
    for early, expected in ((0.32, "open"), (0.4, "equivalent")):
        runs = {
            arm: {
                seed: run(0.7, [early] * 9 + [early + each] + [early] * 5, start=0.3) for seed, each in enumerate(noise)
            }
            for arm, noise in (("new", (0.01, -0.02, 0.03, -0.04)), ("old", (0.0,) * 4))
        }
        found = compare(runs, Comparison("new", "early", "Faster?", "old", "higher"))
        assert found.verdict == expected, found.decision
        assert ("neither arm learned (early)" in found.reason) == (expected == "open")


def test_an_intervention_that_does_less_in_one_world_than_in_another() -> None:
    ends = {"ice, new": (0.5, 0.52, 0.5), "ice": (0.5, 0.5, 0.53), "new": (0.8, 0.83, 0.79), "old": (0.6, 0.6, 0.6)}
    runs = {arm: {seed: run(end) for seed, end in enumerate(row)} for arm, row in ends.items()}
    claim = Comparison("ice, new", "end", "Less?", "ice", "lower", beside=("new", "old"))
    found = compare(runs, claim)
    assert found.differences == pytest.approx({0: -0.2, 1: -0.21, 2: -0.22})
    assert found.verdict == "supported"
    assert answer([found]).startswith(
        "Of 1 claims 1 is supported: the arms differ by (ice, new \N{MINUS SIGN} ice) \N{MINUS SIGN} "
        "(new \N{MINUS SIGN} old) "
    )
    three = {arm: row for arm, row in runs.items() if arm != "old"}
    assert compare(three, claim).verdict == "missing"


def test_an_early_measure_that_foretells_the_end_over_the_arms_of_a_seed() -> None:
    """Worlds differ in both measures: only differences within a world count."""

    def world(rate: float, ends: Sequence[float], early: Sequence[float]) -> list[RecordedRun]:
        config = with_settings(Config(), {"game": "FrozenLake", "env_options": {"success_rate": rate}})
        config = replace(config, training=replace(config.training, iterations=15))
        return [
            replace(run(end, [0.3] * 15, mutual_information=[value] * 15), config=config)
            for end, value in zip(ends, early, strict=True)
        ]

    claim = Comparison("", "end", "Foretold?", claim="higher", foretold_by="information_early")
    runs: dict[str, dict[int, RecordedRun]] = {}
    for seed in range(4):
        early = [0.5, 0.5 + 0.1 * (seed % 2), 0.7, 3.1, 3.0 + 0.1 * (seed > 1), 3.3]
        arms = world(1.0, (0.2, 0.3, 0.4), early[:3]) + world(0.8, (0.1, 0.2, 0.3), early[3:])
        for place, each in enumerate(arms):
            runs.setdefault(f"arm {place}", {})[seed] = each
    found = compare(runs, claim)
    x, y = np.array([[0.5, 0.5, 0.7, 3.1, 3.0, 3.3], [0.2, 0.3, 0.4, 0.1, 0.2, 0.3]]).reshape(2, 2, 3)
    centred = [(each - each.mean(axis=1, keepdims=True)).ravel() for each in (x, y)]
    assert found.differences[0] == pytest.approx(stats.pearsonr(*centred).statistic)
    assert found.verdict == "supported"
    assert format_difference(found).startswith("+0.")
    assert found.comparison.compared == "end by information_early, over arms"
    later = {**runs, "late": {0: runs["arm 0"][0]}}
    assert list(compare(later, claim).differences) == [0], "seeds that all arms have"
    assert compare(later, replace(claim, without=("late",))).differences == found.differences
    silent = {arm: {seed: replace(each, metrics=[]) for seed, each in row.items()} for arm, row in runs.items()}
    assert compare(silent, claim).verdict == "missing"


def test_a_difference_of_arms_that_did_not_learn_is_counted_apart() -> None:
    """Random play succeeds in 10 %: arms that end at 2 and 7 % from 6 %, as in the Echo Trap's table."""
    claim = Comparison("new", "end", "Better?", "old", "higher")
    jitter = (0.0, 0.004, -0.003, 0.002)

    def found(new: float, old: float, start: float) -> Finding:
        arms = {"new": new, "old": old}
        runs = {
            arm: {seed: run(end + each, start=start) for seed, each in enumerate(jitter if arm == "new" else [0.0] * 4)}
            for arm, end in arms.items()
        }
        return compare(runs, claim)

    apart = found(0.066, 0.017, 0.06)
    assert (apart.verdict, apart.directional, is_decided(apart)) == (UNLEARNED, True, True), "no more seeds are needed"
    assert apart.reason == "higher, but neither arm learned: this says nothing of arms that learn"
    assert answer([apart]) == "Of 1 claims 1 is without learning: no difference is established."
    assert found(0.09, 0.017, 0.0).verdict == UNLEARNED, "a gain of 9 points that ends below random play"
    assert found(0.2, 0.12, 0.18).verdict == UNLEARNED, "above random play, but hardly above the start"
    assert found(0.2, 0.017, 0.06).verdict == "supported", "one arm learned"
    page = markdown_overview(
        [replace(read("thinking"), comparisons=(claim,))], adjust({"thinking": [apart]}), {"thinking": [run(0.1)]}
    )
    assert "**0 of 1 claims are decided**" in page
    assert "1 without learning" in page
    assert "In 0 comparisons the arms differ." in page


def test_one_arm_compared_with_0_is_close_to_it_and_not_equivalent() -> None:
    lengths = ([20.0] * 5 + [20.0 + change] * 5 for change in (0.1, -0.1, 0.2, 0.0))
    thoughts = {seed: run(0.5, [0.5] * 10, reasoning_tokens=row) for seed, row in enumerate(lengths)}
    claim = Comparison("thoughts", "reasoning_change", "Do they shrink?", claim="lower")
    found = compare({"thoughts": thoughts}, claim)
    assert (found.verdict, found.reason) == ("close to 0", "less than 5.0 points from 0")
    page = markdown_overview(
        [replace(read("thinking"), comparisons=(claim,))],
        adjust({"thinking": [found]}),
        {"thinking": [*thoughts.values()]},
    )
    assert "**1 of 1 claims are decided**: 0 supported, 0 contradicted, 0 equivalent, 1 close to 0" in page
    assert "In 0 comparisons the arms are equivalent." in page


def test_the_overview_names_the_tests_of_the_correction() -> None:
    """The example of Benjamini and Hochberg (1995, section 4.1), which keep four tests of fifteen.

    Benjamini and Yekutieli multiply p by 1 + 1/2 + ... + 1/15 = 3.318 as well, so 0.0095 * 15/4 = 0.036 becomes 0.118.
    """
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528]
    claim = Comparison("new", "end", "Better?", "old", "higher")
    found = Finding(claim, {}, Estimate(0.2, 0.1, 0.3, 4), "supported", "higher, as claimed")
    rows = adjust({"thinking": [replace(found, p=p) for p in p_values]}, [0.759, 1.0])["thinking"]
    assert [each.directional for each in rows] == [True] * 4 + [False] * 9
    assert [each.adjusted for each in rows[:4]] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625])
    assert rows[3].adjusted_by == pytest.approx(0.035625 * sum(1 / k for k in range(1, 16)))
    page = markdown_overview([read("thinking")], {"thinking": rows}, {"thinking": [run(0.5)]}, dropped=2)
    assert "over 15 tests of no difference: 13 comparisons of these\ntables, and 2 that were [dropped]" in page
    assert "(Benjamini and Yekutieli) 3 of the 4 differences remain." in page


def test_a_difference_found_before_the_last_look_is_too_large_on_average() -> None:
    """A true difference of 3 points with a std of 5: the rule finds it first where the seeds were lucky."""
    rng, claim = np.random.default_rng(1), Comparison("new", "after", "Better?", looks=(4, 32))
    first: list[float] = []
    for _ in range(300):
        runs = {"new": {seed: run(float(value)) for seed, value in enumerate(rng.normal(0.03, 0.05, 4))}}
        found = compare(runs, claim)
        if found.directional and found.before_last_look and found.interval is not None and found.interval.value > 0:
            first.append(found.interval.value)
            [marked] = adjust({"t": [found]})["t"]
            assert marked.reason.endswith(TOO_LARGE)
    assert 3 < len(first) < 100
    assert np.mean(first) > 1.5 * 0.03
    later = compare({"new": {seed: run(0.03 + 0.05 * (-1) ** seed + 0.001 * seed) for seed in range(32)}}, claim)
    assert (later.directional, later.before_last_look) == (True, False)


@pytest.mark.parametrize(("seeds", "early"), [(8, True), (16, True), (32, False)])
def test_what_is_decided_before_the_last_look_says_so(seeds: int, early: bool) -> None:
    claim = Comparison("new", "end", "Better?", "old", "higher", looks=(8, 16, 32))
    higher = Finding(claim, {}, Estimate(0.2, 0.1, 0.3, seeds), "supported", "higher", p=0.001)
    equal = Finding(claim, {}, Estimate(0.0, -0.01, 0.01, seeds), "equivalent", "apart", p=1.0)
    as_claimed = replace(equal, comparison=replace(claim, claim="equal"), verdict="supported")
    undecided = replace(equal, verdict="open")
    found = [each.reason for each in adjust({"t": [higher, equal, as_claimed, undecided]})["t"]]
    assert found == (
        [f"higher; {TOO_LARGE}", f"apart; {BY_CHANCE}", f"apart; {BY_CHANCE}", "apart"]
        if early
        else ["higher", "apart", "apart", "apart"]
    )


def test_the_tokens_are_named_where_one_arm_trains_on_far_fewer() -> None:
    def arm(end: float, tokens: float) -> dict[int, RecordedRun]:
        return {seed: run(end + 0.01 * seed * end, [end], train_tokens=[tokens]) for seed in range(3)}

    claim = Comparison("few", "end", "Better?", "all", "higher")
    found = compare({"few": arm(0.3, 210.0), "all": arm(0.7, 1000.0)}, claim)
    assert found.decision == "lower, where higher was claimed; trained on 0.21 times as many tokens"
    assert "tokens" not in compare({"few": arm(0.3, 600.0), "all": arm(0.7, 1000.0)}, claim).decision


def test_it_is_said_where_arms_start_below_random_play() -> None:
    low, even = ({seed: run(0.5, start=at + 0.01 * seed) for seed in range(3)} for at in (0.05, 0.085))
    said = (
        "1 of 2 arms start surely below random play, so part of their gain may be learning the format of replies: low."
    )
    assert starts_below_random({"low": low, "even": even}) == [said, ""], "random play is 10 %"
    assert starts_below_random({"even": even}) == []


def test_open_claims_with_fewer_seeds_than_planned_are_counted() -> None:
    claim = Comparison("new", "end", "Better?", "old", "higher", looks=(2, 4))
    noisy = {seed: run(0.5 + 0.2 * (-1) ** seed) for seed in range(4)}
    old = {seed: run(0.5) for seed in range(4)}
    whole, half = (compare({"new": dict([*noisy.items()][:n]), "old": old}, claim) for n in (4, 2))
    assert stopped_early([whole, half, half]) == (
        "Looks were planned at 2 and 4 seeds; 2 of 3 open claims have fewer seeds than planned."
    )
    assert stopped_early([compare({"new": noisy}, replace(claim, second="", looks=()))]) == ""


def test_spreads_over_seeds_are_compared_by_the_distances_from_the_median() -> None:
    wide = {seed: run(0.5 + each) for seed, each in enumerate((-0.3, -0.2, 0.25, 0.3, -0.25, 0.2))}
    narrow = {seed: run(0.5 + each / 10) for seed, each in enumerate((-0.2, 0.3, 0.25, -0.3, 0.2, -0.25))}
    runs = {"new": narrow, "old": wide}
    assert compare(runs, Comparison("new", "end", "Higher?", "old")).verdict == "open"
    found = compare(runs, Comparison("new", "end", "Do they differ less?", "old", spread=True))
    assert (found.verdict, found.interval is not None and found.interval.value < 0) == ("seen", True)
    assert found.differences == pytest.approx({0: -0.28, 1: -0.17, 2: -0.225, 3: -0.27, 4: -0.23, 5: -0.175})


def test_no_collapse_says_little_of_few_runs() -> None:
    assert not_excluded(0, 16) == pytest.approx(0.171, abs=5e-4)
    assert not_excluded(0, 59) < 0.05 < not_excluded(0, 58), "the rule of three"
    assert not_excluded(1, 16) == pytest.approx(stats.binomtest(1, 16, alternative="less").proportion_ci(0.95).high)
    assert not_excluded(3, 3) == 1
    flat, rising = run(0.15, [0.15] * 20, start=0.1), run(0.5, [0.1 + 0.02 * step for step in range(20)], start=0.1)
    assert "too short and too small to show" in collapse_sentence([flat] * 16)
    said = "Of 16 runs that rise 20 points above their start 0 collapse, 0 in an Echo Trap: the runs are too short and"
    assert collapse_sentence([rising] * 16 + [flat]) == f"{said} too small to say that there is none."
    fallen = run(0.0, [0.13, *[0.0] * 12])
    said += " too small to say that there is none. Of 3 runs that do not, 2 collapse, 0 of them after all three signs."
    assert collapse_sentence([rising] * 16 + [flat, fallen, fallen]) == said
    short = run(0.5, [0.1 + 0.1 * step for step in range(6)], start=0.1)
    said += " Runs too short for a collapse: 1."
    assert collapse_sentence([rising] * 16 + [flat, fallen, fallen, short]) == said


def test_figures_are_printed_in_their_units() -> None:
    assert format_measure(0.531, "after") == "53.1 %"
    assert format_measure(-0.2, "after", signed=True) == "\N{MINUS SIGN}20.0"
    assert format_measure(-0.0001, "after", signed=True) == "\N{MINUS SIGN}0.01"
    assert format_measure(-0.000001, "after", signed=True) == "+0.00"
    assert format_measure(0.0, "after", signed=True) == "+0.0"
    assert format_measure(12345.0, "trained_tokens") == "12,345"


def test_measures_of_a_run() -> None:
    played = run(0.5, [0.0] * 5 + [0.5] * 10 + [0.25] * 5)
    assert measure(played, "early") == pytest.approx(0.5)
    assert (measure(played, "peak"), measure(played, "final"), measure(played, "drop")) == (0.5, 0.25, 0.25)
    assert measure(played, "normalised") == pytest.approx(0.5)
    assert measure(run(), "after") is measure(run(), "peak") is None
    assert window_means(run(0.5, [0.2, 0.4]), "success") == pytest.approx([0.3])


def test_the_end_is_the_mean_of_the_last_evaluations() -> None:
    assert measure(run(0.5, before=(0.6, 0.7)), "end") == pytest.approx(0.6)
    assert measure(run(0.5), "end") == 0.5
    assert measure(run(before=(0.6,)), "end") is None, "it is not over"
    assert measure(run(0.5, before=(0.7,)), "normalised") == pytest.approx((0.6 - 0.1) / 0.8)


def test_a_collapse_is_a_fall_below_half_that_lasts() -> None:
    up = [0.1 * step for step in range(8)]
    assert collapse_start(run(0.0, [*up, *[0.0] * 12])) is not None
    assert collapse_start(run(0.6, [*up, *[0.0] * 8, *[0.7] * 10])) is None, "it came back"
    assert collapse_start(run(0.5, [*up, *[0.5] * 10])) is None
    assert collapse_start(run(0.0, [0.04, *[0.0] * 20])) is None, "there was nothing to fall from"
    assert collapse_start(run(0.5, [*up, *[0.1] * 12])) is None, "the measured policy does not know of it"
    assert collapse_start(run(0.0, [*up, *[0.7] * 12, *[0.0] * 6])) is None, "a last few bad iterations say little"
    assert collapse_start(run(0.0, [0.13, *[0.0] * 12])) == 1, "the first iteration is what it fell from"
    assert collapse_start(run(0.0, [*[0.6] * 20, *[0.0] * 20])) == 20, "it begins with the first low iteration"
    dead = [*[0.5] * 20, *[0.0] * 3]
    assert collapse_start(run(0.0, dead)) is None
    assert collapse_start(run(0.0, dead, iterations=60)) == 20, "a run that stopped itself stands still from then on"


def test_kinds_of_collapse_start() -> None:
    fall = [0.6] * 20 + [0.0] * 20
    assert outcome(run(0.6, [0.6] * 40)) == "no collapse"
    assert outcome(run(0.0, fall, invalid_rate=[0.0] * 20 + [1.0] * 20)) == "format collapse"
    assert outcome(run(0.0, fall)) == "other collapse"
    assert outcome(run(0.0, [0.13, *[0.0] * 12])) == "collapse at once"
    assert outcome(run(0.0, [0.01] * 20)) == "never learned"
    trap = run(
        0.0,
        fall,
        return_std=[0.4] * 15 + [0.0] * 25,
        entropy=[0.5] * 15 + [0.01] * 25,
        grad_norm=[1.0] * 17 + [30.0] * 3 + [1.0] * 20,
    )
    assert outcome(trap) == "Echo Trap"


def test_what_several_experiments_share_is_counted_once() -> None:
    long, other = run(0.5, [0.1, 0.3, 0.5], return_std=[0.3, 0.2, 0.1]), run(0.5, [0.1, 0.3, 0.4])
    beginning = run(0.3, [0.1, 0.3], return_std=[0.3, 0.2])
    assert without_copies([beginning, long, other, replace(long, name="again")]) == [long, other]


def test_a_run_that_stopped_itself_stands_still() -> None:
    dead = run(0.0, [0.5, 0.5, 0.5, 0.0], iterations=20)
    assert (measure(dead, "final"), measure(dead, "lost"), measure(dead, "early")) == (0.0, 1.0, 0.0)
    assert measure(run(0.5, [0.5] * 12), "early") is None, "it was never to have fifteen iterations"
