"""Stated budgets: the moves that a reply says are still needed, and their score against a distribution of moves.

The form, an interval or ``impossible``, is BAGEN's (arXiv 2606.00198). Moves to go are counted from the state that the
reply answers, its own moves included. With n moves left they are 1 to n where the play succeeds, and n + 1 stands for a
play that does not, so ``impossible`` is the interval from n + 1 to n + 1 and every statement has one score.
"""

from __future__ import annotations

import re
from math import inf

import numpy as np
import numpy.typing as npt

Budget = tuple[float, float]
"""The fewest and the most moves to go that a reply states."""

#: The budget of a reply that states ``impossible``: more moves than any number.
IMPOSSIBLE: Budget = (inf, inf)

#: Share of cases that a stated interval is asked to hold; the score's quantiles are (1 - COVERAGE) / 2 from each end.
COVERAGE = 0.8

_STATED = re.compile(r"\s*(?:impossible|\[\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\])\s*", re.IGNORECASE)

Chances = npt.NDArray[np.float64]
"""float64 (n + 2,): the probability of each number of moves to go, from 0 to n, and at the end of no success."""


def read_budget(text: str) -> Budget | None:
    """The budget ``[low, high]`` or ``impossible``; None for any other text, and for a low end above the high one."""
    match = _STATED.fullmatch(text)
    if match is None:
        return None
    if match[1] is None:
        return IMPOSSIBLE
    low, high = int(match[1]), int(match[2])
    return (low, high) if low <= high else None


def written(budget: Budget) -> str:
    """The text of a budget, which ``read_budget`` reads."""
    return "impossible" if budget == IMPOSSIBLE else f"[{budget[0]:.0f}, {budget[1]:.0f}]"


def within(budget: Budget, left: int) -> tuple[int, int]:
    """The interval that a budget states with so many moves left: numbers above them say that there is no success."""
    return int(min(budget[0], left + 1)), int(min(budget[1], left + 1))


def honest_budget(chances: Chances) -> Budget:
    """The budget with the best expected score: the two quantiles; ``IMPOSSIBLE`` where both say no success."""
    below = np.cumsum(chances) + 1e-9
    tail = (1 - COVERAGE) / 2
    low, high = (int(np.searchsorted(below, share)) for share in (tail, 1 - tail))
    return IMPOSSIBLE if low == len(chances) - 1 else (low, high)


def covered(budget: Budget, chances: Chances) -> float:
    """Probability that the moves to go lie in a budget."""
    low, high = within(budget, len(chances) - 2)
    return float(chances[low : high + 1].sum())


def interval_score(budget: Budget, chances: Chances) -> float:
    """The expected interval score in moves; 0 is best (Gneiting and Raftery, JASA 102, 2007, equation 43).

    S = (u - l) + 2/a (l - x) where x < l, + 2/a (x - u) where x > u, with a = 1 - ``COVERAGE`` and x the moves to go.
    """
    low, high = within(budget, len(chances) - 2)
    moves = np.arange(len(chances))
    missed = np.maximum(low - moves, 0) + np.maximum(moves - high, 0)
    return float(high - low + 2 / (1 - COVERAGE) * (chances @ missed))


def score_reward(budget: Budget, left: int, to_go: int) -> float:
    """A proper score of a budget by the moves to go that were played, ``left`` + 1 for none to a success.

    1 - S / (left + 1) with the interval score S: 1 for the number itself, 0 for the interval of every number.
    """
    return 1 - interval_score(budget, np.eye(left + 2)[to_go]) / (left + 1)


def bagen_reward(budget: Budget, left: int, to_go: int) -> float:
    """BAGEN's reward of a budget (arXiv 2606.00198, its code's ``budget_probe_reward.py``), from 0 to 1.8.

    0.2 for a right ``impossible``; 1.8 times 1 - width / ``to_go``, at least 0, for an interval that holds the moves to
    go; else 0. It is not proper: where all successes take the same number of moves, stating that number earns more than
    ``impossible`` from a chance of success of 0.1 on.
    """
    low, high = within(budget, left)
    if low > left or to_go > left:
        return 0.2 * (low > left and to_go > left)
    return 1.8 * max(0.0, 1 - (high - low) / to_go) if low <= to_go <= high else 0.0
