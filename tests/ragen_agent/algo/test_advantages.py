"""Returns as advantages: worked examples, and slow references written with plain loops."""

from __future__ import annotations

import math
import re
import statistics
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_agent import algo
from ragen_agent.config.algorithms import ADVANTAGE_RULES
from tests.ragen_agent.algo.tensors import GROUPS, ONE, RETURNS, ROWS, YES, close, masks, tensors


def test_equal_returns_give_no_advantage_whatever_the_rounding() -> None:
    returns = torch.full((1, 7), 0.1, dtype=torch.float32)
    assert not algo.group_normalised(returns).any()
    assert not algo.group_std(returns).any()


def test_every_rule_by_hand() -> None:
    """Group 1: mean 1/4, std 1/2. Group 2: mean 1/2, std 1. Batch: mean 3/8, squared deviations 3.875 over 7."""
    returns = torch.tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = {
        "grpo": [[1.5, -0.5, -0.5, -0.5], [1.5, -0.5, -0.5, -0.5]],
        "asymmetric_clip": [[1.5, -0.5, -0.5, -0.5], [1.5, -0.5, -0.5, -0.5]],
        "dr_grpo": [[0.75, -0.25, -0.25, -0.25], [1.5, -0.5, -0.5, -0.5]],
        "rloo": [[1.0, -1 / 3, -1 / 3, -1 / 3], [2.0, -2 / 3, -2 / 3, -2 / 3]],
        "reinforce": [[0.625, -0.375, -0.375, -0.375], [1.625, -0.375, -0.375, -0.375]],
        "arpo": returns.tolist(),
    }
    for rule, values in expected.items():
        close(algo.normalised(returns, rule, eps=0.0), values)
    for rule in ("brpo", "brpo_per_game"):
        close(algo.normalised(returns, rule, eps=0.0), (returns - 0.375) / math.sqrt(3.875 / 7))
    assert set(expected) | {"brpo", "brpo_per_game", "ppo"} == set(ADVANTAGE_RULES)


def test_the_scale_of_one_game_leaves_the_others_alone() -> None:
    """Each game of a mixture as it would be alone, whatever the other game pays."""
    returns = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    games, own = ["a", "b", "a", "b"], torch.tensor([True, False, True, False])
    found = algo.normalised(returns, "brpo_per_game", games=games)
    close(found[own], algo.normalised(returns[own], "brpo"))
    close(found[~own], algo.normalised(returns[~own], "brpo"))
    rich = torch.where(own[:, None], returns, 100 * returns + 7)
    close(algo.normalised(rich, "brpo_per_game", games=games)[own], found[own])
    assert float(algo.normalised(rich, "brpo", games=games)[own].std()) < 0.1  # one scale for all drowns it
    with pytest.raises(ValueError, match="3 games do not fit 4 groups"):
        algo.normalised(returns, "brpo_per_game", games=["a", "b", "a"])


def test_weighted_by_length_every_episode_pulls_alike() -> None:
    lengths = torch.tensor([2, 6, 4])
    weights = algo.length_weights(lengths)
    close(weights * lengths, [4.0, 4.0, 4.0])
    with pytest.raises(ValueError, match="at least 1 sampled token"):
        algo.length_weights(torch.tensor([3, 0]))


def test_the_asymmetric_clip_bounds_both_sides() -> None:
    """One of 17 differs: its normalised return is 16 / sqrt(17), about 3.9 on either side."""
    lucky = torch.zeros(1, 17, dtype=torch.float64)
    lucky[0, 3] = 1.0
    close(algo.normalised(lucky, "asymmetric_clip")[0, 3], 3.0)
    close(algo.normalised(-lucky, "asymmetric_clip")[0, 3], -1.0)
    assert float(algo.normalised(lucky)[0, 3]) > 3.8


def slow_rule(rule: str, value: float, group: list[float], batch: list[float]) -> float:
    """The formulas as the papers print them; `group` and `batch` hold every return that counts, this one too."""
    if rule == "arpo":
        return value
    own = batch if rule in ("brpo", "brpo_per_game", "reinforce") else group
    if len(set(own)) < 2:
        return 0.0
    if rule == "rloo":
        others = list(group)
        others.remove(value)
        return value - statistics.fmean(others)
    centred = value - statistics.fmean(own)
    if rule in ("dr_grpo", "reinforce"):
        return centred
    scaled = centred / (statistics.stdev(own) + 1e-6)
    return min(max(scaled, -1.0), 3.0) if rule == "asymmetric_clip" else scaled


@given(data=st.data(), shape=GROUPS, rule=st.sampled_from(sorted(set(ADVANTAGE_RULES) - {"ppo"})))
def test_rules_reference(data: st.DataObject, shape: tuple[int, int], rule: str) -> None:
    returns, counted = data.draw(tensors(shape, RETURNS)), data.draw(masks(shape))
    advantages = algo.normalised(returns, rule, counted=counted)
    batch = returns[counted].tolist()
    for group in range(shape[0]):
        values = returns[group, counted[group]].tolist()
        for member in range(shape[1]):
            value = float(returns[group, member])
            expected = slow_rule(rule, value, values, batch) if counted[group, member] else 0.0
            assert float(advantages[group, member]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("rule", sorted(set(ADVANTAGE_RULES) - {"ppo"}))
def test_integers_are_numbers(rule: str) -> None:
    returns = torch.tensor([[0, 1, 3], [2, 2, 2]])
    torch.testing.assert_close(algo.normalised(returns, rule), algo.normalised(returns.float(), rule))
    torch.testing.assert_close(algo.group_std(returns), algo.group_std(returns.float()))
    assert bool(algo.normalised(returns > 1, rule).isfinite().all())


@pytest.mark.parametrize("rule", sorted(set(ADVANTAGE_RULES) - {"ppo"}))
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_return_is_refused_and_a_failed_one_left_out(rule: str, broken: float) -> None:
    """Neither silences the rest of its group, or of the batch."""
    returns = torch.tensor([[0.0, 1.0, 3.0, 2.0], [5.0, broken, 1.0, 0.0]])
    refused = f"episode 1 of group 1 has {broken}, which is not a finite number; leave"
    with pytest.raises(ValueError, match=refused):
        algo.normalised(returns, rule)
    with pytest.raises(ValueError, match=refused):
        algo.group_std(returns)
    counted = returns.isfinite()
    found = algo.normalised(returns, rule, counted=counted)
    rest = algo.normalised(torch.where(counted, returns, 7.0), rule, counted=counted)
    assert torch.equal(found, rest)
    assert float(found[1, 1]) == 0
    assert bool(found[1, [0, 2, 3]].any())


def test_broadcast_to_tokens() -> None:
    sampled = torch.tensor([[False, True, True], [True, False, False]])
    close(algo.broadcast_to_tokens(torch.tensor([2.0, -1.0]), sampled), [[0.0, 2.0, 2.0], [-1.0, 0.0, 0.0]])


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


def test_turns_are_whitened_as_one_number_each() -> None:
    """Advantages 1 and 0 of turns of 4 tokens and of 1: over the two turns the mean is 1/2 and the variance 1/2."""
    advantages = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True, True, True, True, False, True]])
    ends = algo.turn_end_mask([[4, 6]], mask)
    root = math.sqrt(0.5)
    close(algo.whiten(advantages, mask, eps=0.0, over=ends), [[0.0, root, root, root, root, 0.0, -root]])
    close(algo.whiten(advantages, mask, eps=0.0)[0, 6], -0.8 / math.sqrt(0.2))
    assert not algo.whiten(advantages, mask, over=algo.turn_end_mask([[6]], mask)).any(), "one turn has no variance"


def test_bad_input_is_told() -> None:
    for rule in ("gpro", "ppo"):
        with pytest.raises(ValueError, match=f"rule is '{rule}'; it must be one of grpo"):
            algo.normalised(ONE, rule)
    for shape in ((3,), (2, 0)):
        with pytest.raises(ValueError, match="as \\(groups, group size\\)"):
            algo.normalised(torch.ones(shape))
    with pytest.raises(ValueError, match="do not fit"):
        algo.broadcast_to_tokens(torch.ones(2), YES)


def test_step_advantages_by_hand() -> None:
    """In a the returns are 1/2, 1/4, 1/2 and 0: mean 5/16, squared deviations (9 + 1 + 9 + 25) / 256 over 3."""
    states, returns = "abaaba", [0.5, 1.0, 0.25, 0.5, 1.0, 0.0]
    expected, std = [3 / 16, 0.0, -1 / 16, 3 / 16, 0.0, -5 / 16], math.sqrt(44 / 256 / 3)
    assert algo.step_advantages(states, returns, algo.less_mean).tolist() == pytest.approx(expected)
    assert algo.step_advantages(states, returns, eps=0.0).tolist() == pytest.approx([x / std for x in expected])
    assert algo.step_advantages([], []).shape == (0,)
    with pytest.raises(ValueError, match="1 returns do not fit 2 states"):
        algo.step_advantages("ab", [1.0])


def test_context_advantages_by_hand() -> None:
    """Two episodes a, b with returns 1 and 0 from b on, and one c, b with 5: three turns in b, two of them after a."""
    histories = ["a", "ab", "a", "ab", "c", "cb"]
    earned = [1.0, 1.0, 0.0, 0.0, 5.0, 5.0]
    # In b the mean is 2; after a it is 1/2, and the comparison weighs 2 of 3. Nothing is compared with c.
    expected = [0.5, (-1 + 2 * 0.5) / 3, -0.5, (-2 - 2 * 0.5) / 3, 0.0, 3.0]
    found = algo.context_advantages(histories, earned, 2, algo.less_mean)
    assert found.tolist() == pytest.approx(expected)
    alike = algo.context_advantages(histories, earned, 2, algo.less_mean, alpha=0.0)
    assert alike[1] == pytest.approx((-1 + 0.5) / 2)
    by_state = algo.step_advantages([each[-1] for each in histories], earned, algo.less_mean)
    assert algo.context_advantages(histories, earned, 0, algo.less_mean).tolist() == by_state.tolist()
    assert algo.context_advantages([], [], 2).shape == (0,)
    with pytest.raises(ValueError, match="before is -1; it is a number of earlier states, 0 or more"):
        algo.context_advantages(histories, earned, -1)


def test_discounted_returns_by_hand() -> None:
    assert algo.discounted_returns((1.0, 0.0, 4.0), 0.5) == [2.0, 2.0, 4.0]
    assert algo.discounted_returns((), 0.5) == []


def test_turns_to_tokens_by_hand() -> None:
    sampled = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    found = algo.turns_to_tokens([[1.5, -2.0], [3.0]], [[2, 4], [1]], sampled)
    assert found.tolist() == [[0, 1.5, 1.5, 0, -2.0, 0], [3.0, 3.0, 0, 0, 0, 0]]
    for turns in ([[1.5], [3.0]], [[1.5, -2.0]]):
        with pytest.raises(ValueError, match="one advantage for each turn"):
            algo.turns_to_tokens(turns, [[2, 4], [1]][: len(turns)], sampled)


def test_length_penalty_by_hand() -> None:
    """DAPO's soft overlong punishment with a limit of 20 tokens and a buffer of 8: from 12 on, down to -1 at 20."""
    lengths = torch.tensor([0, 12, 14, 20, 25])
    assert algo.length_penalty(lengths, 20, 8).tolist() == [0.0, 0.0, -0.25, -1.0, -1.0]
    assert algo.length_penalty(lengths, 20, 1).tolist() == [0.0, 0.0, 0.0, -1.0, -1.0]
    assert algo.length_penalty(lengths, 20, 20).tolist() == pytest.approx([0.0, -0.6, -0.7, -1.0, -1.0])
    for buffer in (0, 21):
        with pytest.raises(ValueError, match=f"buffer is {buffer}; it must be from 1 to limit, 20"):
            algo.length_penalty(lengths, 20, buffer)


@pytest.mark.parametrize("branches", [(2, 2), (3, 1), (2, 1)])
def test_advantages_of_a_tree_are_true_in_the_mean(branches: tuple[int, int]) -> None:
    """Two turns, each good or bad; the second pays 3, 1, 0 or 2 by both replies, the first 1 if good.

    The mean over every tree with its chance, of trees whose first episode has these replies, is Q - V by definition.
    """
    chance, pays = {True: 0.7, False: 0.3}, {(1, 1): 3.0, (1, 0): 1.0, (0, 1): 0.0, (0, 0): 2.0}
    value = {a: sum(chance[b] * pays[a, b] for b in chance) for a in chance}  # of the second turn, after reply a
    q = {a: a + value[a] for a in chance}
    firsts, size = branches[0], branches[0] * branches[1]
    total, weights = dict[Any, list[float]](), dict[Any, float]()
    for drawn in product((True, False), repeat=firsts + size):
        weight = math.prod(chance[reply] for reply in drawn)
        replies = [(drawn[row // branches[1]], drawn[firsts + row]) for row in range(size)]
        returns = [(a + pays[a, b], pays[a, b]) for a, b in replies]
        one, two = algo.tree_advantages(returns, branches)[0]
        for key, advantage in ((replies[0][:1], one), (replies[0], two)):
            total.setdefault(key, []).append(weight * advantage)
            weights[key] = weights.get(key, 0.0) + weight
    mean = {key: sum(values) / weights[key] for key, values in total.items()}
    start = sum(chance[a] * q[a] for a in chance)
    for a in chance:
        assert mean[a,] == pytest.approx(q[a] - start, abs=1e-5)
        for b in chance:
            # A second reply without siblings counts from the first on.
            right = pays[a, b] - value[a] if branches[1] > 1 else a + pays[a, b] - start
            assert mean[a, b] == pytest.approx(right, abs=1e-5)


def test_a_tree_without_branches_is_a_group() -> None:
    returns = [[1.0], [], [0.25, 0.25], [0.0, 0.0, 0.0]]  # one failed
    right = algo.normalised(
        torch.tensor([[1.0, 9.0, 0.25, 0.0]]), "rloo", counted=torch.tensor([[True, False, True, True]])
    )
    found = algo.tree_advantages(returns, [4])
    assert found == [pytest.approx([a] * len(own)) for a, own in zip(right[0].tolist(), returns, strict=True)]
    with pytest.raises(ValueError, match=r"branches are \[2\], whose product is not 4, the number of episodes"):
        algo.tree_advantages(returns, [2])
    for branches in ([1, 4], [], [2, 0]):
        with pytest.raises(ValueError, match=rf"branches are {re.escape(str(branches))}; give .* at least 2"):
            algo.tree_advantages(returns, branches)
