"""Published figures, next to random and optimal play of their own protocols.

``python -m ragen_gym.bench.suites.published`` plays the suites that have a published rate, at random and optimally,
and writes ``baselines.json``; ``ragen-gym bench suites --published`` prints from that file. A suite that is not the one
that was played, by its hash, is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ragen_gym.bench.suites import SUITES, Published, Suite, load_suite
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.core.storage import write_atomic

__all__ = ["BASELINES", "NOT_REPRODUCED", "PublishedRate", "main", "published_rates"]

#: What random and optimal play reach: ``{suite: {"hash", "splits": {split: {"n", "random", "optimal"}}}}``.
BASELINES = Path(__file__).with_name("baselines.json")

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
    """A published rate, and random and optimal play of the same protocol."""

    suite: str
    published: Published
    n: int  # instances
    random: float  # success of uniformly random moves
    optimal: float  # exact expected success of optimal play

    @property
    def interval(self) -> Rate:
        """The published rate with its 95 % Wilson interval, as of one episode an instance."""
        return wilson(self.published.success * self.n, self.n)

    @property
    def verdict(self) -> str:
        """Comparison of the rate, in words; empty where it is above random and not above optimal play."""
        rate = self.interval
        if rate.low > self.optimal:
            return "above optimal play: not this protocol"
        if rate.high < self.random:
            return "below random play"
        return "not distinguishable from random play" if rate.low <= self.random else ""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "suite": self.suite,
            "splits": list(self.published.splits),
            "who": self.published.who,
            **self.interval.to_dict("success"),
            "random": self.random,
            "optimal": self.optimal,
            "verdict": self.verdict,
        }


def published_rates(names: Iterable[str] = SUITES, *, main_only: bool = False) -> list[PublishedRate]:
    """The published rates of these suites of the package.

    Args:
        names: of suites; one without a published rate has no row.
        main_only: whether to keep only the first of those on the same splits.

    Raises:
        ValueError: a suite is not the one whose baselines are kept.
    """
    kept = json.loads(BASELINES.read_text(encoding="utf-8"))
    rows: list[PublishedRate] = []
    for suite in map(load_suite, names):
        if not suite.published:
            continue
        entry = kept.get(suite.name, {})
        if entry.get("hash") != suite.hash:
            raise ValueError(
                f"{BASELINES} is not of {suite.name} {suite.hash}: run python -m ragen_gym.bench.suites.published."
            )
        met = set[tuple[str, ...]]()
        for each in suite.published:
            if not (main_only and each.splits in met):
                rows.append(_rate(suite, each, entry["splits"]))
            met.add(each.splits)
    return rows


def _rate(suite: Suite, published: Published, splits: Mapping[str, Mapping[str, float]]) -> PublishedRate:
    entries = [splits[name] for name in published.splits]
    weights = [entry["n"] for entry in entries]
    random, optimal = (
        float(np.average([entry[name] for entry in entries], weights=weights)) for name in ("random", "optimal")
    )
    return PublishedRate(suite.name, published, int(sum(weights)), random, optimal)


def _baselines(suite: Suite) -> dict[str, Any]:
    from ragen_gym.bench.baselines import baseline

    splits = {}
    for split in suite.splits:
        played = baseline(split).means
        splits[split.name] = {
            "n": len(split.levels),
            "random": round(played["random"] or 0.0, 6),
            "optimal": round(played["optimal"] or 0.0, 6),
        }
    return {"hash": suite.hash, "splits": splits}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the baselines of the suites with published rates; 0."""
    parser = argparse.ArgumentParser(description="Play the suites with published rates at random and optimally.")
    parser.add_argument("--out", type=Path, default=BASELINES, metavar="FILE", help="default: the package's")
    arguments = parser.parse_args(argv)
    suites = [suite for suite in map(load_suite, SUITES) if suite.published]
    write_atomic(arguments.out, json.dumps({suite.name: _baselines(suite) for suite in suites}, indent=1) + "\n")
    print(f"{arguments.out}: {', '.join(suite.name for suite in suites)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
