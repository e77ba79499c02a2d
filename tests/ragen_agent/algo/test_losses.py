"""The losses: worked examples, slow references written with plain loops, and the formulas of TRL."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config.algorithms import AGGREGATIONS, POLICY_LOSSES
from tests.ragen_agent.algo.tensors import ONE, ROWS, YES, close, masks, tensors

#: Log-probs of tokens, the broken ones included: gaps of up to 10,000 nats, and of probabilities that are 0.
LOG_PROBS = st.floats(-1e4, 0, width=32) | st.just(-math.inf)


def float32(data: st.DataObject, shape: tuple[int, int], elements: st.SearchStrategy[float]) -> torch.Tensor:
    return data.draw(tensors(shape, elements)).float()


@pytest.mark.parametrize("rule", POLICY_LOSSES)
@given(data=st.data(), shape=ROWS)
def test_no_gap_of_log_probs_overflows_a_loss(rule: str, data: st.DataObject, shape: tuple[int, int]) -> None:
    """In float32, as it is trained: loss, gradients and figures are finite, whatever the two policies say."""
    new, old = (float32(data, shape, LOG_PROBS) for _ in range(2))
    advantages, mask = float32(data, shape, st.floats(-5, 5)), data.draw(masks(shape, some=True))
    new.requires_grad_()
    loss, stats = algo.policy_loss(new, old, advantages, mask, rule)
    (gradient,) = torch.autograd.grad(loss, new)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    assert bool(torch.stack([*stats]).isfinite().all())


@pytest.mark.parametrize("mode", ["clip", "mask"])
@given(data=st.data(), shape=ROWS)
def test_no_gap_of_log_probs_overflows_a_correction(mode: str, data: st.DataObject, shape: tuple[int, int]) -> None:
    new, old = (float32(data, shape, LOG_PROBS) for _ in range(2))
    mask = data.draw(masks(shape, some=True))
    weights, _ = algo.mismatch_weights(new, old, mask, mode=mode, bounds=(0.0, math.inf))
    assert bool(weights.isfinite().all())


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


@given(
    data=st.data(),
    shape=ROWS,
    how=st.sampled_from(sorted(AGGREGATIONS)),
    low=st.floats(0, 0.9),
    high=st.floats(0, 2),
)
def test_policy_loss_reference(data: st.DataObject, shape: tuple[int, int], how: str, low: float, high: float) -> None:
    new, old, advantages = (data.draw(tensors(shape)) for _ in range(3))
    mask = data.draw(masks(shape, some=True))
    loss, stats = algo.policy_loss(new, old, advantages, mask, clip_low=low, clip_high=high, how=how, length=7)
    rows: list[list[float]] = []
    clipped = 0
    for row in range(shape[0]):
        terms = []
        for t in range(shape[1]):
            if mask[row, t]:
                ratio, advantage = math.exp(new[row, t] - old[row, t]), float(advantages[row, t])
                plain = ratio * advantage
                term = min(plain, min(max(ratio, 1 - low), 1 + high) * advantage)
                clipped += term != plain
                terms.append(term)
        rows.append(terms)
    expected = {
        "token_mean": statistics.fmean([term for terms in rows for term in terms]),
        "sequence_mean": statistics.fmean([statistics.fmean(terms) for terms in rows if terms]),
        "sequence_sum": statistics.fmean([math.fsum(terms) for terms in rows]),
        "constant": statistics.fmean([math.fsum(terms) / 7 for terms in rows]),
    }
    assert set(expected) == set(AGGREGATIONS)
    assert float(loss) == pytest.approx(-expected[how], abs=1e-9)
    assert float(stats.clip_fraction) == pytest.approx(clipped / int(mask.sum()), abs=1e-9)


def test_bad_input_is_told() -> None:
    for how in AGGREGATIONS:
        with pytest.raises(ValueError, match="skip the update"):
            algo.policy_loss(ONE, ONE, ONE, ~YES, how=how, length=1)
    with pytest.raises(ValueError, match="one shape"):
        algo.policy_loss(ONE, ONE, ONE, YES.expand(1, 2))
    with pytest.raises(ValueError, match=r"clip_low=1.0"):
        algo.policy_loss(ONE, ONE, ONE, YES, clip_low=1.0)
    with pytest.raises(ValueError, match="mode is 'drop'; it must be clip or mask"):
        algo.mismatch_weights(ONE, ONE, YES, mode="drop")
    with pytest.raises(ValueError, match="clip is 0"):
        algo.value_loss(ONE, ONE, ONE, YES, clip=0)
    with pytest.raises(ValueError, match="rule is 'trpo'; it must be one of ppo, gspo"):
        algo.policy_loss(ONE, ONE, ONE, YES, "trpo")


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of which four and three tokens are in the loss; log-probs now and then, and advantages."""
    generator = torch.Generator().manual_seed(1)
    old, change, advantages = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    old, mask = -old.abs() - 0.1, torch.tensor([[True, True, True, True], [True, True, False, True]])
    return (old + 0.3 * change).requires_grad_(), old, advantages, mask


def test_gspo_by_hand() -> None:
    """Rows with ratios (2, 1/2, 1) and (4, 1): their geometric means are 1 and 2, and A is 1 and 2.

    s A is 1 and 4, the clip at 1.28 leaves 1 and 2.56: the rows' mean is 1.78. The first row's gradient is s A / 3 a
    token, halved by the mean over rows; the second is held.
    """
    log_probs = torch.tensor([[2.0, 0.5, 1.0], [4.0, 1.0, 9.0]], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    loss, stats = algo.policy_loss(
        log_probs, torch.zeros(2, 3), advantages, mask, "gspo", how="sequence_mean", clip_low=0.2, clip_high=0.28
    )
    close(loss, -1.78)
    close(stats.clip_fraction, 2 / 5)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, [[-1 / 6] * 3, [0.0] * 3])


def test_cispo_by_hand() -> None:
    """Ratios 4 and 3/2 with the bound 2: the weights are 2 and 3/2, and no token loses its gradient, -weight A / n."""
    log_probs = torch.tensor([[0.8, 0.3]], dtype=torch.float64).log().requires_grad_()
    old = torch.tensor([[0.2, 0.2]], dtype=torch.float64).log()
    loss, stats = algo.policy_loss(
        log_probs, old, torch.tensor([[1.0, -1.0]]), YES.expand(1, 2), "cispo", clip_high=1.0
    )
    close(loss, -(2 * math.log(0.8) - 1.5 * math.log(0.3)) / 2)
    close(stats.clip_fraction, 0.5)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, [[-1.0, 0.75]])


def test_sapo_by_hand() -> None:
    """At r = 1 the gate is 2 / tau with the slope of r; at r = 3 and tau = 1 it is 4 sigmoid(2), nearly flat."""
    log_probs = torch.tensor([[1.0, 1.0, 3.0]], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([[1.0, -1.0, 1.0]], dtype=torch.float64)
    loss, stats = algo.policy_loss(
        log_probs, torch.zeros(1, 3), advantages, YES.expand(1, 3), "sapo", temperatures=(1.0, 1.05)
    )
    p = 1 / (1 + math.exp(-2))
    close(loss, -(2 - 2 / 1.05 + 4 * p) / 3)
    close(stats.clip_fraction, (1 - 4 * p * (1 - p)) / 3)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, [[-1 / 3, 1 / 3, -3 * 4 * p * (1 - p) / 3]])  # the slope of r in log pi is r


#: Means of log pi and A are -2 and 0; the covariances are 2, 0, -2 and 0, and the last token is not in the loss.
COVARIANCES = (
    torch.tensor([[-1.0, -2.0, -3.0, -2.0, 7.0]], dtype=torch.float64),
    torch.tensor([[2.0, 1.0, 2.0, -5.0, 7.0]], dtype=torch.float64),
    torch.tensor([[True, True, True, True, False]]),
)


def test_clip_cov_by_hand() -> None:
    """On the policy that sampled: of the tokens with a covariance in the band, which is the first alone, half go."""
    log_probs, advantages, mask = COVARIANCES
    new = log_probs.clone().requires_grad_()
    loss, stats = algo.policy_loss(new, log_probs, advantages, mask, "clip_cov", share=0.5, band=(1.0, 5.0))
    close(loss, -(0 + 1 + 2 - 5) / 4)
    close(stats.clip_fraction, 0.25)
    (gradient,) = torch.autograd.grad(loss, new)
    close(gradient, [[0.0, -0.25, -0.5, 1.25, 0.0]])


def test_clip_cov_draws_as_many_as_its_share() -> None:
    """All of 100 tokens in the band: ten of them are drawn, by default with the seed 0, others with another one."""
    log_probs = torch.linspace(-9, -1, 100)[None]
    advantages, mask = torch.linspace(-5, 5, 100)[None], torch.ones(1, 100, dtype=torch.bool)
    drawn = [
        algo.token_terms(
            "clip_cov",
            log_probs,
            log_probs,
            advantages,
            mask,
            share=0.1,
            band=(0.0, 99.0),
            generator=None if seed is None else torch.Generator().manual_seed(seed),
        ).restrained
        for seed in (None, 0, 1)
    ]
    assert [int(each.sum()) for each in drawn] == [10, 10, 10]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_kl_cov_by_hand() -> None:
    """Every r is 2, so log pi keeps its differences: a quarter of the tokens is the first, of which log 2 goes."""
    log_probs, advantages, mask = COVARIANCES
    new = log_probs.clone().requires_grad_()
    old = log_probs - math.log(2)
    loss, stats = algo.policy_loss(new, old, advantages, mask, "kl_cov", share=0.25, weight=3.0)
    close(loss, -(2 * (2 + 1 + 2 - 5) - 3 * math.log(2)) / 4)
    close(stats.clip_fraction, 0.25)
    (gradient,) = torch.autograd.grad(loss, new)
    close(gradient, [[-(4 - 3) / 4, -0.5, -1.0, 2.5, 0.0]])


@pytest.mark.parametrize("rule", POLICY_LOSSES)
def test_every_rule_begins_as_the_plain_policy_gradient(rule: str) -> None:
    """On the policy that sampled, the gradient of each token is -A / n; of GSPO the row's mean of A.

    Clip-Cov leaves out what lies in its band, so here that is empty.
    """
    log_probs, _, advantages, mask = example()
    if rule == "gspo":
        advantages = advantages.mean(dim=1, keepdim=True).expand(2, 4)
    options: dict[str, Any] = {"band": (98.0, 99.0)} if rule == "clip_cov" else {}
    loss, stats = algo.policy_loss(log_probs, log_probs.detach().clone(), advantages, mask, rule, **options)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    close(gradient, -advantages * mask / mask.sum())
    assert float(stats.approx_kl) == 0
    assert float(stats.clip_fraction) == (pytest.approx(1 / 7) if rule == "kl_cov" else 0.0)


@pytest.mark.parametrize("rule", POLICY_LOSSES)
def test_what_the_mask_hides_may_hold_anything(rule: str) -> None:
    new, old, advantages, mask = (x.detach() for x in example())
    new.requires_grad_()
    expected, _ = algo.policy_loss(new, old, advantages, mask, rule, weights=2 * torch.ones_like(old))
    hidden = torch.where(mask, new.detach(), math.nan).requires_grad_()
    rest = torch.where(mask, old, math.inf), torch.where(mask, advantages, math.nan), mask
    loss, stats = algo.policy_loss(hidden, *rest, rule, weights=torch.where(mask, 2.0, math.nan))
    (gradient,) = torch.autograd.grad(loss, hidden)
    close(loss, expected)
    close(gradient, torch.autograd.grad(expected, new)[0])
    assert torch.isfinite(torch.stack([gradient.sum(), *stats])).all()
    assert float(gradient[~mask].abs().sum()) == 0


def test_mismatch_weights_by_hand() -> None:
    """rho is 4, 1 and 1/4 of tokens that the engine drew with 1/8, and one that is not in the loss."""
    rollout = torch.full((1, 4), 1 / 8, dtype=torch.float64).log()
    trainer = torch.tensor([[0.5, 0.125, 1 / 32, 0.9]], dtype=torch.float64).log().requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    tis, outside = algo.mismatch_weights(trainer, rollout, mask, bounds=(0.0, 2.0))
    close(tis, [[2.0, 1.0, 0.25, 0.0]])
    assert outside.tolist() == [[True, False, False, False]]
    assert not tis.requires_grad
    icepop, outside = algo.mismatch_weights(trainer, rollout, mask, mode="mask", bounds=(0.5, 5.0))
    close(icepop, [[4.0, 1.0, 0.0, 0.0]])
    assert outside.tolist() == [[False, False, True, False]]


def test_weights_multiply_the_terms() -> None:
    new, old, advantages, mask = example()
    terms = algo.token_terms("ppo", new, old, advantages, mask).surrogate
    weights = torch.tensor([[2.0, 0.0, 1.0, 1.0], [1.0, 3.0, 9.0, 0.5]], dtype=torch.float64)
    loss, _ = algo.policy_loss(new, old, advantages, mask, weights=weights)
    close(loss, -(terms * weights)[mask].mean())
