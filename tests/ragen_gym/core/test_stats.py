"""Statistics against brute force, against simulation, and against scipy where it has the special case."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ragen_gym.core.stats import (
    Estimate,
    against_random,
    binomial_tail,
    clustered_mean,
    clustered_rate,
    effective_episodes,
    holm,
    paired_difference,
    pass_at,
    wilson,
)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_the_interval_of_scipy(drawn: tuple[int, int]) -> None:
    ours, theirs = wilson(*drawn), stats.binomtest(*drawn).proportion_ci(method="wilson")
    assert (ours.rate, ours.n) == (drawn[0] / drawn[1], drawn[1])
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30).filter(lambda x: float(np.std(x)) > 1e-3))
def test_the_mean_of_single_values_has_the_t_interval(values: list[float]) -> None:
    mean = clustered_mean(values, range(len(values)))
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((interval.low, interval.high))


def test_one_level_says_nothing_of_others() -> None:
    assert clustered_mean([1.0, 2.0], ["a", "a"]).to_dict("mean") == {"mean": 1.5, "low": None, "high": None, "n": 2}
    assert clustered_rate([1.0, 0.0], ["a", "a"], 2) == Estimate(0.5, 0.0, 1.0, 2)
    assert not paired_difference([1.0, 1.0], [0.0, 0.0], ["a", "a"]).significant


@given(st.integers(20, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_single_shares_have_the_exact_interval(drawn: tuple[int, int]) -> None:
    successes, n = drawn
    values = np.arange(n) < successes
    ours = clustered_rate(values.astype(float), range(n), n)
    exact = stats.binomtest(successes, n).proportion_ci(method="exact")
    assert (ours.low, ours.high) == pytest.approx((exact.low, exact.high), abs=0.5 / n)


@given(st.lists(st.booleans(), min_size=20, max_size=60), st.integers(2, 8))
def test_repeating_a_level_adds_nothing(values: list[bool], times: int) -> None:
    once = clustered_rate(np.array(values, float), range(len(values)), len(values))
    again = clustered_rate(
        np.repeat(np.array(values, float), times), np.repeat(range(len(values)), times).tolist(), times * len(values)
    )
    assert again.value == pytest.approx(once.value)
    assert again.low <= once.low + 0.02
    assert again.high >= once.high - 0.02
    assert again.high - again.low > (once.high - once.low) * 0.9


def test_nothing_solved_leaves_room() -> None:
    levels = [i // 4 for i in range(40)]
    none, everything = clustered_rate([0.0] * 40, levels, 40), clustered_rate([1.0] * 40, levels, 40)
    assert none.low == 0
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 10))
    assert everything.low == pytest.approx(0.025 ** (1 / 10))
    assert everything.high == 1


@pytest.mark.parametrize("sizes", [[64, 32, 16, 8, 4, 2, *[1] * 22], [60, *[1] * 60]])
def test_the_clustered_interval_covers_where_one_cluster_holds_half(sizes: list[int]) -> None:
    """An interval that counts clusters, whatever their sizes, misses one time of five here."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    held, means = 0, 0
    for _ in range(400):
        levels = rng.beta(0.5 * 0.25, 0.5 * 0.25, len(sizes))
        values = (rng.random(len(clusters)) < levels[clusters]).astype(float)
        interval, mean = (
            clustered_rate(values, clusters.tolist(), len(values)),
            clustered_mean(values, clusters.tolist()),
        )
        held += interval.low <= 0.5 <= interval.high
        means += mean.low <= 0.5 <= mean.high
    assert held / 400 > 0.95
    assert means / 400 > 0.88


@given(st.integers(1, 7), st.data())
def test_pass_at_k_counts_the_choices_of_k(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    choices = list(combinations([True] * c + [False] * (n - c), k))
    expected = sum(map(any, choices)) / len(choices)
    assert pass_at(np.array([c]), np.array([n]), k)[0] == pytest.approx(expected)


def test_pass_at_k_of_thousands_of_rollouts() -> None:
    """Where the numbers of choices are beyond floating point; certain ones are exact."""
    successes, rollouts = np.array([0, 1, 2999, 3000]), np.full(4, 3000)
    assert pass_at(successes, rollouts, 1500).tolist() == [0, pytest.approx(0.5), 1, 1]


def pairs(wins: int, losses: int, ties: int) -> tuple[np.ndarray, np.ndarray]:
    """One episode of two agents on each level, of which the first alone solves so many, and the second alone."""
    first, second = [1.0] * wins + [0.0] * losses, [0.0] * wins + [1.0] * losses
    return np.array(first + [1.0] * ties), np.array(second + [1.0] * ties)


def tango(wins: int, losses: int, n: int, difference: float) -> float:
    """Tango's score statistic (Statistics in Medicine 17, 1998, equation 7), its variance times n / (n - 1)."""
    half = (losses + wins - (2 * n - wins + losses) * difference) / (4 * n)
    lost = half + math.sqrt(half**2 + losses * difference * (1 - difference) / (2 * n))
    variance = n * (2 * lost + difference * (1 - difference)) * n / (n - 1)
    return (wins - losses - n * difference) / math.sqrt(variance)


@pytest.mark.parametrize(("wins", "losses", "ties"), [(1, 7, 13), (3, 0, 5), (8, 0, 0), (12, 5, 83), (2, 2, 4)])
def test_the_interval_of_pairs_is_that_of_tango(wins: int, losses: int, ties: int) -> None:
    n = wins + losses + ties
    found = paired_difference(*pairs(wins, losses, ties), list(range(n)))
    assert found.value == pytest.approx((wins - losses) / n)
    z = stats.norm.ppf(0.975)
    for end, sign in ((found.low, 1), (found.high, -1)):
        if abs(end) < 1:
            assert tango(wins, losses, n, end) == pytest.approx(sign * z, abs=1e-6)
        else:
            assert abs(found.value) == 1
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(tango(wins, losses, n, 0))), abs=1e-9)


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.25, 0.5, 1.0])] * 2, st.integers(0, 9)), min_size=2, max_size=30))
def test_an_interval_never_contradicts_its_test(rows: list[tuple[float, float, int]]) -> None:
    first, second, levels = (list(column) for column in zip(*rows, strict=True))
    found = paired_difference(first, second, levels)
    if found.levels < 2:
        assert (found.low, found.high) == (-np.inf, np.inf)
        return
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 1 / len(rows)
    assert found.significant == (found.p < 0.05) == (not found.low <= 0 <= found.high)
    back = paired_difference(second, first, levels)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low), abs=1e-9)


def test_the_clustered_interval_is_korn_and_graubards() -> None:
    values, clusters = [1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0], np.repeat(range(4), 4).tolist()
    effective = 0.375 * 0.625 / (np.var([0.75, 0.25, 0, 0.5], ddof=1) / 4)
    size = effective * (stats.t.ppf(0.975, 15) / stats.t.ppf(0.975, 3)) ** 2
    hits, found = 0.375 * size, clustered_rate(values, clusters, 16)
    assert effective_episodes(values, clusters, 16) == pytest.approx(effective)
    assert found.low == pytest.approx(stats.beta.ppf(0.025, hits, size - hits + 1))
    assert found.high == pytest.approx(stats.beta.ppf(0.975, hits + 1, size - hits))


def test_a_score_beside_random_play() -> None:
    rate = Estimate(0.1875, 0.14, 0.24, 256)
    for random, differs, said in (
        (0.189, False, "does not differ significantly from"),
        (0.05, True, "is above"),
        (0.5, True, "is below"),
    ):
        sentence = f"18.8 % (14.0 to 24.0) {said} random play, which scores {100 * random:.1f} %."
        assert against_random(rate, random) == (differs, sentence)


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="one of each"):
        clustered_mean([], [])
    with pytest.raises(ValueError, match="one of each"):
        clustered_rate([0.5], ["a", "b"], 1)
    for successes, n in ((2, 1), (-1, 4), (0, 0)):
        with pytest.raises(ValueError, match="give n from 1 on"):
            wilson(successes, n)


def test_clusters_of_any_kind_are_told_apart() -> None:
    """Families are whole numbers of 64 bits, which an array of them would round."""
    values = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    expected = clustered_mean(values, [1, 1, 2, 2, 0, 3])
    large = 2**63
    for clusters in (
        [large + 1, large + 1, large + 2, large + 2, 0, 2**64 - 1],
        [(1, 1), (1, 1), (1, 2), (1, 2), (0, 0), (2, 0)],
    ):
        assert clustered_mean(values, clusters) == expected


def test_holm_by_hand() -> None:
    """0.01 < 0.05 / 4, 0.013 < 0.05 / 3, 0.03 > 0.05 / 2: the last two stop at 0.05 / 2."""
    assert [round(1 - each, 6) for each in holm([0.04, 0.01, 0.03, 0.013])] == [0.025, 0.0125, 0.025, 0.016667]
    assert holm([0.03]) == [pytest.approx(0.95)]
    assert holm([]) == []


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.49, 0.999])
def test_a_binomial_tail(chance: float) -> None:
    for least in range(22):
        assert binomial_tail(least, 20, chance) == pytest.approx(stats.binom.sf(least - 1, 20, chance), abs=1e-12)
