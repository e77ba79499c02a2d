"""``ragen-gym bench report`` and ``bench verify``: look at runs, and at whether they are what they claim."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_gym.cli import bench_rescore
from ragen_gym.cli.run_options import command, counting, first_lines
from ragen_gym.core.storage import check_free, write_atomic

if TYPE_CHECKING:
    from ragen_gym.bench.results import BenchResults
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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three commands."""
    report = command(commands, "report", "write a page of scores and episodes", _REPORT_EXAMPLES, _report)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: RUN/report.html)")
    report.add_argument("--force", action="store_true", help="replace the file if there is one")
    report.add_argument(
        "--megabytes", type=float, default=20.0, metavar="N", help="the most that episodes take (default: 20)"
    )
    tables = report.add_mutually_exclusive_group()
    for name, what in (("markdown", "Markdown"), ("csv", "CSV"), ("json", "JSON")):
        tables.add_argument(f"--{name}", action="store_true", help=f"print the scores as {what} instead of a page")
    verify = command(
        commands, "verify", "replay a run, and say whether it is what it claims", _VERIFY_EXAMPLES, _verify
    )
    verify.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    verify.add_argument("--json", action="store_true", help="print JSON")
    for parser in (report, verify):
        parser.add_argument("--suite", metavar="SUITE", help="where the suite is now, if the run does not say it")
    bench_rescore.add(commands)


def _report(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare
    from ragen_gym.bench.report import tables
    from ragen_gym.bench.report.page import page
    from ragen_gym.bench.results import load_several
    from ragen_gym.bench.score import score

    printing = arguments.markdown or arguments.csv or arguments.json
    out: Path = arguments.out or arguments.runs[0] / "report.html"
    if not printing:
        check_free(out, arguments.force or arguments.out is None)
    if not arguments.megabytes > 0:
        raise ValueError(f"--megabytes {arguments.megabytes:g} must be above 0.")
    runs = load_several(arguments.runs, arguments.suite)
    for run in runs:
        if not run.records:
            raise ValueError(f"{run.path} holds no episode yet: run it first.")
    suite = runs[0].suite
    summaries = [score(suite, run.records, run.agent) for run in runs]
    if arguments.markdown or arguments.csv:
        print(tables.markdown_tables(summaries) if arguments.markdown else tables.csv_table(summaries), end="")
        return 0
    with counting(len(runs) - 1, "comparisons") as count:
        comparisons = []
        for run in runs[1:]:
            comparisons.append(compare(suite, (runs[0].agent, runs[0].records), (run.agent, run.records)))
            count(len(comparisons))
    if arguments.json:
        print(tables.json_tables(summaries, comparisons), end="")
        return 0
    with counting(sum(len(run.records) for run in runs), "episodes") as count:
        text = page(runs, summaries, comparisons, megabytes=arguments.megabytes, progress=count)
    check_free(out, True)
    write_atomic(out, text.encode("utf-8", "replace"))
    print(out)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.results import load_results
    from ragen_gym.bench.verify import verify

    run = load_results(arguments.run_folder, arguments.suite)
    with counting(len(run.records), "episodes") as count:
        verdict = verify(run, count)
    if arguments.json:
        print(json.dumps(verdict.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_verdict_lines(run, verdict)))
    return 0 if verdict.holds else 1


def _verdict_lines(run: BenchResults, verdict: Verdict) -> list[str]:
    lines = [f"{run.suite.name} {run.suite.hash}: {run.agent}"]
    lines += first_lines([str(difference) for difference in verdict.differences])
    if verdict.summary:
        lines += first_lines([str(difference) for difference in verdict.summary])
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
