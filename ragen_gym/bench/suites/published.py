"""Published figures, beside random, blind and optimal play of their own protocols."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ragen_gym.bench.baselines import baseline
from ragen_gym.bench.suites import SUITES, Published, Suite, load_suite
from ragen_gym.core.stats import Rate, wilson

__all__ = ["NOT_REPRODUCED", "PublishedRate", "published_rates"]

#: Published results of which there is no suite: what is reported, and why it cannot be reproduced.
NOT_REPRODUCED: dict[str, tuple[str, str]] = {
    "lmgame-bench Sokoban (github.com/lmgame-org/GamingAgent at 996d848)": (
        "o3 10 boxes on targets with its harness and 2 without; GPT-4.1 0 and 0",
        "its score is the boxes on targets over six hand-made levels played in a row, up to the first that is not "
        "solved: no success rate, and a file of levels that is not ours to give on",
    ),
    "rLLM's announcement (its issue 171 quotes it)": (
        "71 to 76 % on a slippery FrozenLake",
        "its settings are not given; on the lakes of its example, with 10 turns, optimal play reaches 38 %",
    ),
}


@dataclass(frozen=True)
class PublishedRate:
    """A published rate, and random, blind and optimal play of the same protocol."""

    suite: str
    published: Published
    n: int  # instances
    random: float  # success of uniformly random moves
    blind: float  # exact expected success of the game's blind script
    optimal: float  # exact expected success of optimal play

    @property
    def interval(self) -> Rate:
        """The published rate with its 95 % Wilson interval, as of one episode an instance."""
        return wilson(self.published.success * self.n, self.n)

    @property
    def verdict(self) -> str:
        """Comparison of the rate, in words; empty where it is above the blind script and not above optimal play."""
        rate = self.interval
        if rate.low > self.optimal:
            return "above optimal play: not this protocol"
        if rate.high < self.random:
            return "below random play"
        if rate.low <= self.random:
            return "not distinguishable from random play"
        return "not above the blind script" if rate.low <= self.blind else ""


def published_rates(names: Iterable[str] = SUITES, *, main_only: bool = False) -> list[PublishedRate]:
    """The published rates of these suites of the package, whose splits are played at random, blindly and optimally.

    Args:
        names: of suites; one without a published rate has no row.
        main_only: whether to keep only the first of those on the same splits.
    """
    rows: list[PublishedRate] = []
    for suite in map(load_suite, names):
        met = set[tuple[str, ...]]()
        for each in suite.published:
            if not (main_only and each.splits in met):
                rows.append(_rate(suite, each))
            met.add(each.splits)
    return rows


def _rate(suite: Suite, published: Published) -> PublishedRate:
    splits = [split for split in suite.splits if split.name in published.splits]
    n = sum(len(split.levels) for split in splits)
    means = [(len(split.levels), baseline(split).means) for split in splits]
    rates = {
        kind: sum(size * (mean[kind] or 0.0) for size, mean in means) / n for kind in ("random", "blind", "optimal")
    }
    return PublishedRate(suite.name, published, n, **rates)
