"""When to stop a run early, decided on what it measured so far.

The two stops are RAGEN-2's (arXiv 2604.06268, training details): the return std within groups has fallen to a
tenth of what it was at the start and stays there, so that there is no more signal; or the policy fails on nearly
every validation level again and again. Both are functions of the whole history, so a resumed run stops where an
unbroken one would.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["spread_stop", "validation_stop"]


def spread_stop(history: Sequence[float], *, first: int = 10, share: float = 0.1, patience: int = 5) -> bool:
    """Whether the return std has been below ``share`` of its first iterations' mean for ``patience`` iterations.

    Args:
        history: each iteration's return std within groups, averaged over the groups.
        first: the iterations that say what it was at the start; they can stop nothing themselves.
        share: of the first iterations' mean, in (0, 1); 0.1 in RAGEN-2.
        patience: iterations in a row, at least 1; 5 to 10 in RAGEN-2.

    Returns:
        whether to stop now. A run whose returns never differed does not stop by this rule.

    Raises:
        ValueError: a share outside (0, 1), or ``first`` or ``patience`` below 1.
    """
    if not 0 < share < 1 or first < 1 or patience < 1:
        raise ValueError(
            f"first={first}, share={share}, patience={patience}; need first >= 1, 0 < share < 1, patience >= 1"
        )
    if len(history) < first + patience:
        return False
    bound = share * sum(history[:first]) / first
    return all(std < bound for std in history[-patience:])


def validation_stop(history: Sequence[float], *, floor: float = 0.01, times: int = 5) -> bool:
    """Whether the last ``times`` validations were all below ``floor``.

    Args:
        history: the success rates of the validations so far, in [0, 1].
        floor: the rate that a living policy reaches; 0.01 in RAGEN-2.
        times: validations in a row, at least 1; 5 in RAGEN-2.

    Raises:
        ValueError: a floor outside (0, 1], or ``times`` below 1.
    """
    if not 0 < floor <= 1 or times < 1:
        raise ValueError(f"floor={floor}, times={times}; need 0 < floor <= 1 and times >= 1")
    return len(history) >= times and all(rate < floor for rate in history[-times:])
