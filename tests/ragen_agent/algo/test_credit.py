"""Credit against processes whose right answer is known: with a perfect critic an advantage is Q - V."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ragen_agent import algo
from ragen_agent.config.algorithms import CREDITS
from tests.ragen_agent.algo.known_processes import Discount, Episode, Known, bandit, shaped, two_turns

GAMMA, GAMMA_TURN = 0.9, 0.8

#: The true discount of each credit's return, with the discounts above; within a turn bi-level credit discounts nothing
#: here, since with it VAGEN's two passes estimate no return otherwise.
DISCOUNTS: dict[str, Discount] = {
    "trajectory": lambda start, place, _: GAMMA ** (place - start),
    "turn": lambda _, __, turns: GAMMA_TURN**turns,
    "bi_level": lambda _, __, turns: GAMMA_TURN**turns,
    "regret": lambda _, __, turns: GAMMA_TURN**turns,
}

PROCESSES: dict[str, Callable[[], list[Episode]]] = {
    "two turns": two_turns,
    "mostly good": lambda: two_turns(0.75),
    "with luck": lambda: two_turns(0.25, luck=True),
    "bandit": bandit,
}


def estimated(
    credit: str, known: Known, lam: float, gamma: float = 1.0, gamma_turn: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, float64 (episodes, T), by a perfect critic of the process."""
    values, sampled = known.tensors()
    ends, rewards = [e.ends for e in known.episodes], [e.rewards for e in known.episodes]
    cost = torch.zeros_like(values)
    return algo.critic_advantages(
        ends, rewards, values, cost, sampled, credit, gamma=gamma, gamma_turn=gamma_turn, lam=lam
    )


def mean_over(known: Known, prefix: Sequence[int], place: int, found: Tensor) -> float:
    """Of what was found at a place, over the episodes that begin so."""
    rows = [row for row, e in enumerate(known.episodes) if e.ids[: len(prefix)] == list(prefix)]
    weights = [known.episodes[row].chance for row in rows]
    return sum(w * float(found[row, place]) for w, row in zip(weights, rows, strict=True)) / sum(weights)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("credit", CREDITS)
def test_with_a_perfect_critic_an_advantage_is_q_less_v(credit: str, process: str, lam: float) -> None:
    """In the mean over what follows, whatever lambda; shaping leaves it as it is (Ng et al. 1999)."""
    episodes = PROCESSES[process]()
    plain = seen = Known(episodes, DISCOUNTS[credit])
    if CREDITS[credit].shaped and process != "bandit":
        seen = Known(shaped(episodes, GAMMA_TURN), DISCOUNTS[credit])
    gamma = GAMMA if CREDITS[credit].recursion == "tokens" else 1.0
    advantages, targets = estimated(credit, seen, lam, gamma, GAMMA_TURN)
    by_turn = CREDITS[credit].recursion == "turns"
    for row, episode in enumerate(episodes):
        for start, end in zip(episode.starts, episode.ends, strict=True):
            for place in range(start, end + 1):
                state, action_ends = (start, end + 1) if by_turn else (place, place + 1)
                prefix = episode.ids[:action_ends]
                q, v = plain.mean_return(prefix, state), plain.value(episode.ids, state)
                assert mean_over(seen, prefix, place, advantages) == pytest.approx(q - v, abs=1e-12)
                target = mean_over(seen, episode.ids[:state], place if place == state else start, targets)
                assert target == pytest.approx(seen.value(episode.ids, state), abs=1e-12), "a critic stays perfect"
                if by_turn:
                    assert advantages[row, place] == advantages[row, start]
                    assert targets[row, place] == targets[row, start]


def test_a_masked_turn_has_the_value_before_its_first_token_that_is_left() -> None:
    """Answers alone (VAGEN, M_adv): the baseline is read after the thought, before the answer."""
    values = torch.tensor([[9.0, 0.25, 7.0, 7.0, 0.5, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True, True, False, True, True]])
    ends, rewards = algo.narrowed_turns([[2, 5]], [[1.0, 0.0]], mask)
    advantages, returns = algo.critic_advantages(
        ends, rewards, values, torch.zeros_like(values), mask, "turn", gamma_turn=1.0, lam=0.0
    )
    assert advantages.tolist() == [[0.0, 1.25, 1.25, 0.0, -0.5, -0.5]]
    assert returns.tolist() == [[0.0, 1.5, 1.5, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("credit", CREDITS)
def test_bandit(credit: str) -> None:
    """The safe arm pays 1/4, the risky one 1/2 in the mean, pulled as often, so V = 3/8: A is the payment less V."""
    known = Known(bandit())
    for lam in (0.0, 1.0):
        advantages, _ = estimated(credit, known, lam)
        first = [float(advantages[row, 1]) for row in range(3)]
        if CREDITS[credit].recursion == "turns" or lam == 1:
            assert first == pytest.approx([0.25 - 0.375, 1 - 0.375, 0 - 0.375])
        else:  # the pull itself decides no payment yet, but the arm
            assert first == pytest.approx([0.25 - 0.375, 0.5 - 0.375, 0.5 - 0.375])


@pytest.mark.parametrize("credit", CREDITS)
def test_two_state_chain(credit: str) -> None:
    """States a and b, each left by either action as likely, for good with a prize or to the other state.

    V solves V(a) = (0.5 + g V(b)) / 2 and V(b) = (1 + g V(a)) / 2; an action's advantage is its prize, or g times the
    other state's value, less that of its own.
    """
    g, prizes = 0.9, torch.tensor([0.5, 1.0], dtype=torch.float64)
    chain = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    worth = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - g * chain, prizes / 2)
    best = torch.tensor([max(0.5, g * 1.0), 1.0], dtype=torch.float64)  # V*: from a go to b, and there take the prize
    for path in ([0], [1], [0, 1], [1, 0], [0, 1, 0, 1, 0], [1, 0, 1, 0]):  # the states, the last of them left for good
        values = worth[path][None]
        rewards = [0.0] * (len(path) - 1) + [float(prizes[path[-1]])]
        if CREDITS[credit].shaped:
            values = values - best[path][None]
            rewards = algo.shaped_rewards(rewards, best[path].tolist(), g)
        mask = torch.ones(1, len(path), dtype=torch.bool)
        advantages, _ = algo.critic_advantages(
            [list(range(len(path)))],
            [rewards],
            values,
            torch.zeros_like(values),
            mask,
            credit,
            gamma=g,
            gamma_turn=g,
            lam=0.0,
        )
        goes_on = [g * worth[other] - worth[here] for here, other in pairwise(path)]
        expected = torch.stack([*goes_on, prizes[path[-1]] - worth[path[-1]]])
        torch.testing.assert_close(advantages[0], expected)
