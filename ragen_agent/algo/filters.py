"""Which groups of episodes to learn from: the uncertainty filter of StarPO-S, and the rules it is compared with.

RAGEN (arXiv 2504.20073), section on StarPO-S: the uncertainty of a level is U(s0) = Std of the returns of its
episodes, and each iteration keeps the share p (25 %) of the levels whose uncertainty is largest. RAGEN-2 (arXiv
2604.06268) filters by the variance and keeps a share of its sum (top-p), or what reaches a part of the largest
(min-p); its control keeps the smallest. A group in which every return is the same teaches nothing: its advantages are
all zero. Any number of each episode can be filtered by, such as its entropy or its length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_agent.config.algorithms import FILTER_RULES
from ragen_gym.core.validation import load_object

__all__ = [
    "NO_SPREAD",
    "keep_all",
    "keep_bottom",
    "keep_groups",
    "keep_min_p",
    "keep_random",
    "keep_random_spread",
    "keep_top",
    "keep_top_p",
    "spread",
    "spread_weights",
]

NO_SPREAD = 1e-6
"""Spreads up to this are rounding, not disagreement: equal returns summed in another order differ by less."""


def spread(values: Tensor, counted: Tensor | None = None, statistic: str = "std") -> Tensor:
    """How much the episodes of each group differ: by default the uncertainty U(s0) (RAGEN, StarPO-S).

    The divisor is G - 1 (the sample standard deviation), as in the reward variance of RAGEN-2 (arXiv
    2604.06268) and in the normalisation of ``normalised``; with groups of one size the order does not
    depend on it.

    Args:
        values: float (groups, group size), a number of each episode: its return, its mean entropy, its length.
        counted: bool (groups, group size) or None; episodes that failed are False and are left out. None
            counts all.
        statistic: "std", or "variance" (RAGEN-2).

    Returns:
        float (groups,), at least 0; exactly 0 where all counted values are equal or fewer than two count.

    Raises:
        ValueError: values of another shape, an unknown statistic.
    """
    if values.ndim != 2:
        raise ValueError(f"returns has shape {tuple(values.shape)}; give it as (groups, group size)")
    if statistic not in ("std", "variance"):
        raise ValueError(f"statistic is {statistic!r}; it must be std or variance")
    keep = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
    number = keep.sum(dim=1)
    safe = torch.where(keep, values, torch.zeros_like(values))
    mean = safe.sum(dim=1) / number.clamp(min=1)
    squares = torch.where(keep, (safe - mean[:, None]) ** 2, torch.zeros_like(values)).sum(dim=1)
    infinity = torch.full_like(values, float("inf"))
    low = torch.where(keep, values, infinity).amin(dim=1)
    high = torch.where(keep, values, -infinity).amax(dim=1)
    variance = squares / (number - 1).clamp(min=1)
    # The mean of equal numbers need not be that number in floating point, so equality is decided directly.
    return torch.where(high > low, variance.sqrt() if statistic == "std" else variance, torch.zeros_like(mean))


def keep_groups(spread: Tensor, rule: str, amount: float, generator: torch.Generator | None = None) -> Tensor:
    """The groups to learn from by one of ``ragen_agent.config.algorithms.FILTER_RULES``.

    Args:
        spread: float (groups,), as ``spread`` returns it.
        rule: a key of ``FILTER_RULES``.
        amount: what the rule keeps, in (0, 1]; "none" does not read it.
        generator: the source of randomness of the random rules; the others need none.

    Returns:
        bool (groups,), on the device of ``spread``. None may be kept: the caller then skips the update.

    Raises:
        ValueError: an unknown rule, an amount outside (0, 1], a random rule without a generator.
    """
    if rule not in FILTER_RULES:
        raise ValueError(f"rule is {rule!r}; it must be one of {', '.join(FILTER_RULES)}")
    row = FILTER_RULES[rule]
    if row.random and generator is None:
        raise ValueError(f"the rule {rule!r} needs a generator")
    kept: Tensor = load_object(row.function)(spread, amount, *([generator] if row.random else []))
    return kept


def keep_all(spread: Tensor, amount: float = 1.0) -> Tensor:
    """Every group; the amount is not read."""
    return torch.ones_like(spread, dtype=torch.bool)


def keep_top(spread: Tensor, share: float = 0.25) -> Tensor:
    """The groups with the largest spread (RAGEN, StarPO-S: "keep the top p % of the instances").

    The number kept is ``share * groups`` rounded down, at least one. Of groups with the same spread the one
    with the smaller index goes first. Groups without spread (up to ``NO_SPREAD``) are never kept, so fewer
    may be kept and, when no group has any spread, none: the caller then has nothing to learn from and skips
    the update.

    Args:
        spread: float (groups,), as ``spread`` returns it.
        share: the share p of the groups to keep, in (0, 1].

    Returns:
        bool (groups,), True where the group is kept.

    Raises:
        ValueError: the share is outside (0, 1], or a spread is negative or not finite.
    """
    number = _number_kept(len(spread), share)
    return _mask(spread, _ranked(spread)[:number]) & (spread > NO_SPREAD)


def keep_bottom(spread: Tensor, share: float = 0.25) -> Tensor:
    """The groups with the smallest spread that have any: the reverse filter, a control (RAGEN-2).

    As many as ``keep_top`` would keep, and of equal spreads the group with the smaller index; groups without spread
    are dropped here too, so that the two differ in nothing but the order.
    """
    number = _number_kept(len(spread), share)
    order = _ranked(spread, descending=False)
    return _mask(spread, order[spread[order] > NO_SPREAD][:number])


def keep_top_p(spread: Tensor, mass: float = 0.9) -> Tensor:
    """The fewest groups whose spreads, from the largest, sum to at least ``mass`` of the total (RAGEN-2, top-p).

    RAGEN-2 sums variances: give ``spread(..., statistic="variance")``. How many are kept follows the batch: few when a
    few groups hold all the disagreement, most when all disagree alike.

    ``mass`` is the paper's rho, in (0, 1]. Groups without spread are never kept; errors as of ``keep_top``.
    """
    _check_share("mass", mass)
    order = _ranked(spread)
    ranked = torch.where(spread[order] > NO_SPREAD, spread[order], torch.zeros_like(spread)).double()
    before = ranked.cumsum(0) - ranked
    # A group is needed while those before it have not reached the goal; the small share keeps a sum that reaches it
    # but for rounding from taking one group more.
    return _mask(spread, order[(before < mass * ranked.sum() * (1 - 1e-9)) & (ranked > 0)])


def keep_min_p(spread: Tensor, part: float = 0.5) -> Tensor:
    """The groups whose spread is at least ``part`` of the largest (RAGEN-2, min-p).

    ``part`` is in (0, 1]. Groups without spread are never kept; errors as of ``keep_top``.
    """
    _check_share("part", part)
    _check_spread(spread)
    if not len(spread):
        return torch.zeros_like(spread, dtype=torch.bool)
    return (spread >= part * spread.max()) & (spread > NO_SPREAD)


def keep_random(spread: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Choose as many groups as ``keep_top`` allows at random: the control of equal samples and equal steps.

    It keeps groups without spread too, which teach nothing; see ``keep_random_spread``. The choice is made on the
    device of ``generator``.
    """
    order = torch.randperm(len(spread), generator=generator, device=generator.device).to(spread.device)
    return _mask(spread, order[: _number_kept(len(spread), share)])


def keep_random_spread(spread: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Choose at random from the groups that have any spread, as many as ``keep_top`` keeps.

    A filter by spread does two things: it leaves out groups that teach nothing, and of the others it prefers those
    with the largest spread. Compared with this control, only the second is left. Errors as of ``keep_top``.
    """
    _check_spread(spread)
    order = torch.randperm(len(spread), generator=generator, device=generator.device).to(spread.device)
    return _mask(spread, order[spread[order] > NO_SPREAD][: _number_kept(len(spread), share)])


def spread_weights(spread: Tensor, power: float = 1.0) -> Tensor:
    """Soft reweighting: every group stays, with a weight that grows with its spread (RAGEN-2's soft variant).

    weight = spread^power / mean(spread^power), so that the weights have mean 1 and the step keeps its scale. Power 0
    weighs all groups that have any spread alike; a large one comes close to keeping only the largest. With GRPO, whose
    advantages are divided by the std, power 1 on the std gives the advantages of Dr. GRPO up to one factor for the
    whole batch.

    Args:
        spread: float (groups,), at least 0.
        power: at least 0.

    Returns:
        float (groups,), to multiply the advantages with; 0 everywhere where no group has any spread.

    Raises:
        ValueError: the power is negative, or a spread is negative or not finite.
    """
    if not power >= 0:
        raise ValueError(f"power is {power}; it must be at least 0, for example 1")
    _check_spread(spread)
    weights = torch.where(spread > NO_SPREAD, spread**power, torch.zeros_like(spread))
    return weights / weights.mean().clamp(min=torch.finfo(spread.dtype).tiny) if len(spread) else weights


def _mask(spread: Tensor, chosen: Tensor) -> Tensor:
    kept = torch.zeros_like(spread, dtype=torch.bool)
    kept[chosen] = True
    return kept


def _ranked(spread: Tensor, descending: bool = True) -> Tensor:
    _check_spread(spread)
    return torch.sort(spread, descending=descending, stable=True).indices


def _check_spread(spread: Tensor) -> None:
    if not bool(torch.isfinite(spread).all()) or bool((spread < 0).any()):
        raise ValueError(
            f"spreads must be finite and at least 0, got {spread.tolist()}; "
            "leave failed episodes out with spread(returns, counted)"
        )


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"{name} is {share}; it must be above 0 and at most 1, for example 0.25")


def _number_kept(groups: int, share: float) -> int:
    _check_share("share", share)
    # The small addition keeps a product such as 0.29 * 100 = 28.999... from losing a group to rounding.
    return min(groups, max(1, int(share * groups + 1e-9)))
