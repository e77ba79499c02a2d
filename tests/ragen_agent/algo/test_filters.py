"""The choice of groups, and rewards for form: worked examples and slow references."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.algo import filters
from ragen_agent.config.algorithms import FILTER_RULES

SPREADS = st.lists(st.sampled_from([0.0, 1e-3, 0.1, 0.2, 0.3, 0.5]), min_size=1, max_size=12)


def places(kept: torch.Tensor) -> list[int]:
    numbers: list[int] = kept.nonzero().flatten().tolist()
    return numbers


@given(groups=st.integers(1, 20), share=st.floats(0.01, 1), seed=st.integers(0, 2**32 - 1))
def test_keep_random_keeps_as_many_and_repeats(groups: int, share: float, seed: int) -> None:
    kept = filters.keep_random(torch.zeros(groups), share, torch.Generator().manual_seed(seed))
    assert kept.sum() == filters.keep_top(torch.arange(1.0, groups + 1), share).sum()
    assert kept.equal(filters.keep_random(torch.zeros(groups), share, torch.Generator().manual_seed(seed)))


def test_keep_random_std_prefers_none_of_those_with_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([0.1, 0.0, 5.0, 0.2, 0.0])
    times = torch.stack([filters.keep_random_std(spread, 0.2, generator) for _ in range(3000)]).sum(0)
    assert times[[1, 4]].tolist() == [0, 0]
    assert ((times[[0, 2, 3]] - 1000).abs() < 130).all()  # five standard errors


def test_rounding_is_no_disagreement_and_small_differences_are() -> None:
    """Stds of 7e-8 and 7e-4, of which the variances 5e-15 and 5e-7 are judged alike."""
    values = torch.tensor([[0.5, 0.5 + 1e-7], [0.5, 0.501]], dtype=torch.float64)
    for statistic in (algo.group_std, algo.group_variance):
        for rule in ("top", "top_p", "min_p", "reverse"):
            assert places(algo.keep_groups(statistic(values), rule, 1.0)) == [1], (statistic, rule)
    equal = torch.linspace(100.1, 1000, 91)[:, None].expand(91, 3)  # the means of many are not exactly these numbers
    assert not algo.group_std(equal).any()


#: Exponentials of 2, 4, 1 and 3 tenths.
LOGS = [math.log(2), math.log(4), 0.0, math.log(3)]
BY_HAND: list[tuple[str, list[float], float, list[int]]] = [
    ("top", [0.1, 0.5, 0.0, 0.5, 0.3, 0.5, 0.2, 0.0], 0.25, [1, 3]),
    # The spreads sum to 10; 4 + 3 reaches 0.7 of it, 4 + 3 + 2 reaches 0.9, all four are needed for more.
    ("top_k", [0.1, 0.5, 0.0, 0.5, 0.3, 0.5, 0.2, 0.0], 2, [1, 3]),
    ("top_k", [0.1], 9, [0]),
    ("top_p", [1.0, 4.0, 0.0, 2.0, 3.0], 0.7, [1, 4]),
    ("top_p", [1.0, 4.0, 0.0, 2.0, 3.0], 0.71, [1, 3, 4]),
    ("softmax_top_p", LOGS, 0.7, [1, 3]),
    ("softmax_top_p", LOGS, 0.91, [0, 1, 2, 3]),  # a group without spread too
    ("softmax_top_p", [0.3] * 8, 0.9, [*range(8)]),  # seven hold 0.875
    ("min_p", [1.0, 4.0, 0.0, 2.0, 3.0], 0.5, [1, 3, 4]),
    ("reverse", [1.0, 4.0, 0.0, 2.0, 3.0], 0.4, [0, 3]),
    *((rule, [0.0] * 3, 0.5, []) for rule in ("top", "top_p", "min_p", "reverse")),
    *((rule, [], 0.5, []) for rule in ("top", "top_p", "softmax_top_p", "min_p", "reverse")),
]


@pytest.mark.parametrize(("rule", "spread", "amount", "kept"), BY_HAND)
def test_rules_by_hand(rule: str, spread: list[float], amount: float, kept: list[int]) -> None:
    assert places(algo.keep_groups(torch.tensor(spread, dtype=torch.float64), rule, amount)) == kept


@given(spread=SPREADS, amount=st.floats(0.01, 1))
def test_rules_reference(spread: list[float], amount: float) -> None:
    """Each rule as a sentence about sorted lists; a goal that a sum reaches but for rounding is reached."""
    ranked = sorted((s, -i) for i, s in enumerate(spread) if s)[::-1]
    total, reached, top_p = math.fsum(s for s, _ in ranked), 0.0, []
    for value, place in ranked:
        if reached >= amount * total * (1 - 1e-6):
            break
        reached += value
        top_p.append(-place)
    mass, held, softmax = math.fsum(map(math.exp, spread)), 0.0, []
    for value, place in sorted(((s, -i) for i, s in enumerate(spread)), reverse=True):
        if held >= amount * mass * (1 - 1e-6):
            break
        held += math.exp(value)
        softmax.append(-place)
    number = max(1, math.floor(amount * len(spread) + 1e-9))
    upwards = sorted((s, i) for i, s in enumerate(spread) if s)
    expected = {
        "none": range(len(spread)),
        "top": [-i for _, i in ranked[:number]],
        "top_p": top_p,
        "softmax_top_p": softmax,
        "min_p": [-i for s, i in ranked if s >= amount * max(spread) * (1 - 1e-7)],
        "reverse": [i for _, i in upwards[:number]],
    }
    assert set(expected) | {"top_k", "random", "random_std"} == set(FILTER_RULES)
    assert places(filters.keep_top_k(torch.tensor(spread), number)) == sorted(expected["top"])
    for rule, groups in expected.items():
        kept = algo.keep_groups(torch.tensor(spread, dtype=torch.float64), rule, amount)
        assert places(kept) == sorted(groups), rule


def test_the_mean_orders_the_groups_that_differ() -> None:
    """Means -1, 5 (all equal), 0.5, 0.5 and 2, of which the failed episode is no part."""
    returns = torch.tensor([[-3.0, 1.0], [5.0, 5.0], [0.0, 1.0], [1.0, 0.0], [2.0, 3.0]])
    order = filters.group_mean_order(returns)
    assert order.tolist() == [1, 0, 2, 2, 3]
    assert places(algo.keep_groups(order, "top", 0.4)) == [2, 4]
    assert places(algo.keep_groups(order, "top_k", 1)) == [4]
    assert places(algo.keep_groups(order, "reverse", 0.2)) == [0]
    counted = torch.tensor([[True, True], [True, True], [True, True], [True, True], [True, False]])
    assert filters.group_mean_order(returns, counted).tolist() == [1, 0, 2, 2, 0]


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="whole number of groups, at least 1"):
        filters.keep_top_k(torch.ones(3), 2.5)
    for rule in ("top", "reverse", "top_p", "softmax_top_p", "min_p"):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            algo.keep_groups(torch.ones(3), rule, 1.5)
        with pytest.raises(ValueError, match="finite and at least 0"):
            algo.keep_groups(torch.tensor([math.nan]), rule, 0.5)
    with pytest.raises(ValueError, match="rule is 'best'; it must be one of none, top"):
        algo.keep_groups(torch.ones(3), "best", 0.5)
    with pytest.raises(ValueError, match="'random' needs a generator"):
        algo.keep_groups(torch.ones(3), "random", 0.5)
