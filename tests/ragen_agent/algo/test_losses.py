"""Losses, their aggregation and the divergence: worked examples, and slow references written with plain loops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config.algorithms import AGGREGATIONS, KL_ESTIMATES
from tests.ragen_agent.algo.tensors import ONE, ROWS, YES, close, masks, tensors


def test_policy_loss_by_hand() -> None:
    """Ratios 2, 2, 1/2, 1/2 and 1; both signs of the advantage; the last token is not in the loss.

    min(2, 1.28) = 1.28; min(-2, -1.28) = -2; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8: their mean is
    -0.255.
    """
    log_probs = torch.tensor([[2.0, 2.0, 0.5, 0.5, 9.0]], dtype=torch.float64).log().requires_grad_()
    old = torch.zeros(1, 5, dtype=torch.float64)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False]])
    loss, stats = algo.policy_loss(log_probs, old, advantages, mask)
    close(loss, 0.255)
    loss.backward()
    assert log_probs.grad is not None
    close(log_probs.grad, [[0.0, 2 / 4, -0.5 / 4, 0.0, 0.0]])  # clipped tokens and the unmasked one learn nothing
    close(stats.clip_fraction, 0.5)
    close(stats.ratio_max, 2.0)
    close(stats.approx_kl, (2 * (2 - 1 - math.log(2)) + 2 * (0.5 - 1 + math.log(2))) / 4)


@given(data=st.data(), shape=ROWS, low=st.floats(0, 0.9), high=st.floats(0, 2))
def test_policy_loss_reference(data: st.DataObject, shape: tuple[int, int], low: float, high: float) -> None:
    new, old, advantages = (data.draw(tensors(shape)) for _ in range(3))
    mask = data.draw(masks(shape, some=True))
    loss, stats = algo.policy_loss(new, old, advantages, mask, low, high)
    terms, clipped = [], 0
    for row, t in mask.nonzero().tolist():
        ratio, advantage = math.exp(new[row, t] - old[row, t]), float(advantages[row, t])
        bounded = min(max(ratio, 1 - low), 1 + high) * advantage
        terms.append(min(ratio * advantage, bounded))
        clipped += bounded < ratio * advantage
    assert float(loss) == pytest.approx(-statistics.fmean(terms), abs=1e-9)
    assert float(stats.clip_fraction) == pytest.approx(clipped / len(terms), abs=1e-9)


@given(data=st.data(), shape=ROWS)
def test_first_step_is_the_plain_policy_gradient(data: st.DataObject, shape: tuple[int, int]) -> None:
    """On the policy that sampled, the gradient is -A / n at each of the n masked tokens."""
    log_probs = data.draw(tensors(shape)).requires_grad_()
    advantages, mask = data.draw(tensors(shape)), data.draw(masks(shape, some=True))
    loss, stats = algo.policy_loss(log_probs, log_probs.detach().clone(), advantages, mask)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, -advantages * mask / mask.sum())
    assert (float(stats.clip_fraction), float(stats.approx_kl), float(stats.ratio_max)) == (0.0, 0.0, 1.0)


@given(data=st.data(), shape=st.tuples(st.integers(2, 4), st.integers(1, 9)))
def test_parts_of_a_minibatch_add_up(data: st.DataObject, shape: tuple[int, int]) -> None:
    new, old, advantages = (data.draw(tensors(shape)) for _ in range(3))
    mask = data.draw(masks(shape, some=True))
    whole, _ = algo.policy_loss(new, old, advantages, mask)
    count, rows = int(mask.sum()), [row for row in range(shape[0]) if mask[row].any()]
    parts = [algo.policy_loss(new[[r]], old[[r]], advantages[[r]], mask[[r]], count=count)[0] for r in rows]
    close(torch.stack(parts).sum(), whole)


def test_what_the_mask_hides_may_hold_anything() -> None:
    log_probs = torch.tensor([[0.0, float("nan"), float("inf")]], requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    loss, stats = algo.policy_loss(log_probs, torch.zeros(1, 3), torch.ones(1, 3), mask)
    loss.backward()
    assert torch.isfinite(torch.stack([loss, *stats])).all()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[-1.0, 0.0, 0.0]]


def test_one_broken_token_does_not_overflow() -> None:
    loss, _ = algo.policy_loss(
        torch.tensor([[0.0]]), torch.tensor([[-1000.0]]), torch.tensor([[-1.0]]), torch.tensor([[True]])
    )
    assert torch.isfinite(loss)


@given(data=st.data(), shape=ROWS, clip=st.floats(0.01, 2) | st.just(math.inf))
def test_value_loss_reference(data: st.DataObject, shape: tuple[int, int], clip: float) -> None:
    values, old, returns = (data.draw(tensors(shape)) for _ in range(3))
    mask = data.draw(masks(shape, some=True))
    terms = []
    for row, t in mask.nonzero().tolist():
        value, before, target = float(values[row, t]), float(old[row, t]), float(returns[row, t])
        near = before + min(max(value - before, -clip), clip)
        terms.append(max((value - target) ** 2, (near - target) ** 2) / 2)
    assert float(algo.value_loss(values, old, returns, mask, clip)) == pytest.approx(statistics.fmean(terms))


def test_value_that_moved_too_far_stops() -> None:
    """It moved towards its target by more than the clip: the clipped term is larger and has no gradient."""
    values = torch.tensor([[0.5, 0.1]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss = algo.value_loss(values, torch.zeros(1, 2), torch.ones(1, 2), mask, clip=0.2)
    assert loss.item() == pytest.approx((0.8**2 + 0.9**2) / 4)
    (gradient,) = torch.autograd.grad(loss, values)
    close(gradient, [[0.0, -0.45]])


@given(data=st.data(), size=st.integers(1, 8))
def test_entropy_reference(data: st.DataObject, size: int) -> None:
    logits = data.draw(tensors((3, size)))
    for row, value in enumerate(algo.entropy_of(logits).tolist()):
        weights = [math.exp(x) for x in logits[row].tolist()]
        chances = [weight / sum(weights) for weight in weights]
        assert value == pytest.approx(-sum(p * math.log(p) for p in chances), abs=1e-5)


def test_entropy_of_forbidden_tokens() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    entropy = algo.entropy_of(logits)
    assert entropy.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert torch.isfinite(gradient).all()


@given(
    policy=st.lists(st.floats(-2, 2), min_size=2, max_size=5), other=st.lists(st.floats(-2, 2), min_size=5, max_size=5)
)
def test_kl_estimates_are_right_in_the_mean(policy: list[float], other: list[float]) -> None:
    """k1 and k3 are unbiased: their mean under the policy is the divergence itself. k3 is never negative."""
    log_p = torch.log_softmax(torch.tensor(policy, dtype=torch.float64), 0)
    log_q = torch.log_softmax(torch.tensor(other[: len(policy)], dtype=torch.float64), 0)
    divergence = (log_p.exp() * (log_p - log_q)).sum()
    for kind in ("k1", "k3"):
        close((log_p.exp() * algo.kl_penalty(log_p, log_q, kind)).sum(), divergence)
    assert (algo.kl_penalty(log_p, log_q, "k3") >= -1e-12).all()
    close(algo.kl_penalty(log_p, log_q, "k2"), (log_p - log_q) ** 2 / 2)


def test_dual_clip_by_hand() -> None:
    """Ratio 8, advantage -1: the term is -8, with the dual clip at 3 it is -3 and has no gradient. The rest is as ever.

    -(1.28 - 3 + 0.5 - 0.8) / 4 = 0.505
    """
    log_probs = torch.tensor([[2.0, 8.0, 0.5, 0.5]], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    loss, stats = algo.policy_loss(log_probs, torch.zeros(1, 4), advantages, mask, dual_clip=3.0)
    close(loss, 0.505)
    close(stats.clip_fraction, 0.75)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, [[0.0, 0.0, -0.5 / 4, 0.0]])


@given(
    data=st.data(),
    shape=ROWS,
    how=st.sampled_from(sorted(AGGREGATIONS)),
    dual_clip=st.none() | st.floats(1.01, 4),
)
def test_policy_loss_of_every_kind_reference(
    data: st.DataObject, shape: tuple[int, int], how: str, dual_clip: float | None
) -> None:
    new, old, advantages = (data.draw(tensors(shape)) for _ in range(3))
    mask = data.draw(masks(shape, some=True))
    loss, _ = algo.policy_loss(new, old, advantages, mask, dual_clip=dual_clip, how=how, length=7)
    rows: list[list[float]] = []
    for row in range(shape[0]):
        terms = []
        for t in range(shape[1]):
            if mask[row, t]:
                ratio, advantage = math.exp(new[row, t] - old[row, t]), float(advantages[row, t])
                term = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
                if dual_clip is not None and advantage < 0:
                    term = max(term, dual_clip * advantage)
                terms.append(term)
        if terms:
            rows.append(terms)
    expected = {
        "token_mean": statistics.fmean([term for terms in rows for term in terms]),
        "sequence_mean": statistics.fmean([statistics.fmean(terms) for terms in rows]),
        "sequence_sum": statistics.fmean([math.fsum(terms) for terms in rows]),
        "constant": statistics.fmean([math.fsum(terms) / 7 for terms in rows]),
    }
    assert set(expected) == set(AGGREGATIONS)
    assert float(loss) == pytest.approx(-expected[how], abs=1e-9)


def test_what_a_token_weighs_by_hand() -> None:
    """A row of one token (4) and one of three (1 each), and a row that takes no part."""
    x = torch.tensor([[4.0, 9.0, 9.0], [1.0, 1.0, 1.0], [9.0, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    close(algo.aggregate(x, mask), 7 / 4)
    close(algo.aggregate(x, mask, "sequence_mean"), (4 + 1) / 2)
    close(algo.aggregate(x, mask, "sequence_sum"), (4 + 3) / 2)
    close(algo.aggregate(x, mask, "constant", length=10), (4 + 3) / 20)


@given(
    data=st.data(),
    shape=st.tuples(st.integers(2, 4), st.integers(1, 9)),
    how=st.sampled_from(sorted(AGGREGATIONS)),
)
def test_parts_add_up_in_every_aggregation(data: st.DataObject, shape: tuple[int, int], how: str) -> None:
    x, mask = data.draw(tensors(shape)), data.draw(masks(shape, some=True))
    count = algo.loss_count(mask, how)
    parts = [algo.aggregate(x[[r]], mask[[r]], how, length=5, count=count) for r in range(shape[0])]
    close(torch.stack(parts).sum(), algo.aggregate(x, mask, how, length=5))


@given(
    data=st.data(),
    shape=ROWS,
    kind=st.sampled_from(sorted(KL_ESTIMATES)),
    how=st.sampled_from(["token_mean", "sequence_sum"]),
)
def test_kl_loss_reference(data: st.DataObject, shape: tuple[int, int], kind: str, how: str) -> None:
    new, reference = data.draw(tensors(shape)), data.draw(tensors(shape))
    mask = data.draw(masks(shape, some=True))
    formulas: dict[str, Callable[[float], float]] = {
        "k1": lambda d: d,
        "k2": lambda d: d * d / 2,
        "k3": lambda d: math.exp(-d) - 1 + d,
    }
    rows = []
    for row in range(shape[0]):
        differences = [float(new[row, t] - reference[row, t]) for t in range(shape[1]) if mask[row, t]]
        rows.append([formulas[kind](d) for d in differences])
    filled = [terms for terms in rows if terms]
    tokens = [term for terms in filled for term in terms]
    expected = statistics.fmean(tokens) if how == "token_mean" else math.fsum(tokens) / len(filled)
    assert float(algo.kl_loss(new, reference, mask, kind, how)) == pytest.approx(expected, abs=1e-9)


@given(
    policy=st.lists(st.floats(-2, 2), min_size=3, max_size=3), other=st.lists(st.floats(-2, 2), min_size=3, max_size=3)
)
def test_what_the_kl_loss_pulls_towards(policy: list[float], other: list[float]) -> None:
    """In expectation over the policy's samples: k1 pulls nowhere, k2 along the gradient of the divergence."""
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    log_p, log_q = logits.log_softmax(0), torch.tensor(other, dtype=torch.float64).log_softmax(0)
    chances = log_p.exp().detach()
    divergence = (log_p.exp() * (log_p - log_q)).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    for kind, expected in (("k1", torch.zeros(3, dtype=torch.float64)), ("k2", wanted)):
        terms = [chances[i] * algo.kl_loss(log_p[i].view(1, 1), log_q[i].view(1, 1), YES, kind) for i in range(3)]
        (gradient,) = torch.autograd.grad(torch.stack(terms).sum(), logits, retain_graph=True)
        close(gradient, expected)


def test_kl_loss_ignores_what_the_mask_hides() -> None:
    log_probs = torch.tensor([[0.5, -1e9, float("nan")]], requires_grad=True)
    mask = torch.tensor([[True, False, False]])
    loss = algo.kl_loss(log_probs, torch.zeros(1, 3), mask, "k3")
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert torch.isfinite(loss)
    assert gradient[0, 1:].tolist() == [0.0, 0.0]


def test_bad_input_is_told() -> None:
    for how in AGGREGATIONS:
        with pytest.raises(ValueError, match="skip the update"):
            algo.policy_loss(ONE, ONE, ONE, ~YES, how=how, length=1)
        with pytest.raises(ValueError, match="one shape"):
            algo.aggregate(ONE, torch.ones(1, 2, dtype=torch.bool), how, length=1)
    with pytest.raises(ValueError, match="how is 'mean'; it must be one of token_mean"):
        algo.aggregate(ONE, YES, "mean")
    with pytest.raises(ValueError, match="length is None; 'constant' divides by it"):
        algo.aggregate(ONE, YES, "constant")
    with pytest.raises(ValueError, match="as \\(rows, T\\)"):
        algo.aggregate(torch.ones(3), torch.ones(3, dtype=torch.bool), "sequence_sum")
    with pytest.raises(ValueError, match="one shape"):
        algo.policy_loss(ONE, ONE, ONE, torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="clip_low=1"):
        algo.policy_loss(ONE, ONE, ONE, YES, clip_low=1.0)
    with pytest.raises(ValueError, match="dual_clip is 1"):
        algo.policy_loss(ONE, ONE, ONE, YES, dual_clip=1.0)
    with pytest.raises(ValueError, match="clip is 0"):
        algo.value_loss(ONE, ONE, ONE, YES, clip=0)
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        algo.kl_penalty(ONE, ONE, "k4")
