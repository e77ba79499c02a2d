"""Exact expected gradient of one choice between two ways to play, by estimator, filter and group size.

A policy takes the risky way with probability q = sigmoid(theta), the safe way else; each way has a distribution of
returns. The drift is the expected gradient that one iteration applies to theta: E[mean over the kept episodes of
A_i d log pi_i / d theta], with d log pi / d theta = 1 - q for the risky way and -q for the safe one. Above 0 the policy
is pushed to the risky way.

Outcomes of a group are counts of (way, return), so the expectation is a sum over a multinomial distribution; nothing is
sampled. Advantages of each outcome come from ``ragen_agent.algo``. With the filter, the groups of a batch compete: the
probability that a group is kept, and the number kept, follow from how many of the others have a larger, an equal, a
smaller and no return std (``_kept``), so the result is exact for a batch of ``GROUPS`` groups too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ragen_agent import algo
from ragen_agent.config.algorithms import FILTER_RULES

GROUPS, KEEP = 8, 0.5
"""Groups of a batch, and the share that the filter keeps, as in the table ``risk``."""

CRITIC = "critic"
ESTIMATORS = {"GRPO": "grpo", "Dr. GRPO": "dr_grpo", "RLOO": "rloo", CRITIC: CRITIC}
"""Estimators by name, and their rule in ``ADVANTAGE_RULES``; the critic is exact and not whitened."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """Two ways to play: each a distribution of returns, as (return, probability) pairs."""

    safe: tuple[tuple[float, float], ...]
    risky: tuple[tuple[float, float], ...]

    @property
    def means(self) -> tuple[float, float]:
        """Mean returns of the safe and of the risky way."""
        safe, risky = (sum(value * chance for value, chance in way) for way in (self.safe, self.risky))
        return safe, risky


def bandit(chance: float, high: float = 1.0, low: float = 0.15) -> Choice:
    """One pull: ``low`` for sure, or ``high`` with this chance and else 0."""
    return Choice(((low, 1.0),), ((high, chance), (0.0, 1 - chance)))


def bernoulli(safe: float, risky: float) -> Choice:
    """Returns of 0 or 1, as on a lake: the probability of success of each way."""
    return Choice(((1.0, safe), (0.0, 1 - safe)), ((1.0, risky), (0.0, 1 - risky)))


WORLDS = {"better": bandit(0.25), "worse": bandit(0.1), "equal": bandit(0.15)}
"""Bandits in which the risky arm pays more, less and the same on average."""


def drift(
    choice: Choice, q: float, size: int, estimator: str, *, filtered: bool = False, groups: int = GROUPS
) -> float:
    """The expected gradient of the logit of the risky way.

    Args:
        choice: the two ways.
        q: probability of the risky way, in (0, 1).
        size: episodes of a group, at least 2.
        estimator: a key of ``ESTIMATORS``.
        filtered: keep the half of the groups with the largest return std (``keep_top``).
        groups: groups of a batch; without a filter the result does not depend on it.

    Returns:
        the drift; its sign is the direction in which the expected step goes.
    """
    chances, gradient, std = gradients(choice, q, size, estimator)
    weights = _kept(chances, std, groups) if filtered else np.ones_like(chances)
    return float((chances * weights * gradient).sum())


def gradients(choice: Choice, q: float, size: int, estimator: str) -> tuple[Numbers, Numbers, Numbers]:
    """Each outcome of a group: probability, mean of A_i d log pi_i / d theta, return std; arguments as in ``drift``."""
    outcomes = _outcomes(*(tuple(value for value, _ in way) for way in (choice.safe, choice.risky)), size)
    ways = [(1 - q) * chance for _, chance in choice.safe] + [q * chance for _, chance in choice.risky]
    chances = _arrangements(size, len(ways)) * np.prod(np.array(ways) ** outcomes.counts, axis=1)
    if estimator == CRITIC:
        safe_mean, risky_mean = choice.means
        advantages = _critic(outcomes.returns, q * risky_mean + (1 - q) * safe_mean)
    else:
        advantages = algo.normalised(outcomes.returns, ESTIMATORS[estimator])
    gradient = (advantages.numpy() * (outcomes.risky - q)).mean(axis=1)
    return chances, gradient, outcomes.std


def worth(choice: Choice, q: float, size: int, estimator: str) -> dict[float, float]:
    """h(r): the mean advantage of an episode with return r, over the others of its group; arguments as in ``drift``."""
    outcomes = _outcomes(*(tuple(value for value, _ in way) for way in (choice.safe, choice.risky)), size)
    chances, _, _ = gradients(choice, q, size, estimator)
    advantages = algo.normalised(outcomes.returns, ESTIMATORS[estimator]).numpy()
    found = {}
    for value in sorted({value for way in (choice.safe, choice.risky) for value, _ in way}):
        having = outcomes.returns.numpy() == value
        found[value] = float(chances @ (advantages * having).sum(axis=1) / (chances @ having.sum(axis=1)))
    return found


class _Outcomes(NamedTuple):
    """The different outcomes of a group, one a row."""

    counts: npt.NDArray[np.int64]  # (rows, ways and returns): episodes of each
    risky: Numbers  # (rows, group size): 1 for the risky way
    returns: torch.Tensor  # float64 (rows, group size)
    std: Numbers  # (rows,)


@lru_cache
def _outcomes(safe: tuple[float, ...], risky: tuple[float, ...], size: int) -> _Outcomes:
    kinds = np.array([(0.0, value) for value in safe] + [(1.0, value) for value in risky])
    counts = np.array(list(_compositions(size, len(kinds))))
    members = kinds[np.array([np.repeat(np.arange(len(kinds)), row) for row in counts])]
    returns = torch.tensor(members[:, :, 1])
    return _Outcomes(counts, members[:, :, 0], returns, algo.group_std(returns).numpy())


def _critic(returns: torch.Tensor, value: float) -> torch.Tensor:
    """Advantages of episodes of one token by a critic that knows their value."""
    different, places = returns.unique(return_inverse=True)
    rows = different.reshape(-1, 1)
    ends, rewards = [[0]] * len(rows), rows.tolist()
    values, mask = torch.full_like(rows, value), torch.ones_like(rows, dtype=torch.bool)
    advantages, _ = algo.critic_advantages(
        ends, rewards, values, torch.zeros_like(rows), mask, "trajectory", gamma=1.0, gamma_turn=1.0, lam=1.0
    )
    return advantages[:, 0][places]


def _kept(chances: Numbers, std: Numbers, groups: int) -> Numbers:
    """Each outcome's expected weight in the mean over the kept groups of a batch, times ``groups``.

    A group is one of K kept groups and weighs 1 / K. Of the other groups h have a larger std, e the same, l a smaller
    one above 0 and the rest none: K = min(most, 1 + h + e + l), and the group is kept with probability (most - h) /
    (e + 1), between 0 and 1, for ties go to the smaller index, and indices are exchangeable.
    """
    most = FILTER_RULES["top"].planned_groups(groups, KEEP)
    weights = np.zeros_like(chances)
    rounded = np.round(std, 9)
    others = np.array(list(_compositions(groups - 1, 4)))
    higher, equal, lower = others[:, 0], others[:, 1], others[:, 2]
    in_batch = np.clip((most - higher) / (equal + 1), 0, 1) / np.minimum(most, 1 + higher + equal + lower)
    for level in np.unique(rounded[rounded > 0]):
        shares = [chances[rounded > level].sum(), chances[rounded == level].sum()]
        shares += [chances[(rounded < level) & (rounded > 0)].sum(), chances[rounded == 0].sum()]
        probability = _arrangements(groups - 1, 4) * np.prod(np.array(shares) ** others, axis=1)
        weights[rounded == level] = groups * float((probability * in_batch).sum())
    return weights


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as an ordered sum of ``parts`` whole numbers from 0 on."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


@lru_cache
def _arrangements(total: int, parts: int) -> Numbers:
    """The multinomial coefficient of each of ``_compositions``."""
    return np.array([_coefficient(row) for row in _compositions(total, parts)], dtype=np.float64)


def _coefficient(counts: Sequence[int]) -> int:
    return prod(comb(sum(counts[: place + 1]), count) for place, count in enumerate(counts))
