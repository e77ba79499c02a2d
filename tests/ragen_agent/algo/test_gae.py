"""Credit by token, by turn and by both: worked examples, and the papers' sums written out with plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from tests.ragen_agent.algo.tensors import ONE, ROWS, YES, close, masks, tensors, turns


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


# Two turns of two tokens with an observation between them. The values at the turns' first tokens are 1 and 4, at their
# ends 2 and 6; the observation's 100 plays no part.
SAMPLED = torch.tensor([[True, True, False, True, True]])
VALUES = torch.tensor([[1.0, 2.0, 100.0, 4.0, 6.0]], dtype=torch.float64)
ENDS = [[1, 4]]


def test_turn_wise_gae_by_hand() -> None:
    """gamma_turn 1/2, lambda 1/2, rewards 3 and 8, values before the turns 1 and 4.

    Second turn: A = 8 - 4 = 4. First: delta = 3 + 4/2 - 1 = 4, A = 4 + 4/4 = 5. Returns: 4 + 4 and 1 + 5.
    """
    rewards = torch.tensor([[0.0, 3.0, 0.0, 0.0, 8.0]], dtype=torch.float64)
    advantages, returns = algo.turn_wise_gae(rewards, VALUES, SAMPLED, ENDS, gamma_turn=0.5, lam=0.5)
    close(advantages, [[5.0, 5.0, 0.0, 4.0, 4.0]])
    close(returns, [[6.0, 6.0, 0.0, 8.0, 8.0]])


def test_bi_level_gae_by_hand() -> None:
    """The same turns, gamma_token 1, lambda 1/2, from the values at the ends, as VAGEN's: r' = 6.5 and 8.

    At the ends A = 8 - 6 = 2, and delta = 3 + 6/2 - 2 = 4, A = 4 + 2/4 = 4.5.

    Second turn's first token: delta = 0 + 6 - 4 = 2, A = 2 + 2/2 = 3. First turn's: delta = 0 + 2 - 1 = 1,
    A = 1 + 4.5/2 = 3.25.
    """
    rewards = torch.tensor([[0.0, 3.0, 0.0, 0.0, 8.0]], dtype=torch.float64)
    advantages, returns = algo.bi_level_gae(rewards, VALUES, SAMPLED, ENDS, gamma_turn=0.5, gamma_token=1.0, lam=0.5)
    close(advantages, [[3.25, 4.5, 0.0, 3.0, 2.0]])
    close(returns, [[4.25, 6.5, 0.0, 7.0, 8.0]])


def test_narrowed_turns_keep_what_was_earned() -> None:
    """The first turn keeps nothing: the next takes its reward. The last keeps nothing: the one before takes it."""
    mask = torch.tensor([[False, False, True, False, True, False, False, False]])
    ends, rewards = algo.narrowed_turns([[1, 3, 5, 7]], [[1.0, 2.0, 4.0, 8.0]], mask)
    assert (ends, rewards) == ([[2, 4]], [[3.0, 12.0]])
    assert algo.narrowed_turns([[1]], [[1.0]], torch.zeros(1, 2, dtype=torch.bool)) == ([[]], [[]])


@given(data=st.data(), shape=ROWS)
def test_narrowed_turns_fit_every_estimator(data: st.DataObject, shape: tuple[int, int]) -> None:
    sampled = data.draw(masks(shape))
    ends = data.draw(turns(sampled))
    earned = [[data.draw(st.sampled_from([0.0, 0.5, -1.0])) for _ in row] for row in ends]
    mask = sampled & data.draw(masks(shape))
    new_ends, new_earned = algo.narrowed_turns(ends, earned, mask)
    values = data.draw(tensors(shape))
    rewards = algo.rewards_at(new_ends, new_earned, values)
    for row in range(shape[0]):
        if mask[row].any():
            assert sum(new_earned[row]) == pytest.approx(sum(earned[row]))
            assert new_ends[row][-1] == mask[row].nonzero().flatten().tolist()[-1]
    advantages, _ = algo.bi_level_gae(rewards, values, mask, new_ends)
    assert not advantages[~mask].any()
    assert not algo.gae(rewards, values, mask)[0][~mask].any()


def test_part_mask() -> None:
    sampled = torch.tensor([[False, True, True, True], [True, True, False, True]])
    mask = algo.part_mask([[(0, 2)], [(1, 3), (3, 4)]], sampled)
    assert mask.tolist() == [[False, True, False, False], [False, True, False, True]]


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="share one shape"):
        algo.gae(ONE, torch.ones(1, 2), YES)
    two_ones, first, two = ONE.expand(1, 2), torch.tensor([[True, False]]), YES.expand(1, 2)
    with pytest.raises(ValueError, match="last sampled token"):
        algo.gae(two_ones, two_ones, first)
    values = torch.zeros(1, 2)
    for ends, message in (
        ([[0], [1]], "2 rows of turn ends"),
        ([[1, 0]], "must ascend"),
        ([[0]], "after its last turn end"),
    ):
        with pytest.raises(ValueError, match=message):
            algo.bi_level_gae(values, values, two, ends)
    with pytest.raises(ValueError, match="stand at tokens of the mask"):
        algo.turn_wise_gae(values, values, first, [[1]])
    with pytest.raises(ValueError, match=r"span \(1, 3\) of row 0"):
        algo.part_mask([[(1, 3)]], two)
    with pytest.raises(ValueError, match="credit is 'token'; it must be one of trajectory"):
        algo.critic_advantages([[0]], [[1.0]], ONE, ONE, YES, "token")
    with pytest.raises(ValueError, match="row 0 has 1 turns and 2 rewards"):
        algo.rewards_at([[1]], [[1.0, 2.0]], values)
