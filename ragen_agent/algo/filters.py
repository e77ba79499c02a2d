"""Which groups of episodes to learn from: the uncertainty filter of StarPO-S.

RAGEN (arXiv 2504.20073), section on StarPO-S: the uncertainty of a level is U(s0) = Std of the returns of its
episodes, and each iteration keeps the share p (25 %) of the levels whose uncertainty is largest. A group in
which every return is the same teaches nothing: its advantages are all zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NO_SPREAD", "keep_random", "keep_top", "spread"]

NO_SPREAD = 1e-6
"""Spreads up to this are rounding, not disagreement: equal returns summed in another order differ by less."""


def spread(returns: Tensor, counted: Tensor | None = None) -> Tensor:
    """The uncertainty U(s0) of each group: the standard deviation of its returns (RAGEN, StarPO-S).

    The divisor is G - 1 (the sample standard deviation), as in the reward variance of RAGEN-2 (arXiv
    2604.06268) and in the normalisation of `group_normalised`; with groups of one size the order does not
    depend on it.

    Args:
        returns: float (groups, members), the return of each episode.
        counted: bool (groups, members) or None; episodes that failed are False and are left out. None
            counts all.

    Returns:
        float (groups,), at least 0; exactly 0 where all counted returns are equal or fewer than two count.
    """
    if returns.ndim != 2:
        raise ValueError(f"returns has shape {tuple(returns.shape)}; give it as (groups, members)")
    keep = torch.ones_like(returns, dtype=torch.bool) if counted is None else counted
    number = keep.sum(dim=1)
    safe = torch.where(keep, returns, torch.zeros_like(returns))
    mean = safe.sum(dim=1) / number.clamp(min=1)
    squares = torch.where(keep, (safe - mean[:, None]) ** 2, torch.zeros_like(returns)).sum(dim=1)
    infinity = torch.full_like(returns, float("inf"))
    low = torch.where(keep, returns, infinity).amin(dim=1)
    high = torch.where(keep, returns, -infinity).amax(dim=1)
    # The mean of equal numbers need not be that number in floating point, so equality is decided directly.
    return torch.where(high > low, (squares / (number - 1).clamp(min=1)).sqrt(), torch.zeros_like(mean))


def keep_top(spread: Tensor, share: float = 0.25) -> Tensor:
    """The groups with the largest spread (RAGEN, StarPO-S: "keep the top p % of the instances").

    The number kept is `share * groups` rounded down, at least one. Of groups with the same spread the one
    with the smaller index goes first. Groups without spread (up to `NO_SPREAD`) are never kept, so fewer
    may be kept and, when no group has any spread, none: the caller then has nothing to learn from and skips
    the update.

    Args:
        spread: float (groups,), as `spread` returns it.
        share: the share p of the groups to keep, in (0, 1].

    Returns:
        bool (groups,), True where the group is kept.

    Raises:
        ValueError: the share is outside (0, 1], or a spread is negative or not finite.
    """
    number = _number_kept(len(spread), share)
    if not bool(torch.isfinite(spread).all()) or bool((spread < 0).any()):
        raise ValueError(
            f"spreads must be finite and at least 0, got {spread.tolist()}; "
            "leave failed episodes out with spread(returns, counted)"
        )
    order = torch.sort(spread, descending=True, stable=True).indices
    kept = torch.zeros_like(spread, dtype=torch.bool)
    kept[order[:number]] = True
    return kept & (spread > NO_SPREAD)


def keep_random(groups: int, share: float, generator: torch.Generator) -> Tensor:
    """Choose as many groups as `keep_top` allows at random: the control that shows what the filter adds.

    Args:
        groups: how many groups there are.
        share: the share of the groups to keep, in (0, 1].
        generator: the source of randomness; on its device the choice is made.

    Returns:
        bool (groups,), True where the group is kept; `max(1, floor(share * groups))` are (none of no groups).

    Raises:
        ValueError: the share is outside (0, 1].
    """
    kept = torch.zeros(groups, dtype=torch.bool, device=generator.device)
    order = torch.randperm(groups, generator=generator, device=generator.device)
    kept[order[: _number_kept(groups, share)]] = True
    return kept


def _number_kept(groups: int, share: float) -> int:
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must be above 0 and at most 1, for example 0.25")
    # The small addition keeps a product such as 0.29 * 100 = 28.999... from losing a group to rounding.
    return min(groups, max(1, int(share * groups + 1e-9)))
