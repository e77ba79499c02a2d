"""``ragen-gym bench``: evaluate agents on frozen levels. This file holds ``run``, ``suites`` and ``freeze``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_gym.cli import bench_results
from ragen_gym.cli.command import table_lines, wrapped
from ragen_gym.core.command_line import add_command, print_json, stops_at_sigterm
from ragen_gym.core.seen import read_seen
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import DiskFullError
from ragen_gym.core.validation import joined, named_values

if TYPE_CHECKING:
    from ragen_gym.bench.agent import ReplyAgent, StepAgent
    from ragen_gym.bench.episode_plan import RunOptions
    from ragen_gym.bench.runner import RunOutcome
    from ragen_gym.bench.suites import Suite

_EXAMPLES = """\
examples:
  ragen-gym bench suites                     the suites
  ragen-gym bench run --suite smoke --agent random --out runs/random
  ragen-gym bench score runs/random          the scores again
  ragen-gym bench report runs/random         an HTML page
"""

_RUN_EXAMPLES = """\
agents:
{agents}

Repeat the command to resume a run that was cut short: what is in --out is kept, and episodes that failed for reasons of
infrastructure are played again. The exit code is 1 while there are such failures.

examples:
  ragen-gym bench run --suite ragen-v1 --agent oracle --out runs/oracle
  ragen-gym bench run --suite smoke --agent python:my_agent:reply --out runs/mine
  ragen-gym bench run --suite ragen-v1 --agent openai:Qwen/Qwen3-4B --base-url http://127.0.0.1:8000/v1 \\
      --max-tokens 1024 --rollouts 4 --out runs/qwen
  ragen-gym bench run --suite smoke --agent 'cmd:./my_agent --fast' --set kind=step --out runs/program
  ragen-gym bench run --suite smoke --agent random --out runs/random --web      the report in a browser, growing
"""

_SUITES_EXAMPLES = """\
examples:
  ragen-gym bench suites                      every suite
  ragen-gym bench suites ragen-v1             its splits, with random, blind and optimal success
  ragen-gym bench suites my-suite/            a suite of your own: a folder with a suite.toml
  ragen-gym bench suites --published          what others report, with the same of their protocols
"""

#: Seconds for an answer.
_TIMEOUT = 120
#: Options that are settings of the agents that have them.
_SETTINGS = ("base_url", "key_env", "max_tokens", "retries")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group of commands."""
    parser = commands.add_parser(
        "bench",
        help="evaluate an agent on held-out levels",
        description="Evaluate agents on held-out levels, and inspect their episodes.",
        epilog=_EXAMPLES,
    )
    group = parser.add_subparsers(metavar="COMMAND")
    _add_run(group)
    _add_suites(group)
    bench_results.add(group)


def _add_run(group: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from ragen_gym.bench.agents import KINDS

    forms = {f"{name}:{kind.target}" if kind.target else name: kind.about for name, kind in KINDS.items()}
    width = max(map(len, forms))
    agents = "\n".join(f"  {form:{width}}  {about}" for form, about in forms.items())
    summary = "play the episodes of a suite that --out does not hold yet, and score them all"
    parser = add_command(group, "run", summary, _run, _RUN_EXAMPLES.format(agents=agents))
    parser.add_argument("--suite", required=True, metavar="SUITE", help="a suite's name, folder or table")
    parser.add_argument("--agent", required=True, metavar="AGENT", help="the agent; see below")
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="the folder of the run, new or to resume"
    )
    parser.add_argument("--split", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--rollouts", type=int, default=1, metavar="K", help="episodes of each level (default: 1)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N levels of each split (default: all)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of a language model (default: the suite's)")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="episodes at a time (default: 32, or the agent's own batch)"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help=f"seconds for an answer (default: {_TIMEOUT})")
    parser.add_argument(
        "--episode-timeout", type=float, default=1800, metavar="S", help="seconds for an episode (default: 1800)"
    )
    parser.add_argument(
        "--seen", type=Path, metavar="FILE", help=f"{bench_results.SEEN_HELP}; added to what hf:RUN/checkpoint has"
    )
    agent = parser.add_argument_group("settings of the agent")
    agent.add_argument(
        "--base-url", metavar="URL", help="openai: where the server is (default: OPENAI_BASE_URL, or OpenAI's own)"
    )
    agent.add_argument(
        "--key-env", metavar="NAME", help="openai: the environment variable with the key (default: OPENAI_API_KEY)"
    )
    agent.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="openai, hf: the most tokens of a reply, reasoning included (default: the server's limit; hf: 1024)",
    )
    agent.add_argument(
        "--retries", type=int, metavar="N", help="openai: how often a request is sent again (default: 5)"
    )
    agent.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting of the agent, its value as JSON or as text; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--web", action="store_true", help="serve the report as a local page that follows the run, until Ctrl-C"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="with --web: its port (default: a free one)")


def _add_suites(group: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    suites = add_command(group, "suites", "list the suites, or the splits of one", _suites, _SUITES_EXAMPLES)
    suites.add_argument("suite", nargs="?", metavar="SUITE", help="a suite's name, folder or table")
    suites.add_argument(
        "--published",
        action="store_true",
        help="the success that others report, beside random, blind and optimal play of the same protocol; of SUITE, "
        "or the main results of all",
    )
    freeze = add_command(
        group, "freeze", "write the files of levels of a suite of your own, as its table says", _freeze
    )
    freeze.add_argument("suite", type=Path, metavar="SUITE", help="the suite's folder, or its table")


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.web:
        if arguments.port:
            raise ValueError("--port is for the page: add --web, or leave it out.")
        return _play(arguments)
    from ragen_gym.bench.report.live import followed

    with followed(arguments.out, arguments.suite, arguments.port) as (address, process):
        print(f"ragen-gym: {address} follows {arguments.out}", file=sys.stderr, flush=True)
        code = _play(arguments)
        if code != 130:  # Ctrl-C ends the run, and then the page as well
            print(f"ragen-gym: {address} stays until Ctrl-C.", file=sys.stderr, flush=True)
            with suppress(KeyboardInterrupt):
                process.wait()
    return code


def _play(arguments: argparse.Namespace) -> int:
    from asyncio import CancelledError

    from ragen_gym.bench.results import ResultsFolder
    from ragen_gym.bench.runner import RunProgress, run_suite
    from ragen_gym.bench.suites import load_suite
    from ragen_gym.core.stats import scipy_stats

    scipy_stats()  # before the run, not after it
    suite, request = load_suite(arguments.suite), _request(arguments)
    agent = _agent(arguments)
    seen = None if arguments.seen is None else read_seen(arguments.seen)
    if arguments.concurrency is None and hasattr(agent, "batch"):
        request = replace(request, concurrency=agent.batch)
    try:
        with stops_at_sigterm():
            outcome = run_suite(suite, agent, arguments.out, request, RunProgress())
        if seen is not None and (arguments.out / "run.json").is_file():
            ResultsFolder(arguments.out).add_seen(seen)
        return _report_outcome(arguments, outcome)
    except DiskFullError as error:
        raise DiskFullError(f"{error} Then the same command resumes the run.") from error
    except (KeyboardInterrupt, CancelledError):
        print("\nragen-gym: stopped; episodes so far are kept, and the same command resumes the run.", file=sys.stderr)
        return 130


def _report_outcome(arguments: argparse.Namespace, outcome: RunOutcome) -> int:
    """Score what the folder holds now, and print the summary and the failures."""
    from ragen_gym.bench.results import ResultsFolder, load_results

    folder = ResultsFolder(arguments.out)
    run = load_results(folder.path, arguments.suite)
    summary = bench_results.scored(run)
    folder.write_summary(summary)
    if arguments.json:
        print_json(summary)
    else:
        print("\n".join(bench_results.score_lines(summary)))
        print(f"\n{outcome.played} episodes played now, {outcome.kept} kept: {folder.path}")
    again = outcome.infrastructure
    if again:
        print(
            f"ragen-gym: {sum(again.values())} episodes failed and are out of the score; the same command plays them "
            f"again. {folder.episodes} says how each failed; of each kind the most frequent:",
            file=sys.stderr,
        )
        for kind, number in sorted(again.items()):
            details = Counter(record.detail for record in run.records if record.failure == kind)
            print(f"  {number} {kind}: {details.most_common(1)[0][0]}", file=sys.stderr)
    return 1 if again else 0


def _request(arguments: argparse.Namespace) -> RunOptions:
    from ragen_gym.bench.episode_plan import RunOptions, Timeouts

    return RunOptions(
        splits=tuple(arguments.split),
        rollouts=arguments.rollouts,
        limit=arguments.limit,
        temperature=arguments.temperature,
        concurrency=32 if arguments.concurrency is None else arguments.concurrency,
        timeouts=Timeouts(_TIMEOUT if arguments.timeout is None else arguments.timeout, arguments.episode_timeout),
    )


def _agent(arguments: argparse.Namespace) -> ReplyAgent | StepAgent:
    from ragen_gym.bench.agents import make_agent, settings_of

    known = settings_of(arguments.agent)
    names = [*_SETTINGS, *(["timeout"] if "timeout" in known else [])]
    settings = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    settings = joined(settings, named_values("--set", arguments.set))
    if "timeout" in known:
        settings.setdefault("timeout", _TIMEOUT)
    return make_agent(arguments.agent, **settings)


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
    splits = f"{len(suite.splits)} split" + "s" * (len(suite.splits) > 1)
    return f"{suite.name}  {suite.hash}  {splits}, {instances} instances, T = {suite.temperature:g}"
