"""The entropy, its band, and the divergence from a reference: worked examples, and slow references."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config.algorithms import KL_ESTIMATES
from tests.ragen_agent.algo.tensors import ONE, ROWS, YES, close, masks, tensors


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
    tokens = [term for terms in rows for term in terms]
    expected = statistics.fmean(tokens) if how == "token_mean" else math.fsum(tokens) / len(rows)
    assert float(algo.kl_loss(new, reference, mask, kind, how)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", KL_ESTIMATES)
@given(data=st.data(), shape=ROWS)
def test_no_gap_of_log_probs_overflows_an_estimate(kind: str, data: st.DataObject, shape: tuple[int, int]) -> None:
    """In float32: the loss and its gradients, and what a critic's whitened batch becomes with it as a cost."""
    log_probs = st.floats(-1e4, 0, width=32) | st.just(-math.inf)
    new, reference = (data.draw(tensors(shape, log_probs)).float() for _ in range(2))
    mask = data.draw(masks(shape, some=True))
    new.requires_grad_()
    loss = algo.kl_loss(new, reference, mask, kind)
    (gradient,) = torch.autograd.grad(loss, new)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    cost = algo.kl_penalty(new.detach(), reference, kind)
    assert bool(algo.whiten(-0.001 * cost, mask).isfinite().all())


def test_k3_is_bounded_as_the_ratios_are_and_pulls_from_above() -> None:
    """The policy 100 nats below its reference: e^20 - 1 - 20, without a gradient. 100 above: 99, with the slope 1."""
    policy = torch.tensor([[-100.0, 0.0, -1.0]], requires_grad=True)
    found = algo.kl_penalty(policy, torch.tensor([[0.0, -100.0, -1.0]]), "k3")
    torch.testing.assert_close(found, torch.tensor([[math.exp(20) - 21, 99.0, 0.0]]))
    (gradient,) = torch.autograd.grad(found.sum(), policy)
    close(gradient, [[0.0, 1.0, 0.0]])


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


def test_entropy_outside_its_band_by_hand() -> None:
    """EPO with an average of 2 nats and the band [0.5, 1.5]: rows with means of 4, 0.5 and 2, and one without a token.

    They are 1 above, 0.5 below, and within; the gradient of a row's mean is shared by its tokens.
    """
    entropy = torch.tensor([[2.0, 6.0], [0.5, 9.0], [2.0, 2.0], [9.0, 9.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    outside = algo.entropy_deviation(entropy, mask, 2.0, (0.5, 1.5))
    close(outside, [[1.0, 1.0], [0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    (gradient,) = torch.autograd.grad(outside.sum(), entropy)
    close(gradient, [[1.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        algo.kl_penalty(ONE, ONE, "k4")
