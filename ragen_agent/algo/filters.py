"""Group filters: the uncertainty filter of StarPO-S and the rules it is compared with.

RAGEN (arXiv 2504.20073), section on StarPO-S: the uncertainty of a level is U(s0) = Std of the returns of its
episodes, and each iteration keeps the share p (25 %) of the levels whose uncertainty is largest. RAGEN-2 (arXiv
2604.06268) filters by the variance. It keeps the groups that hold a share of the total variance (top-p), or those
groups whose variance reaches a fraction of the largest (min-p); its control keeps the smallest. Its released runs take
top-p over a softmax of the stds, which keeps most groups. A group with equal returns teaches nothing: its advantages
are all zero. Other numbers of an episode, such as entropy or length, work as well.
"""

from __future__ import annotations

from pkgutil import resolve_name

import torch
from torch import Tensor

from ragen_agent.algo.aggregation import as_float
from ragen_agent.config.algorithms import FILTER_RULES

MIN_UNCERTAINTY = 1e-6
"""Stds up to this count as 0: equal returns summed in another order differ by less."""


def group_std(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """The sample standard deviation of each group; for returns, the uncertainty U(s0) (RAGEN, StarPO-S).

    The divisor is G - 1, as in the reward variance of RAGEN-2 (arXiv 2604.06268) and in ``normalised``.

    Args:
        values: (groups, group size), a number of each episode: its return, mean entropy or length.
        counted: bool (groups, group size), False for failed episodes, which are left out; None counts all.

    Returns:
        float (groups,); exactly 0 if the counted values are equal (see ``MIN_UNCERTAINTY``) or fewer than two count.
    """
    return group_variance(values, counted).sqrt()


def group_variance(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """The square of ``group_std``, by which RAGEN-2 filters."""
    values, keep = finite_groups(values, counted)
    number = keep.sum(dim=1)
    mean = values.sum(dim=1) / number
    squares = torch.where(keep, (values - mean[:, None]) ** 2, torch.zeros_like(values)).sum(dim=1)
    infinity = torch.full_like(values, float("inf"))
    low = torch.where(keep, values, infinity).amin(dim=1)
    high = torch.where(keep, values, -infinity).amax(dim=1)
    variance = squares / (number - 1)
    # The floating-point mean of equal numbers may differ from them, so equality is checked directly too.
    return torch.where((high > low) & (variance > MIN_UNCERTAINTY**2), variance, torch.zeros_like(mean))


def group_mean_order(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """The place of each group in the ascending order of their mean values.

    RAGEN's code can filter by the mean reward. Only the order is used here, since means may be negative. Groups
    whose values are all equal are left out, as by the other statistics: they teach nothing.

    Returns:
        float (groups,), whole numbers from 1 on, equal for equal means; 0 for groups without different values.
    """
    differ = group_std(values, counted) > 0
    values, keep = finite_groups(values, counted)
    order = torch.zeros(len(values), dtype=values.dtype, device=values.device)
    means = values[differ].sum(dim=1) / keep[differ].sum(dim=1)
    order[differ] = torch.unique(means, return_inverse=True)[1].to(values.dtype) + 1
    return order


def finite_groups(values: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Values of the episodes as float, 0 if not counted, and the mask of counted ones, bool of the same shape."""
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"values has shape {tuple(values.shape)}; give it as (groups, group size)")
    keep = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
    for group, member in (keep & ~values.isfinite()).nonzero().tolist():
        raise ValueError(
            f"episode {member} of group {group} has {float(values[group, member])}, which is not a finite number; "
            "leave an episode that failed out: counted is False there."
        )
    values = as_float(values)
    return torch.where(keep, values, torch.zeros_like(values)), keep


def keep_groups(uncertainty: Tensor, rule: str, amount: float, generator: torch.Generator | None = None) -> Tensor:
    """The groups to learn from by one of ``ragen_agent.config.algorithms.FILTER_RULES``.

    Args:
        uncertainty: float (groups,), as ``group_std`` returns it.
        rule: a key of ``FILTER_RULES``.
        amount: the amount that the rule keeps, in (0, 1], or with "top_k" a number; "none" ignores it.
        generator: random generator of the random rules; others ignore it.

    Returns:
        bool (groups,), on the device of ``uncertainty``. If no group is kept, the caller skips the update.
    """
    if rule not in FILTER_RULES:
        raise ValueError(f"rule is {rule!r}; it must be one of {', '.join(FILTER_RULES)}")
    row = FILTER_RULES[rule]
    if row.random and generator is None:
        raise ValueError(f"the rule {rule!r} needs a generator")
    kept: Tensor = resolve_name(row.function)(uncertainty, amount, *([generator] if row.random else []))
    return kept


def keep_all(uncertainty: Tensor, amount: float = 1.0) -> Tensor:
    """Keep every group; the amount is ignored."""
    return torch.ones_like(uncertainty, dtype=torch.bool)


def keep_top(uncertainty: Tensor, share: float = 0.25) -> Tensor:
    """The groups with the largest uncertainty (RAGEN, StarPO-S: "keep the top p % of the instances").

    The number kept is ``share * groups`` rounded down, at least one; ties go to the smaller index. Groups without
    uncertainty are never kept, so fewer may be kept. If no group is uncertain, none is, and the caller skips the
    update.

    Args:
        uncertainty: float (groups,), as ``group_std`` returns it.
        share: the share p of the groups to keep, in (0, 1].

    Returns:
        bool (groups,), True if the group is kept.
    """
    number = _number_kept(len(uncertainty), share)
    return _mask(uncertainty, _ranked(uncertainty)[:number]) & (uncertainty > 0)


def keep_top_k(uncertainty: Tensor, number: float) -> Tensor:
    """As ``keep_top``, with the number of groups instead of their share: a whole number, at least 1."""
    if not (number >= 1 and number % 1 == 0):
        raise ValueError(f"number is {number}; it must be a whole number of groups, at least 1")
    return _mask(uncertainty, _ranked(uncertainty)[: int(number)]) & (uncertainty > 0)


def keep_bottom(uncertainty: Tensor, share: float = 0.25) -> Tensor:
    """The groups with the smallest uncertainty that have any: the reverse filter, a control (RAGEN-2).

    It keeps as many as ``keep_top``; ties go to the smaller index, and groups without uncertainty are dropped, so the
    two differ only in the order.
    """
    number = _number_kept(len(uncertainty), share)
    order = _ranked(uncertainty, descending=False)
    return _mask(uncertainty, order[uncertainty[order] > 0][:number])


def keep_top_p(uncertainty: Tensor, mass: float = 0.9) -> Tensor:
    """The fewest groups whose uncertainties, from the largest, sum to ``mass`` of the total or more (RAGEN-2, top-p).

    RAGEN-2 sums variances: pass the result of ``group_variance``. The number kept depends on the batch: few groups if
    they hold most of the variance, most groups if all vary alike.

    ``mass`` is the paper's rho, in (0, 1]. Groups without uncertainty are never kept; errors as in ``keep_top``.
    """
    _check_share("mass", mass)
    order = _ranked(uncertainty)
    ranked = uncertainty[order].double()
    before = ranked.cumsum(0) - ranked
    # A group is needed while the groups before it have not reached the goal; the small share keeps rounding from adding
    # one group more.
    return _mask(uncertainty, order[before < mass * ranked.sum() * (1 - 1e-9)])


def keep_softmax_top_p(uncertainty: Tensor, mass: float = 0.9) -> Tensor:
    """The fewest groups whose softmax probabilities, from the largest, sum to ``mass`` or more.

    The filter of RAGEN-2's released runs (``top_p_prob_mode=softmax``, ``include_zero=True``), which pass stds. Returns
    of at most 1 have similar exponentials, so it keeps most groups: of eight equal ones all eight at 0.9. Unlike
    ``keep_top_p`` it keeps groups without uncertainty where the mass needs them.

    ``mass`` is in (0, 1]; ties go to the smaller index; errors as in ``keep_top``.
    """
    _check_share("mass", mass)
    order = _ranked(uncertainty)
    ranked = torch.softmax(uncertainty[order].double(), dim=0)
    before = ranked.cumsum(0) - ranked
    return _mask(uncertainty, order[before < mass * (1 - 1e-9)])


def keep_min_p(uncertainty: Tensor, part: float = 0.5) -> Tensor:
    """The groups whose uncertainty is at least ``part`` of the largest (RAGEN-2, min-p).

    ``part`` is in (0, 1]. Groups without uncertainty are never kept; errors as in ``keep_top``.
    """
    _check_share("part", part)
    _check_uncertainty(uncertainty)
    if not len(uncertainty):
        return torch.zeros_like(uncertainty, dtype=torch.bool)
    return (uncertainty >= part * uncertainty.max()) & (uncertainty > 0)


def keep_random(uncertainty: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Choose as many groups as ``keep_top`` allows at random: a control with equal samples and steps.

    It also keeps groups without uncertainty, which teach nothing; see ``keep_random_std``. The choice is made on the
    device of ``generator``.
    """
    order = torch.randperm(len(uncertainty), generator=generator, device=generator.device).to(uncertainty.device)
    return _mask(uncertainty, order[: _number_kept(len(uncertainty), share)])


def keep_random_std(uncertainty: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Choose at random from the uncertain groups, as many as ``keep_top`` keeps.

    A filter by uncertainty drops groups that teach nothing, and prefers the most uncertain among the others. Comparison
    with this control isolates the second effect. Errors as in ``keep_top``.
    """
    _check_uncertainty(uncertainty)
    order = torch.randperm(len(uncertainty), generator=generator, device=generator.device).to(uncertainty.device)
    return _mask(uncertainty, order[uncertainty[order] > 0][: _number_kept(len(uncertainty), share)])


def _mask(uncertainty: Tensor, chosen: Tensor) -> Tensor:
    kept = torch.zeros_like(uncertainty, dtype=torch.bool)
    kept[chosen] = True
    return kept


def _ranked(uncertainty: Tensor, descending: bool = True) -> Tensor:
    _check_uncertainty(uncertainty)
    return torch.sort(uncertainty, descending=descending, stable=True).indices


def _check_uncertainty(uncertainty: Tensor) -> None:
    if not bool(torch.isfinite(uncertainty).all()) or bool((uncertainty < 0).any()):
        raise ValueError(
            f"uncertainties must be finite and at least 0, got {uncertainty.tolist()}; "
            "leave failed episodes out with group_std(returns, counted)"
        )


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"{name} is {share}; it must be above 0 and at most 1, for example 0.25")


def _number_kept(groups: int, share: float) -> int:
    _check_share("share", share)
    # The small addition keeps a product such as 0.29 * 100 = 28.999... from losing a group to rounding.
    return min(groups, max(1, int(share * groups + 1e-9)))
