"""True advantages: zero on average after every prefix; the exact gradient equals finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ragen_agent.exact.advantages import exact_gradient, prefix_values, return_variance, token_advantages
from ragen_agent.exact.policy_value import solve
from tests.ragen_agent.exact.conftest import Tiny

Make = Callable[..., Tiny]


def test_advantages_of_a_prefix_average_to_zero(tiny: Make) -> None:
    policy = tiny()
    (found,) = solve(policy.reader(), policy.levels(2), mass=1e-10)
    for state in found.states:
        tree, values = state.tree, prefix_values(state)
        assert values[0] == pytest.approx(state.value)
        inner = np.unique(tree.parent[1:])
        for node in inner[:50]:
            children = np.flatnonzero(tree.parent == node)
            mean = (tree.reach[children] / tree.reach[node]) @ values[children, 1].mean(1)
            assert mean == pytest.approx(values[node, 1].mean(), abs=1e-5)


def test_advantages_of_a_reply_add_up_to_its_worth(tiny: Make) -> None:
    policy = tiny()
    (found,) = solve(policy.reader(), policy.levels(2), mass=1e-10)
    state = found.start
    leaf = int(np.flatnonzero(state.tree.outcome >= 0)[0])
    ids = state.tree.path(leaf)
    advantages = token_advantages(state, ids).mean(1)
    worth = state.outcome_values[state.tree.outcome[leaf], 1].mean() - state.value[1].mean()
    assert len(advantages) == len(ids)
    assert advantages.sum() == pytest.approx(worth, abs=1e-5)
    assert abs(advantages).max() > 1e-3


def test_a_token_outside_the_tree_has_a_wide_interval(tiny: Make) -> None:
    policy = tiny()
    (found,) = solve(policy.reader(), policy.levels(2), mass=0.3)
    low, high = token_advantages(found.start, [0])[0]
    assert low < 0 < high


def test_the_exact_gradient_equals_finite_differences(tiny: Make) -> None:
    policy = tiny(room=4, dtype=torch.float64)
    levels = policy.levels(1, 2, success_rate=0.7)

    def mean_return() -> float:
        return float(np.mean([each.of("return") for each in solve(policy.reader(), levels, mass=1e-13)]))

    reader = policy.reader()
    found = solve(reader, levels, mass=1e-13)
    gradient = exact_gradient(policy.model, reader.bias, policy.temperature, found)
    generator = torch.Generator().manual_seed(0)
    parameters, step = list(policy.model.parameters()), 1e-3
    for _ in range(3):
        way = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in parameters]
        slope = sum(float((g * w).sum()) for g, w in zip(gradient, way, strict=True))
        difference = 0.0
        for steps, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):  # of fourth order
            _move(parameters, way, steps * step)
            difference += weight * mean_return() / (12 * step)
            _move(parameters, way, -steps * step)
        assert abs(slope) > 1e-2, "a direction that shows nothing"
        assert slope == pytest.approx(difference, rel=1e-4, abs=5e-5)  # the model's norms round to float32


def _move(parameters: list[torch.nn.Parameter], way: list[torch.Tensor], by: float) -> None:
    with torch.no_grad():
        for each, w in zip(parameters, way, strict=True):
            each.add_(w, alpha=by)


def test_the_parts_of_the_variance_add_up_to_that_of_a_coin(tiny: Make) -> None:
    """Returns are 0 and 1, so their variance is p (1 - p); without ice the policy has all of it."""
    policy = tiny()
    for ice in (False, True):
        levels = policy.levels(1, 2, success_rate=0.7 if ice else 1.0, format_penalty=0.0)
        for found in solve(policy.reader(), levels, mass=1e-7):
            (p, _), (replies, noise) = found.of("success"), return_variance(found)
            assert 0.01 < p < 0.99
            assert replies + noise == pytest.approx(p * (1 - p), abs=1e-5)
            assert replies > 1e-3
            assert noise > 1e-3 if ice else noise == pytest.approx(0, abs=1e-9)
