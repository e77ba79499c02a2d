"""``ragen-gym bench report``, ``bench verify`` and ``bench rescore``: look back at runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.commands.files import check_free, write_new

if TYPE_CHECKING:
    from ragen_gym.bench.rescore import Rescored
    from ragen_gym.bench.run import Run
    from ragen_gym.bench.verify import Verdict

__all__ = ["add"]

_REPORT_EXAMPLES = """\
The page is one file that needs neither a server nor a network. The runs must be of one suite; the first is compared
with each of the others. Without --out the page is report.html in the folder of the first run.

examples:
  ragen-gym bench report runs/qwen
  ragen-gym bench report runs/new runs/old runs/random --out comparison.html
  ragen-gym bench report runs/new runs/old --csv > scores.csv
"""

_VERIFY_EXAMPLES = """\
Every episode is replayed from its level, its luck and its replies or moves, and the summary is made again. The exit
code is 1 where a file claims something else than the replay gives.

examples:
  ragen-gym bench verify runs/qwen
  ragen-gym bench verify runs/qwen --json | jq .holds
"""

_RESCORE_EXAMPLES = """\
Recorded replies are read or paid in another way; no model is asked. Where a reply reads as other moves than were
played, nobody knows what the model would have said next, unless the episode ends there: such episodes are left out of
the new rate, listed, and the rate is bounded by all of them failing and all of them succeeding.

examples:
  ragen-gym bench rescore runs/qwen --lenient                       any name of an action in the answer counts
  ragen-gym bench rescore runs/qwen --no-think --out runs/qwen-short
  ragen-gym bench rescore runs/qwen --format-penalty 0
  ragen-gym bench rescore runs/qwen --parser my_parsers:read        (reply, names of the actions) -> Reply
  ragen-gym bench rescore runs/qwen --reward my_rewards:pay         (Reply, rewards of its moves) -> number
"""

_LISTED = 20
_SECONDS_A_LINE = 15.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    report = _command(commands, "report", "write a page of scores and episodes", _REPORT_EXAMPLES, _report)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: RUN/report.html)")
    report.add_argument("--force", action="store_true", help="replace the file if there is one")
    report.add_argument(
        "--megabytes", type=float, default=20.0, metavar="N", help="the most that episodes take (default: 20)"
    )
    tables = report.add_mutually_exclusive_group()
    for name, what in (("markdown", "Markdown"), ("csv", "CSV"), ("json", "JSON")):
        tables.add_argument(f"--{name}", action="store_true", help=f"print the scores as {what} instead of a page")
    verify = _command(
        commands, "verify", "replay a run, and say whether it is what it claims", _VERIFY_EXAMPLES, _verify
    )
    rescore = _command(commands, "rescore", "read or pay recorded replies in another way", _RESCORE_EXAMPLES, _rescore)
    for parser in (verify, rescore):
        parser.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
        parser.add_argument("--json", action="store_true", help="print JSON")
    reading = rescore.add_mutually_exclusive_group()
    reading.add_argument("--lenient", action="store_true", help="take every action that the last answer names")
    reading.add_argument("--parser", metavar="M:F", help="a function of yours that reads replies")
    reading.add_argument("--think", action="store_true", default=None, help="a reply must think before it answers")
    reading.add_argument("--no-think", dest="think", action="store_false", help="a reply must be an answer alone")
    paying = rescore.add_mutually_exclusive_group()
    paying.add_argument("--format-penalty", type=float, metavar="X", help="what a problem adds to a turn's reward")
    paying.add_argument("--reward", metavar="M:F", help="a function of yours that pays turns")
    rescore.add_argument("--out", type=Path, metavar="DIR", help="keep the rescored run, in a new folder")
    for parser in (report, verify, rescore):
        parser.add_argument("--suite", metavar="SUITE", help="where the suite is now, if the run does not say it")


def _command(commands: Any, name: str, summary: str, examples: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_with_extra(run))
    return parser


def _with_extra(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command; what an extra lacks is said in one line."""

    def checked(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except ImportError as error:
            if "ragen-gym[" not in str(error):
                raise
            raise ValueError(str(error)) from error

    return checked


def _report(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare
    from ragen_gym.bench.report import tables
    from ragen_gym.bench.report.page import page
    from ragen_gym.bench.run import load_runs
    from ragen_gym.bench.score import score

    printing = arguments.markdown or arguments.csv or arguments.json
    out: Path = arguments.out or arguments.runs[0] / "report.html"
    if not printing:
        check_free(out, arguments.force or arguments.out is None)
    if not arguments.megabytes > 0:
        raise ValueError(f"--megabytes {arguments.megabytes:g} must be above 0.")
    runs = load_runs(arguments.runs, arguments.suite)
    for run in runs:
        if not run.records:
            raise ValueError(f"{run.path} holds no episode yet: run it first.")
    suite = runs[0].suite
    summaries = [score(suite, run.records, run.agent) for run in runs]
    if arguments.markdown or arguments.csv:
        print(tables.markdown_tables(summaries) if arguments.markdown else tables.csv_table(summaries), end="")
        return 0
    with _counting(len(runs) - 1, "comparisons") as count:
        comparisons = []
        for run in runs[1:]:
            comparisons.append(compare(suite, (runs[0].agent, runs[0].records), (run.agent, run.records)))
            count(len(comparisons))
    if arguments.json:
        print(tables.json_tables(summaries, comparisons), end="")
        return 0
    with _counting(sum(len(run.records) for run in runs), "episodes") as count:
        text = page(runs, summaries, comparisons, megabytes=arguments.megabytes, progress=count)
    write_new(out, text.encode("utf-8", "replace"), True)
    print(out)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.run import load_run
    from ragen_gym.bench.verify import verify

    run = load_run(arguments.run_folder, arguments.suite)
    with _counting(len(run.records), "episodes") as count:
        verdict = verify(run, count)
    if arguments.json:
        print(json.dumps(verdict.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_verdict_lines(run, verdict)))
    return 0 if verdict.holds else 1


def _verdict_lines(run: Run, verdict: Verdict) -> list[str]:
    lines = [f"{run.suite.name} {run.suite.hash}: {run.agent}"]
    lines += _some([str(difference) for difference in verdict.differences])
    if verdict.summary:
        lines += _some([str(difference) for difference in verdict.summary])
    lines.append(f"{verdict.agreed:,} of {verdict.episodes:,} episodes are what they claim.")
    if verdict.missing:
        lines.append(f"{verdict.missing:,} of {verdict.asked:,} episodes that were asked for are missing.")
    if verdict.excluded:
        lines.append(f"{verdict.excluded:,} failed for reasons of infrastructure, and are out of the score.")
    if verdict.summary is None:
        lines.append("There is no summary.json to check.")
    else:
        lines.append(f"summary.json is {'not ' * bool(verdict.summary)}what the records give.")
    return [*lines, "Verified." if verdict.holds else "The files do not hold what they claim."]


def _rescore(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.rescore import bounds, rescore, save
    from ragen_gym.bench.rescoring import Rescoring
    from ragen_gym.bench.run import load_run

    parser = "lenient" if arguments.lenient else arguments.parser
    rescoring = Rescoring(parser, arguments.think, arguments.format_penalty, arguments.reward)
    if rescoring.changes_nothing:
        raise ValueError("nothing is to be changed: give --lenient, --parser, --think, --no-think or a reward.")
    if arguments.out is not None and arguments.out.exists():
        raise ValueError(f"--out {arguments.out} exists: choose another folder for the rescored run.")
    run = load_run(arguments.run_folder, arguments.suite)
    with _counting(len(run.records), "episodes") as count:
        rescored = rescore(run, rescoring, count)
    if arguments.out is not None:
        save(run, rescored, arguments.out)
    if arguments.json:
        print(json.dumps(_rescored_dict(rescored, bounds(rescored)), indent=2, ensure_ascii=False))
        return 0
    print("\n".join(_rescored_lines(run, rescored, bounds(rescored))))
    if arguments.out is not None:
        print(f"\n{arguments.out}")
    return 0


def _rescored_dict(rescored: Rescored, splits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "agent": rescored.identity["agent"],
        "splits": splits,
        "changed": rescored.changed,
        "reworded": rescored.reworded,
        "unknown": [asdict(each) for each in rescored.unknown],
    }


def _rescored_lines(run: Run, rescored: Rescored, splits: dict[str, dict[str, Any]]) -> list[str]:
    before = {name: [r for r in run.records if r.split == name and r.counted] for name in splits}
    rows = [("split", "as played", "mean return", "rescored", "mean return", "bounds", "known", "unknown")]
    for name, new in splits.items():
        after = [record for record in rescored.records if record.split == name and record.counted]
        rows.append(
            (
                name,
                _percent([record.success for record in before[name]]),
                _mean([record.total_reward for record in before[name]]),
                _percent([record.success for record in after]),
                _mean([record.total_reward for record in after]),
                f"{100 * new['least']:.1f} to {100 * new['most']:.1f} %" if new["least"] is not None else "",
                f"{new['known']:,}",
                f"{new['unknown']:,}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rescored.identity["agent"], ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append("")
    if rescored.unknown:
        lines.append(
            f"In {len(rescored.unknown):,} episodes another move would have been played and the model would have gone "
            "on: they are unknown, and left out of the rescored rate. The bounds hold whatever became of them."
        )
        lines += _some([str(each) for each in rescored.unknown])
    if rescored.changed:
        lines.append(f"{rescored.changed:,} episodes end with other moves than were played, so their outcome is known.")
    if rescored.reworded:
        lines.append(
            f"In {rescored.reworded:,} episodes the model would have been told another reward on the way; its replies "
            "are taken as they are."
        )
    return lines


def _percent(outcomes: Sequence[bool]) -> str:
    return f"{100 * sum(outcomes) / len(outcomes):.1f} %" if outcomes else ""


def _mean(rewards: Sequence[float]) -> str:
    return f"{sum(rewards) / len(rewards):.3f}" if rewards else ""


def _some(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    more = len(lines) - _LISTED
    return [f"  {line}" for line in lines[:_LISTED]] + [f"  and {more:,} more (--json lists them)"] * (more > 0)


@contextmanager
def _counting(total: int, what: str) -> Iterator[Callable[..., None]]:
    """How far a long command is, on standard error: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done, _=0: bar.update(task, completed=done)
        return
    shown = time.monotonic()

    def line(done: int, _: int = 0) -> None:
        nonlocal shown
        if time.monotonic() - shown > _SECONDS_A_LINE:
            shown = time.monotonic()
            print(f"ragen-gym: {done:,} of {total:,} {what}", file=sys.stderr, flush=True)

    yield line
