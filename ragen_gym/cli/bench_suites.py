"""``ragen-gym bench suites`` and ``freeze``: the suites, their splits, and what others report on them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_gym.cli.command import add_command, table_lines, wrapped
from ragen_gym.core.stats import percent

if TYPE_CHECKING:
    from ragen_gym.bench.suites import Suite

__all__ = ["add"]

_SUITES_EXAMPLES = """\
examples:
  ragen-gym bench suites                      every suite
  ragen-gym bench suites ragen-v1             its splits, with random, blind and optimal success
  ragen-gym bench suites my-suite/            a suite of your own: a folder with a suite.toml
  ragen-gym bench suites --published          what others report, with the same of their protocols
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two commands."""
    suites = add_command(commands, "suites", "list the suites, or the splits of one", _suites, _SUITES_EXAMPLES)
    suites.add_argument("suite", nargs="?", metavar="SUITE", help="a suite's name, folder or table")
    suites.add_argument(
        "--published",
        action="store_true",
        help="the success that others report, beside random, blind and optimal play of the same protocol; of SUITE, "
        "or the main results of all",
    )
    freeze = add_command(
        commands, "freeze", "write the files of levels of a suite of your own, as its table says", _freeze
    )
    freeze.add_argument("suite", type=Path, metavar="SUITE", help="the suite's folder, or its table")


def _suites(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.baselines import baseline
    from ragen_gym.bench.suites import SUITES, load_suite

    if arguments.published:
        return _published(arguments)
    if arguments.suite is None:
        for suite in map(load_suite, SUITES):
            print(f"{_headline(suite)}\n{wrapped(suite.about, '  ')}\n")
        return 0
    suite = load_suite(arguments.suite)
    print(f"{_headline(suite)}\n{wrapped(suite.about, '  ')}\n")
    rows: list[tuple[str, ...]] = [("split", "env", "instances", "levels", "random", "blind", "optimal", "")]
    for split in suite.splits:
        means = baseline(split).means
        bounds = ("" if means[player] is None else percent(means[player]) for player in ("random", "blind", "optimal"))
        levels = f"{len(set(split.levels))} ({len(set(split.families))})"
        rows.append((split.name, split.env, str(len(split.levels)), levels, *bounds, split.about))
    print("\n".join(table_lines(rows)))
    print(
        wrapped("levels: how many differ, and in brackets of how many families they are, which make one problem each")
    )
    return 0


def _freeze(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.suites.freeze import freeze

    freeze(arguments.suite)
    return 0


def _published(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.baselines import NOT_REPRODUCED, published_rates
    from ragen_gym.bench.report.tables import interval
    from ragen_gym.bench.suites import SUITES, load_suite

    known = [name for name in SUITES if load_suite(name).published]
    names = known if arguments.suite is None else [arguments.suite]
    if not {*names} <= {*known}:
        raise ValueError(f"{names[0]!r} has no published rates: choose one of {', '.join(known)}, or none for all.")
    rates = published_rates(names, main_only=arguments.suite is None)
    differs = {name: load_suite(name).differs for name in dict.fromkeys(rate.suite for rate in rates)}
    table: list[tuple[str, ...]] = [("suite", "split", "who", "published", "95 %", "random", "blind", "optimal", "")]
    for rate in rates:
        splits = rate.published.splits
        where = splits[0] if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"
        cells = (percent(share) for share in (rate.random, rate.blind, rate.optimal))
        published = percent(rate.published.success)
        table.append(
            (rate.suite, where, rate.published.who, published, interval(rate.interval.to_dict()), *cells, rate.verdict)
        )
    print("\n".join(table_lines(table)))
    print(wrapped("95 %: the interval of such a rate on as many instances, played once each") + "\n")
    for name, sentences in differs.items():
        print(f"{name}\n{wrapped(f'From {load_suite(name).source}. ' + ' '.join(sentences), '  ')}")
    if arguments.suite is None:
        print("\nNot reproduced")
        for what, (said, why) in NOT_REPRODUCED.items():
            print(wrapped(f"{what}: {said}; {why}.", "  "))
    return 0


def _headline(suite: Suite) -> str:
    instances = sum(len(split.levels) for split in suite.splits)
    return f"{suite.name}  {suite.hash}  {len(suite.splits)} splits, {instances} instances, T = {suite.temperature:g}"
