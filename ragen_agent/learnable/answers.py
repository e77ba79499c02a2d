"""Answers from the returns of a trained model and its controls: intervals, thresholds and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ragen_gym.core.stats import Estimate, clustered_mean, mean_interval, scipy_stats, wilson

Floats = NDArray[np.float64]

SIGNAL, BLIND, GAP = "training signal", "pays without reading", "pays more than it solves"
#: Least figures of a yes: shares of the range of returns seen, and of the trained model's gain where it is the blind
#: policy's. Chosen on 30 planted environments (``benchmarks/learnable.md``).
THRESHOLDS = {SIGNAL: 0.05, BLIND: 0.7, GAP: 0.15}
#: The verdicts in the order in which they are tried, and their meanings.
VERDICTS = {
    "no signal": "the gain of the small model, or its gain over shuffled rewards, is not surely above 0 or is below "
    f"{THRESHOLDS[SIGNAL]:.0%} of the range of returns seen",
    "pays without solving": "training raises the return, and success does not follow",
    "pays without reading": "a policy that never sees the level gains about as much",
    "teaches": "the small model learns from what it reads, and solves what pays",
}
CUT = "the control was cut"


@dataclass(frozen=True)
class Measured:
    """Episodes of each policy on the same levels, floats (levels, episodes of a level), NaN where one failed."""

    returns: dict[str, Floats]  # ``start``, ``trained``, and, where it gained, the controls ``shuffled`` and ``blind``
    successes: dict[str, Floats]  # the same as 0 and 1; empty where the environment does not tell success
    random: list[float]  # returns of random valid replies
    oracle: list[float]  # returns of the environment's own solutions; empty where it has none
    least: float  # lowest return of any episode, training included
    best: float  # highest, training and the oracle included
    first_messages: int  # number of distinct ones
    cut: bool = False  # whether the time ended training


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    question: str
    answer: str  # "yes", "no", "cut" (more time may answer it), "measured" or "not applicable"
    detail: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0  # episodes
    figure: float = 0.0  # compared with a threshold


@dataclass
class Report:
    """Everything that training on one target showed."""

    target: str
    version: str = ""
    verdict: str = "not applicable"
    reason: str = ""  # the verdict's meaning, and what was cut for want of time or failed
    answers: list[Answer] = field(default_factory=list)
    train_episodes: int = 0  # of each trained policy
    seconds: float = 0.0


def answers(found: Measured) -> list[Answer]:
    """The answer to each question."""
    return [each(found) for each in (_signal, _reach, _headroom, _blind, _difficulty, _spread, _gap)]


def verdict(given: list[Answer]) -> str:
    """The first of ``VERDICTS`` that the answers give, or "not applicable" where one that decides was cut."""
    answer = {each.question: each.answer for each in given}
    if answer[SIGNAL] == "no":
        return "no signal"
    if answer[SIGNAL] == "yes" == answer[GAP]:
        return "pays without solving"
    if "cut" in (answer[SIGNAL], answer[BLIND]):
        return "not applicable"
    return "pays without reading" if answer[BLIND] == "yes" else "teaches"


def _paired(first: Floats, second: Floats) -> Estimate:
    """Mean difference of two policies on the same levels, over those episodes that neither failed."""
    difference = first - second
    levels = np.broadcast_to(np.arange(len(difference))[:, None], difference.shape)
    whole = ~np.isnan(difference)
    return clustered_mean(difference[whole], levels[whole].tolist())


def _range(found: Measured) -> float:
    return found.best - found.least


def _measured(question: str, answer: str, detail: str, estimate: Estimate, figure: float = 0.0) -> Answer:
    return Answer(question, answer, detail, estimate.value, estimate.low, estimate.high, estimate.n, figure)


def _judged(question: str, detail: str, estimate: Estimate, figure: float, clear: bool) -> Answer:
    answer = "yes" if clear and figure >= THRESHOLDS[question] else "no"
    return _measured(question, answer, detail, estimate, figure)


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"


def gain(returns: Mapping[str, Floats], policy: str = "trained") -> Estimate:
    """The gain of a trained policy over the start."""
    return _paired(returns[policy], returns["start"])


def _signal(found: Measured) -> Answer:
    returns, own = found.returns, gain(found.returns)
    before, after = np.nanmean(returns["start"]), np.nanmean(returns["trained"])
    detail = f"return {before:.3g} before and {after:.3g} after training, gain {_shown(own)}"
    without = "cut" if found.cut else "no"
    if "shuffled" not in returns:
        answer, detail = ("cut", f"{detail}; {CUT}") if own.low > 0 else (without, detail)
        return _measured(SIGNAL, answer, detail, own, own.value / (_range(found) or 1.0))
    beyond = _paired(returns["trained"], returns["shuffled"])
    detail += f"; {_shown(beyond)} more than with shuffled rewards"
    figure = min(own.value, beyond.value) / (_range(found) or 1.0)
    judged = _judged(SIGNAL, detail, beyond, figure, min(own.low, beyond.low) > 0)
    return judged if judged.answer == "yes" else replace(judged, answer=without)


def _reach(found: Measured) -> Answer:
    start = found.returns["start"][~np.isnan(found.returns["start"])]
    paid = wilson(float((start > found.least).sum()), len(start))
    detail = f"{paid} of the episodes before training earn more than the least return seen, {found.least:.3g}"
    return _measured("reward reachable", "yes" if paid.value > 0 else "no", detail, paid)


def _headroom(found: Measured) -> Answer:
    """Difference of two independent means, its interval from theirs (MOVER, Zou and Donner 2008)."""
    random = mean_interval(found.random)
    if len(found.oracle) > 1:
        most, source, otherwise = mean_interval(found.oracle), "the environment's own solutions earn", "no"
    else:  # what the small model does not reach may be there all the same
        trained = found.returns["trained"]
        most = _paired(trained, np.zeros_like(trained))
        source, otherwise = "without solutions of the environment: the trained model earns", "not applicable"
    value, half = most.value - random.value, float(np.hypot(most.half_width, random.half_width))
    above = Estimate(value, value - half, value + half, most.n + random.n)
    yes = above.low > 0 and value > THRESHOLDS[SIGNAL] * _range(found)
    detail = f"{source} {most.value:.3g}, random valid replies {random.value:.3g}: {_shown(above)} more"
    return _measured("headroom", "yes" if yes else otherwise, detail, above)


def _blind(found: Measured) -> Answer:
    if found.first_messages < 2:
        return Answer(BLIND, "not applicable", "all levels begin with the same message")
    own = gain(found.returns)
    if "blind" not in found.returns:
        none = "not applicable", "there is no gain for a blind policy to share"
        return Answer(BLIND, *(("cut", CUT) if own.low > 0 else none))
    blind = gain(found.returns, "blind")
    share = blind.value / own.value if own.value > 0 else 0.0
    detail = f"a policy that always sees one message gains {_shown(blind)}, {share:.0%} of the trained model's gain"
    return _judged(BLIND, detail, blind, share, blind.low > 0)


def _difficulty(found: Measured) -> Answer:
    """Intraclass correlation of returns by level with its exact F interval (Shrout and Fleiss, ICC(1,1), 1979)."""
    values = found.returns["start"]
    values = values[~np.isnan(values).any(axis=1)]
    levels, each = values.shape
    means = values.mean(axis=1)
    within = float(((values - means[:, None]) ** 2).sum() / (levels * (each - 1))) if levels else 0.0
    if levels < 2 or within == 0:
        detail = "the returns of each level are equal, or too few levels were played whole"
        return Answer("difficulty differs by level", "not applicable", detail)
    ratio = each * float(means.var(ddof=1)) / within
    f = scipy_stats().f
    freedom = levels - 1, levels * (each - 1)
    ends = [ratio / f.ppf(0.975, *freedom), ratio * f.ppf(0.975, *freedom[::-1])]
    value, low, high = ((at - 1) / (at + each - 1) for at in (ratio, *ends))
    correlation = Estimate(value, low, high, values.size)
    detail = (
        f"intraclass correlation of returns before training {_shown(correlation)}, of {levels} levels with {each} "
        f"episodes each"
    )
    return _measured("difficulty differs by level", "yes" if low > 0 else "no", detail, correlation)


def _spread(found: Measured) -> Answer:
    """Mean variance of a level's returns; Popoviciu's inequality bounds it by a quarter of the squared range."""
    variances = np.nanvar(found.returns["start"], axis=1, ddof=1)
    variances = variances[~np.isnan(variances)]
    mean = clustered_mean(variances, list(range(len(variances))))
    bound = min(mean.high, _range(found) ** 2 / 4)
    detail = (
        f"returns of one level before training have a std of {np.sqrt(mean.value):.3g}, at most {np.sqrt(bound):.3g} "
        f"(95 %); all returns lie from {found.least:.3g} to {found.best:.3g}"
    )
    spread = Estimate(mean.value, max(mean.low, 0.0), bound, int((~np.isnan(found.returns["start"])).sum()))
    return _measured("variance of returns", "measured", detail, spread)


def _gap(found: Measured) -> Answer:
    if not found.successes:
        return Answer(GAP, "not applicable", "the environment does not tell success apart from reward")
    paid = (found.returns["trained"] - found.returns["start"]) / (_range(found) or 1.0)
    solved = found.successes["trained"] - found.successes["start"]
    gap = _paired(paid, solved)
    detail = (
        f"training raises the return by {np.nanmean(paid):.3g} of its range and the success rate by "
        f"{_shown(_paired(solved, np.zeros_like(solved)))}, to {np.nanmean(found.successes['trained']):.3g}: a gap of "
        f"{_shown(gap)}"
    )
    return _judged(GAP, detail, gap, gap.value, gap.low > 0)
