"""Advantages, filters and losses: worked examples, and slow references written with plain loops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from ragen_agent import algo

# Returns of games are sums of a few rewards, so ties and equal groups come up as they do in training.
RETURNS = st.sampled_from([-0.5, -0.1, 0.0, 0.1, 0.3, 0.9, 1.0, 10.0])
GROUPS = st.tuples(st.integers(1, 6), st.integers(1, 6))
ROWS = st.tuples(st.integers(1, 4), st.integers(1, 9))
NUMBERS = st.floats(-3, 3)


def tensors(shape: tuple[int, int], elements: st.SearchStrategy[float] = NUMBERS) -> st.SearchStrategy[Tensor]:
    return hnp.arrays(np.float64, shape, elements=elements).map(torch.from_numpy)


def masks(shape: tuple[int, int], some: bool = False) -> st.SearchStrategy[Tensor]:
    arrays = hnp.arrays(np.bool_, shape).filter(lambda mask: bool(mask.any()) or not some)
    return arrays.map(torch.from_numpy)


def close(value: Tensor, expected: object) -> None:
    torch.testing.assert_close(value, torch.as_tensor(expected, dtype=value.dtype), rtol=1e-9, atol=1e-9)


# --- advantages ---------------------------------------------------------------------------------------------------


def test_group_normalised_by_hand() -> None:
    """Mean 0.25; squared deviations 0.75 in all, over G - 1 = 3, so the std is 0.5."""
    returns = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)
    close(algo.group_normalised(returns, eps=0.0), [[1.5, -0.5, -0.5, -0.5], [0.0] * 4])
    close(algo.group_normalised(returns)[0, 0], 0.75 / (0.5 + 1e-6))
    close(algo.group_normalised(returns, "mean"), [[0.75, -0.25, -0.25, -0.25], [0.0] * 4])
    close(algo.group_normalised(returns, "identity"), returns)


def test_group_normalised_leaves_failed_episodes_out() -> None:
    returns = torch.tensor([[1.0, 0.0, float("nan")]], dtype=torch.float64)
    counted = torch.tensor([[True, True, False]])
    close(algo.group_normalised(returns, "mean", counted=counted), [[0.5, -0.5, 0.0]])
    close(algo.group_normalised(returns, eps=0.0, counted=counted), [[math.sqrt(0.5), -math.sqrt(0.5), 0.0]])


@given(data=st.data(), shape=GROUPS, mode=st.sampled_from(["mean_std", "mean", "identity"]))
def test_group_normalised_reference(data: st.DataObject, shape: tuple[int, int], mode: str) -> None:
    returns, counted = data.draw(tensors(shape, RETURNS)), data.draw(masks(shape))
    advantages = algo.group_normalised(returns, mode, counted=counted)
    for group in range(shape[0]):
        values = [float(r) for r, c in zip(returns[group], counted[group], strict=True) if c]
        for member in range(shape[1]):
            value = float(returns[group, member])
            if not counted[group, member]:
                expected = 0.0
            elif mode == "identity":
                expected = value
            elif len(set(values)) == 1:
                expected = 0.0
            else:
                deviation = statistics.stdev(values) + 1e-6 if mode == "mean_std" else 1.0
                expected = (value - statistics.fmean(values)) / deviation
            assert float(advantages[group, member]) == pytest.approx(expected, abs=1e-9)


def test_equal_returns_give_no_advantage_whatever_the_rounding() -> None:
    returns = torch.full((1, 7), 0.1, dtype=torch.float32)
    assert not algo.group_normalised(returns).any()
    assert not algo.spread(returns).any()


def test_broadcast_to_tokens() -> None:
    sampled = torch.tensor([[False, True, True], [True, False, False]])
    close(algo.broadcast_to_tokens(torch.tensor([2.0, -1.0]), sampled), [[0.0, 2.0, 2.0], [-1.0, 0.0, 0.0]])


def test_gae_by_hand() -> None:
    """Prompt, two sampled tokens, an observation, a sampled token; gamma 1/2, lambda 1/2.

    Last: delta = 1 - 4 = -3, A = -3. Second: delta = 0 + 4/2 - 2 = 0, A = 0 - 3/4 = -0.75, past the
    observation whose value of 100 plays no part. First: delta = 0 + 2/2 - 1 = 0, A = 0 - 0.75/4 = -0.1875.
    """
    sampled = torch.tensor([[False, True, True, False, True]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[50.0, 1.0, 2.0, 100.0, 4.0]])
    advantages, returns = algo.gae(rewards, values, sampled, gamma=0.5, lam=0.5)
    close(advantages, [[0.0, -0.1875, -0.75, 0.0, -3.0]])
    close(returns, [[0.0, 0.8125, 1.25, 0.0, 1.0]])


def reference_gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The defining sum: A_t = sum over l of (gamma lam)^l delta_{t+l}, of a row of sampled tokens only."""
    following = [*values, 0.0][1:]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@given(data=st.data(), shape=ROWS, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_reference(data: st.DataObject, shape: tuple[int, int], gamma: float, lam: float) -> None:
    """As if the tokens that were not sampled were not there."""
    sampled, values = data.draw(masks(shape)), data.draw(tensors(shape))
    rewards = torch.where(sampled, data.draw(tensors(shape)), 0.0)
    advantages, returns = algo.gae(rewards, values, sampled, gamma, lam)
    for row in range(shape[0]):
        at = sampled[row]
        expected = reference_gae(rewards[row, at].tolist(), values[row, at].tolist(), gamma, lam)
        close(advantages[row, at], expected)
        close(returns[row, at], torch.tensor(expected, dtype=torch.float64) + values[row, at])
        assert not advantages[row, ~at].any()
        assert not returns[row, ~at].any()


@given(data=st.data(), shape=ROWS)
def test_undiscounted_gae_with_a_blind_critic_is_the_reward_to_go(data: st.DataObject, shape: tuple[int, int]) -> None:
    sampled = torch.ones(shape, dtype=torch.bool)
    rewards = data.draw(tensors(shape))
    advantages, _ = algo.gae(rewards, torch.zeros(shape, dtype=torch.float64), sampled)
    close(advantages, rewards.flip(1).cumsum(1).flip(1))


@given(data=st.data(), shape=ROWS)
def test_whiten(data: st.DataObject, shape: tuple[int, int]) -> None:
    x, mask = data.draw(tensors(shape, st.integers(-3, 3).map(float))), data.draw(masks(shape))
    white = algo.whiten(x, mask)
    assert not white[~mask].any()
    values = x[mask].tolist()
    if len(set(values)) < 2:
        assert not white.any()
        return
    scale = math.sqrt(statistics.variance(values) + 1e-8)
    close(white[mask], [(value - statistics.fmean(values)) / scale for value in values])


# --- filters ------------------------------------------------------------------------------------------------------


@given(data=st.data(), shape=GROUPS)
def test_spread_reference(data: st.DataObject, shape: tuple[int, int]) -> None:
    returns, counted = data.draw(tensors(shape, RETURNS)), data.draw(masks(shape))
    for group, value in enumerate(algo.spread(returns, counted).tolist()):
        values = returns[group, counted[group]].tolist()
        assert value == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0, abs=1e-9)


def test_keep_top_by_hand() -> None:
    spread = torch.tensor([0.1, 0.5, 0.0, 0.5, 0.3, 0.5, 0.2, 0.0])
    assert algo.keep_top(spread, 0.25).nonzero().flatten().tolist() == [1, 3]
    assert algo.keep_top(spread, 1.0).nonzero().flatten().tolist() == [0, 1, 3, 4, 5, 6]
    assert algo.keep_top(spread, 0.01).nonzero().flatten().tolist() == [1]
    assert algo.keep_top(torch.tensor([0.0, 1e-8, 0.0])).sum() == 0
    assert algo.keep_top(torch.zeros(0)).tolist() == []


@given(
    spread=st.lists(st.sampled_from([0.0, 1e-9, 0.1, 0.2, 0.5]), min_size=1, max_size=12),
    share=st.floats(0.01, 1),
)
def test_keep_top_reference(spread: list[float], share: float) -> None:
    number = max(1, math.floor(share * len(spread) + 1e-9))
    by_spread_then_index = sorted(range(len(spread)), key=lambda index: (-spread[index], index))
    expected = {index for index in by_spread_then_index[:number] if spread[index] > 1e-6}
    assert set(algo.keep_top(torch.tensor(spread), share).nonzero().flatten().tolist()) == expected


@given(groups=st.integers(1, 20), share=st.floats(0.01, 1), seed=st.integers(0, 2**32 - 1))
def test_keep_random_keeps_as_many_and_repeats(groups: int, share: float, seed: int) -> None:
    kept = algo.keep_random(groups, share, torch.Generator().manual_seed(seed))
    assert kept.sum() == algo.keep_top(torch.arange(1.0, groups + 1), share).sum()
    assert kept.equal(algo.keep_random(groups, share, torch.Generator().manual_seed(seed)))


def test_keep_random_prefers_no_group() -> None:
    generator = torch.Generator().manual_seed(0)
    times = torch.stack([algo.keep_random(4, 0.25, generator) for _ in range(4000)]).sum(0)
    assert times.sum() == 4000
    assert ((times - 1000).abs() < 150).all()  # five standard errors


# --- losses -------------------------------------------------------------------------------------------------------


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


# --- bad input ----------------------------------------------------------------------------------------------------

ONE = torch.ones(1, 1)
YES = torch.ones(1, 1, dtype=torch.bool)


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="method is 'gpro'; it must be one of identity"):
        algo.group_normalised(ONE, "gpro")
    with pytest.raises(ValueError, match="as \\(groups, members\\)"):
        algo.group_normalised(torch.ones(3))
    with pytest.raises(ValueError, match="do not fit"):
        algo.broadcast_to_tokens(torch.ones(2), YES)
    with pytest.raises(ValueError, match="share one shape"):
        algo.gae(ONE, torch.ones(1, 2), YES)
    with pytest.raises(ValueError, match="last sampled token"):
        algo.gae(ONE, ONE, ~YES)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="share is"):
            algo.keep_top(torch.ones(3), share)
    for spread in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="finite and at least 0"):
            algo.keep_top(torch.tensor([spread]))
    with pytest.raises(ValueError, match="skip the update"):
        algo.policy_loss(ONE, ONE, ONE, ~YES)
    with pytest.raises(ValueError, match="one shape"):
        algo.policy_loss(ONE, ONE, ONE, torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="clip_low=1"):
        algo.policy_loss(ONE, ONE, ONE, YES, clip_low=1.0)
    with pytest.raises(ValueError, match="clip is 0"):
        algo.value_loss(ONE, ONE, ONE, YES, clip=0)
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        algo.kl_penalty(ONE, ONE, "k4")
