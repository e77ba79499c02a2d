"""``ragen-gym bench suites``, ``freeze``, ``score`` and ``compare``: the suites, and the scores of runs."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.cli.command import add_command, print_json, table_lines, wrapped
from ragen_gym.core.command_line import wrap
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import check_parent, locked_folder, write_atomic

if TYPE_CHECKING:
    from ragen_gym.bench.suites import Split, Suite

__all__ = ["SEEN_HELP", "add", "score_lines"]

_SUITES_EXAMPLES = """\
examples:
  ragen-gym bench suites                      every suite
  ragen-gym bench suites ragen-v1             its splits, with random, blind and optimal success
  ragen-gym bench suites my-suite/ --json     a suite of your own: a folder with a suite.toml
  ragen-gym bench suites --published          what others report, with the same of their protocols
"""

_SCORE_EXAMPLES = """\
Without --write the files of the run stay as they are; with it, summary.json is written again.

examples:
  ragen-gym bench score runs/gpt
  ragen-gym bench score runs/gpt --json | jq .splits.sokoban.success
"""

_COMPARE_EXAMPLES = """\
The two runs must be of the same suite. Success, return and the share of malformed replies are compared on the
instances that both played, each in a test paired by level, of all levels together and of each split. Holm's correction
is made among the tests of all levels, and for each of the three among those of splits. The interval of a difference is
that of its test: it leaves 0 out exactly where the first run is called better or worse.

With --fail-if-worse the exit code is 1 where such an interval lies beyond the margin (for returns, hundredths of their
range), and where the first run has no scored episode of a level asked of it that the second has one of.

examples:
  ragen-gym bench compare runs/new runs/old
  ragen-gym bench compare runs/new runs/old --fail-if-worse 2 --junit compare.xml
"""

#: Of the option ``--seen``.
SEEN_HELP = "the record of the levels that the agent saw in training: seen.npy of its run, or the run's folder"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the four commands."""
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
    score = add_command(commands, "score", "score the episodes of a run", _score, _SCORE_EXAMPLES)
    score.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    score.add_argument("--write", action="store_true", help="write the score as the run's summary.json")
    score.add_argument("--seen", type=Path, metavar="FILE", help=f"{SEEN_HELP}; added to what the run says")
    compare = add_command(
        commands, "compare", "compare two runs of one suite, level by level", _compare, _COMPARE_EXAMPLES
    )
    compare.add_argument(
        "--fail-if-worse",
        nargs="?",
        type=float,
        const=0.0,
        metavar="POINTS",
        help="exit with 1 where the first run is worse by more than so many percentage points (default: 0)",
    )
    compare.add_argument("--junit", type=Path, metavar="FILE", help="a file for the tests as JUnit XML (default: none)")
    compare.add_argument("first", type=Path, metavar="RUN", help="the folder of a run")
    compare.add_argument("second", type=Path, metavar="RUN", help="the folder of another run of the same suite")
    for parser in (suites, score, compare):
        parser.add_argument("--json", action="store_true", help="print JSON")
    for parser in (score, compare):
        parser.add_argument(
            "--suite",
            metavar="SUITE",
            help="the suite, by name, folder or table: needed where it moved or has games of your own",
        )


def _suites(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.suites import SUITES, load_suite

    if arguments.published:
        return _published(arguments)
    if arguments.suite is None:
        suites = [load_suite(name) for name in SUITES]
        if arguments.json:
            print_json([_about_suite(suite) for suite in suites])
        else:
            for suite in suites:
                print(f"{_headline(suite)}\n{wrapped(suite.about, '  ')}\n")
        return 0
    from ragen_gym.bench.baselines import baseline
    from ragen_gym.bench.report.tables import wrong_oracle

    suite = load_suite(arguments.suite)
    expected = {split.name: baseline(split) for split in suite.splits}
    splits = [{**_about_split(split), **expected[split.name].means} for split in suite.splits]
    measured = {split.name: {"env": split.env, **expected[split.name].rates} for split in suite.splits}
    for warning in wrong_oracle(measured):
        print(f"ragen-gym: {warning}", file=sys.stderr)
    if arguments.json:
        print_json({**_about_suite(suite), "splits": splits})
        return 0
    print(f"{_headline(suite)}\n{wrapped(suite.about, '  ')}\n")
    rows = [("split", "env", "instances", "levels", "random", "blind", "optimal", "")]
    for split in splits:
        bounds = ("" if split[player] is None else percent(split[player]) for player in ("random", "blind", "optimal"))
        levels = f"{split['levels']} ({split['families']})"
        rows.append((split["name"], split["env"], str(split["instances"]), levels, *bounds, split["about"]))
    print("\n".join(table_lines(rows)))
    print(
        wrapped("levels: how many differ, and in brackets of how many families they are, which make one problem each")
    )
    published = list(dict.fromkeys(name for split in splits for name in split["published"]))
    if published:
        print("\nPublished success rates")
        names = [split["name"] for split in splits]
        rates = {name: [split["published"].get(name) for split in splits] for name in published}
        cells = [(name, *("" if rate is None else percent(rate) for rate in rates[name])) for name in published]
        print("\n".join(table_lines([("", *names), *cells])))
    return 0


def _freeze(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.suites.freeze import freeze

    freeze(arguments.suite)
    return 0


def _published(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.report.tables import interval
    from ragen_gym.bench.suites import SUITES, load_suite
    from ragen_gym.bench.suites.published import NOT_REPRODUCED, published_rates

    known = [name for name in SUITES if load_suite(name).published]
    names = known if arguments.suite is None else [arguments.suite]
    if not {*names} <= {*known}:
        raise ValueError(f"{names[0]!r} has no published rates: choose one of {', '.join(known)}, or none for all.")
    rates = published_rates(names, main_only=arguments.suite is None and not arguments.json)
    differs = {name: load_suite(name).differs for name in dict.fromkeys(rate.suite for rate in rates)}
    missing = [{"what": what, "reported": said, "why": why} for what, (said, why) in NOT_REPRODUCED.items()]
    if arguments.json:
        rows = [rate.to_dict() for rate in rates]
        print_json({"rates": rows, "differs": {name: [*said] for name, said in differs.items()}, "missing": missing})
        return 0
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


def _about_suite(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "hash": suite.hash,
        "about": suite.about,
        "temperature": suite.temperature,
        "source": suite.source,
        "differs": [*suite.differs],
        "splits": [split.name for split in suite.splits],
        "instances": sum(len(split.levels) for split in suite.splits),
    }


def _about_split(split: Split) -> dict[str, Any]:
    content = split.content()
    levels = {
        "instances": len(split.levels),
        "levels": len(set(split.levels)),
        "families": len(set(split.families)),
    }
    about = {"about": split.about, "ladder": split.ladder, "published": split.published}
    played = {"name": split.name, "env": split.env, "env_options": content["knobs"], "budgets": content["budgets"]}
    return played | levels | about


def _score(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.results import ResultsFolder, load_results
    from ragen_gym.bench.score import score_results
    from ragen_gym.core.seen import read_seen

    folder = ResultsFolder(arguments.run_folder)
    writing = arguments.write and folder.path.is_dir()
    with locked_folder(folder.path) if writing else nullcontext():  # a summary amid a session would be of a part
        run = load_results(folder.path, arguments.suite)
        if arguments.seen is not None:
            run = replace(run, seen=read_seen(arguments.seen) | (run.seen or frozenset()))
        summary = score_results(run)
        if arguments.write:
            if arguments.seen is not None and run.seen is not None:
                folder.add_seen(run.seen)
            folder.write_summary(summary)
    if arguments.json:
        print_json(summary)
    else:
        print("\n".join(score_lines(summary)))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare_results, junit, worse
    from ragen_gym.bench.report.tables import left_out
    from ragen_gym.bench.results import load_several

    margin = arguments.fail_if_worse
    if margin is not None and not 0 <= margin <= 100:
        raise ValueError(f"--fail-if-worse {margin:g}: give percentage points from 0 to 100.")
    first, second = load_several([arguments.first, arguments.second], arguments.suite)
    result = compare_results(first, second)
    reasons = {} if margin is None else worse(result, margin)
    failed = [*reasons.values()]
    if arguments.junit is not None:
        check_parent(arguments.junit)
        write_atomic(arguments.junit, junit(result, margin or 0.0))
    if arguments.json:
        print_json(result if margin is None else {**result, "worse": failed})
        return int(bool(failed))
    runs = result["runs"]
    print(wrapped(f"{result['suite']} {result['hash']}: {first.agent} (first) and {second.agent} (second)") + "\n")
    for which, run in runs.items():
        print(wrapped(_of_asked(run), f"{which + ':':8}"))
    if result["splits"]:
        print("\n" + "\n".join(_compared(result)))
    notes = [f"{which}: {said}" for which, run in runs.items() for said in left_out({"overall": run})]
    asked = dict.fromkeys(name for run in runs.values() for name in run["splits"])
    if alone := [name for name in asked if name not in result["splits"]]:
        notes.append(f"Not compared, since no instance has a scored episode of both: {', '.join(alone)}.")
    if notes:
        print("\n" + "\n".join(map(wrapped, notes)))
    if margin is not None:
        beyond = f" by more than {margin:g} points" * bool(margin)
        lacking = bool(failed) and all(metric == "scored" for _, metric in reasons)
        shown = "lacks scored episodes" if lacking else f"is {'' if failed else 'not shown to be '}worse"
        print(f"\n{first.agent} {shown}{beyond * (not lacking)}{':' if failed else '.'}")
        print("".join(f"{wrapped(said, '  ')}\n" for said in failed), end="")
    return int(bool(failed))


#: Characters of a line of a comparison, and of its first column.
_LINE, _NAME = 80, 26


def _compared(result: dict[str, Any]) -> list[str]:
    """The differences with the interval of each test; of splits those of success and those with a verdict."""
    from ragen_gym.bench.compare import METRICS

    def row(name: str, metric: str, entry: dict[str, Any]) -> str:
        cells = [_amount(metric, entry[which]) for which in ("first", "second")]
        shown = name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
        line = f"{shown:{_NAME}} {cells[0]:>7} {cells[1]:>7}  {_difference(metric, entry):25} {entry['verdict']}"
        return line.rstrip()

    levels = result["all"]["success"]["difference"]["levels"]
    lines = [f"{f'{levels:,} different levels':{_NAME}} {'first':>7} {'second':>7}  {'difference':25} first is"]
    lines += [row(f"  {METRICS[metric]}", metric, entry) for metric, entry in result["all"].items()]
    for metric, name in METRICS.items():
        entries = {split: own[metric] for split, own in result["splits"].items() if metric in own}
        shown = {
            split: entry for split, entry in entries.items() if metric == "success" or entry["verdict"] != "unclear"
        }
        if shown:
            lines += ["", f"{name} by split", *(row(f"  {split}", metric, entry) for split, entry in shown.items())]
    tests = result["tests"]
    of_splits = ", ".join(f"{tests[metric]} of {METRICS[metric]}" for metric in result["all"])
    legend = (
        f"{tests['all']} tests of all levels, and of single splits {of_splits}, each paired by level, with Holm's "
        "correction within each of these groups. The interval in brackets is that of the test: it leaves 0 out exactly "
        "where the first is better or worse. Rates and their differences are in %."
    )
    return [*lines, "", *wrap(legend, _LINE, "", "")]


def _amount(metric: str, value: float) -> str:
    return f"{value:z.3g}" if metric == "return" else f"{100 * value:z.1f}"


def _difference(metric: str, entry: dict[str, Any]) -> str:
    of = entry["difference"]
    scale, form = (1, "+z.3g") if metric == "return" else (100, "+z.1f")
    value = f"{scale * of['value']:{form}}"
    return value if of["low"] is None else f"{value} ({scale * of['low']:{form}} to {scale * of['high']:{form}})"


def _of_asked(run: dict[str, Any]) -> str:
    from ragen_gym.bench.report.tables import bounds, episodes_asked

    between = f"; bounds {bounds(run)} %" if bounds(run) else ""
    return episodes_asked(run) + between


def score_lines(summary: dict[str, Any]) -> list[str]:
    """A summary as a table for the terminal, with a note for each split that does not differ from random play."""
    from ragen_gym.bench.report.tables import episodes_asked, indistinct, score_table, sentences

    overall = summary["overall"]
    title = f"{summary['suite']} {summary['hash']}: {summary['agent']}, {episodes_asked(overall)}"
    rows = [[row[0], *row[2:]] for row in score_table([summary])]  # the title names the agent
    tokens, cost = overall["tokens"], overall["cost"]
    spent = [f"{tokens['prompt']} prompt and {tokens['completion']} completion tokens"] if tokens else []
    spent += [f"cost {cost:.4f}"] if cost is not None else []
    legend = [
        "by level: the interval clustered by level, where levels, or several of a family, were played more than once",
        "detects: the difference in points that is found with a power of 80 %; paired levels may show a smaller one",
    ]
    if overall["episodes"] < overall["asked"]:
        legend.append("bounds: success of all episodes asked for if those missing or excluded had failed, or succeeded")
    said = [*[", ".join(spent)] * bool(spent), *sentences(summary), *indistinct(summary)]
    return [title, "", *table_lines(rows), "", *legend, *said]
