"""``ragen-gym bench score``, ``compare``, ``report``, ``verify`` and ``export``: results of runs that were played."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.cli.command import first_lines, progress_bar, table_lines, wrapped
from ragen_gym.core.command_line import add_command, print_json
from ragen_gym.core.storage import atomic_folder, check_absent, check_free, json_line, locked_folder, write_atomic

if TYPE_CHECKING:
    from ragen_gym.bench.results import BenchResults

_SCORE_EXAMPLES = """\
Without --write the files of the run stay as they are; with it, summary.json is written again.

examples:
  ragen-gym bench score runs/gpt
  ragen-gym bench score runs/gpt --json | jq .splits.sokoban.success
"""

_COMPARE_EXAMPLES = """\
The two runs must be of the same suite. Success is compared on the instances that both played, of all levels together
and of each split, in tests paired by level, with Holm's correction among the splits. The interval of a difference is
that of its test: it leaves 0 out exactly where the first run is called better or worse.

With --fail-if-worse the exit code is 1 where such an interval lies beyond the margin, and where the first run has no
scored episode of a level asked of it that the second has one of.

examples:
  ragen-gym bench compare runs/new runs/old
  ragen-gym bench compare runs/new runs/old --fail-if-worse 2
"""

_REPORT_EXAMPLES = """\
The page is one file that needs neither a server nor a network. The runs must be of one suite; the first is compared
with each of the others. Without --out the page is report.html in the folder of the first run, where
an earlier page is replaced.

examples:
  ragen-gym bench report runs/qwen
  ragen-gym bench report runs/new runs/old runs/random --out comparison.html
  ragen-gym bench report runs/new runs/old --markdown
"""

_VERIFY_EXAMPLES = """\
Every episode is replayed from its level, its noise seed and its replies or
moves, and the summary is computed again. The exit code is the verdict:

  0  verified: every episode asked for has an outcome, and nothing differs
  1  false: something differs from the replay, or is there twice
  3  incomplete: nothing differs, but episodes are missing or failed for
     reasons of infrastructure, or there is no summary.json
  2  bad input: no run is in the folder, its suite is not found, or a line is
     not a record

This cannot show that the records are the first ones, that the run was the only
one, that the replies are a model's, that the agent did not look at the game, or
that tokens and seconds are true. Only a judge who plays the agent again can.

examples:
  ragen-gym bench verify runs/qwen
  ragen-gym bench verify runs/qwen --json | jq .verdict
"""

_EXPORT_EXAMPLES = """\
The format is ATIF 1.7, the Agent Trajectory Interchange Format of Harbor. A file holds one episode: messages, replies,
rewards, tokens, the level and how it ended. Episodes that failed are among them.

examples:
  ragen-gym bench export runs/qwen --out trajectories
"""

#: Of the option ``--seen``.
SEEN_HELP = "the record of the levels that the agent saw in training: seen.npy of its run, or the run's folder"

_VERDICTS = {
    "verified": "Verified.",
    "incomplete": "Incomplete: nothing differs, but something is missing that is needed to verify the run.",
    "false": "False: the files are not those of a run that was played like this.",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the five commands."""
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
    compare.add_argument("first", type=Path, metavar="RUN", help="the folder of a run")
    compare.add_argument("second", type=Path, metavar="RUN", help="the folder of another run of the same suite")
    report = add_command(commands, "report", "write an HTML page of scores and episodes", _report, _REPORT_EXAMPLES)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: RUN/report.html)")
    report.add_argument("--force", action="store_true", help="replace the file if there is one")
    report.add_argument("--markdown", action="store_true", help="print the scores as Markdown instead of a page")
    verify = add_command(
        commands, "verify", "replay a run, and check that its files are right", _verify, _VERIFY_EXAMPLES
    )
    verify.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    export = add_command(
        commands, "export", "write the episodes as ATIF trajectories, one JSON file each", _export, _EXPORT_EXAMPLES
    )
    export.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write, which is new")
    for parser in (score, compare, report, verify):
        parser.add_argument("--json", action="store_true", help="print JSON")
    for parser in (score, compare, report, verify, export):
        parser.add_argument(
            "--suite",
            metavar="SUITE",
            help="the suite, by name, folder or table: needed where it moved or has games of your own",
        )


def scored(run: BenchResults) -> dict[str, Any]:
    """The summary of a run, with progress: random and optimal play of its levels are computed too."""
    from ragen_gym.bench.score import score_results

    with progress_bar("splits scored", len(run.suite.splits), at_once=True) as bar:
        return score_results(run, bar.advance)


def _score(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.results import ResultsFolder, load_results
    from ragen_gym.core.seen import read_seen

    folder = ResultsFolder(arguments.run_folder)
    writing = arguments.write and folder.path.is_dir()
    with locked_folder(folder.path) if writing else nullcontext():  # a summary amid a session would be of a part
        run = load_results(folder.path, arguments.suite)
        if arguments.seen is not None:
            run = replace(run, seen=read_seen(arguments.seen) | (run.seen or frozenset()))
        summary = scored(run)
        if arguments.write:
            if arguments.seen is not None and run.seen is not None:
                folder.add_seen(run.seen)
            folder.write_summary(summary)
    if arguments.json:
        print_json(summary)
    else:
        print("\n".join(score_lines(summary)))
    return 0


def score_lines(summary: dict[str, Any]) -> list[str]:
    """A summary as a table for the terminal, with a note for each split that does not differ from random play."""
    from ragen_gym.bench.report.tables import episodes_asked, indistinct, score_table, sentences

    overall = summary["overall"]
    title = f"{summary['suite']} {summary['hash']}: {summary['agent']}, {episodes_asked(overall)}"
    rows = [[row[0], *row[2:]] for row in score_table([summary])]  # the title names the agent
    tokens, said = overall["tokens"], []
    if overall["episodes"] < overall["asked"]:
        said.append("bounds: success of all episodes asked for if those missing or excluded had failed, or succeeded")
    if tokens:
        said.append(f"{tokens['prompt']} prompt and {tokens['completion']} completion tokens")
    return [title, "", *table_lines(rows), "", *said, *sentences(summary), *indistinct(summary)]


def _compare(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare_results, worse
    from ragen_gym.bench.results import load_several

    margin = arguments.fail_if_worse
    if margin is not None and not 0 <= margin <= 100:
        raise ValueError(f"--fail-if-worse {margin:g}: give percentage points from 0 to 100.")
    first, second = load_several([arguments.first, arguments.second], arguments.suite)
    result = compare_results(first, second)
    failed = [] if margin is None else worse(result, margin)
    if arguments.json:
        print_json(result if margin is None else {**result, "worse": failed})
        return int(bool(failed))
    print(wrapped(f"{result['suite']} {result['hash']}: {first.agent} (first) and {second.agent} (second)") + "\n")
    for which, run in result["runs"].items():
        print(f"{which + ':':8}{run['episodes']:,} of {run['asked']:,} episodes asked for are scored")
    if result["splits"]:
        print("\n" + "\n".join(_compared(result)))
    played = (each.split for run in (first, second) for each in run.records)
    if alone := [name for name in dict.fromkeys(played) if name not in result["splits"]]:
        print("\n" + wrapped(f"Not compared, since no instance has a scored episode of both: {', '.join(alone)}."))
    if margin is not None:
        beyond = f" by more than {margin:g} points" * bool(margin)
        print(f"\n{first.agent} is {'' if failed else 'not shown to be '}worse{beyond}{':' if failed else '.'}")
        print("".join(f"{wrapped(said, '  ')}\n" for said in failed), end="")
    return int(bool(failed))


def _compared(result: dict[str, Any]) -> list[str]:
    """The differences with the interval of each test."""
    entries = {f"{result['all']['difference']['levels']:,} levels": result["all"], **result["splits"]}
    rows = [("", "first", "second", "difference", "", "first is")]
    for name, entry in entries.items():
        of, rates = entry["difference"], [f"{100 * entry[which]:z.1f}" for which in ("first", "second")]
        ends = "" if of["low"] is None else f"({100 * of['low']:+z.1f} to {100 * of['high']:+z.1f})"
        rows.append((name, *rates, f"{100 * of['value']:+z.1f}", ends, entry["verdict"]))
    legend = (
        "Success in %, paired by level. The interval in brackets is that of the test, for splits with Holm's "
        "correction: it leaves 0 out exactly where the first is better or worse."
    )
    return [*table_lines(rows), "", wrapped(legend)]


def _report(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare_results
    from ragen_gym.bench.losses import losses_by_split
    from ragen_gym.bench.replay import Replayer
    from ragen_gym.bench.report.benchmark_page import page
    from ragen_gym.bench.report.html_page import is_page
    from ragen_gym.bench.report.tables import markdown_tables
    from ragen_gym.bench.results import load_several

    printing = arguments.markdown or arguments.json
    if printing and arguments.out:
        raise ValueError("--out is for the page: leave it out, and redirect what --markdown or --json prints.")
    out: Path = arguments.out or arguments.runs[0] / "report.html"
    runs = load_several(arguments.runs, arguments.suite)
    if not printing:
        check_free(out, arguments.force or (arguments.out is None and is_page(out)))
    for run in runs:
        if not run.records:
            raise ValueError(f"{run.path} holds no episode yet: run it first.")
    summaries = [scored(run) for run in runs]
    if arguments.markdown:
        print(markdown_tables(summaries), end="")
        return 0
    comparisons = [compare_results(runs[0], run) for run in runs[1:]]
    if arguments.json:
        replayers = {split.name: Replayer(split, valued=True) for split in runs[0].suite.splits}
        losses = [
            {"agent": runs[place].agent, "split": name, **asdict(found)}
            for name, place, found in losses_by_split(runs, replayers)
        ]
        print_json({"runs": summaries, "comparisons": comparisons, "losses": losses})
        return 0
    with progress_bar("episodes", sum(len(run.records) for run in runs)) as bar:
        text = page(runs, summaries, comparisons, progress=bar.update)
    write_atomic(out, text)
    print(out)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.atif import trajectories
    from ragen_gym.bench.results import load_results

    folder: Path = arguments.out
    check_absent(folder)
    documents = trajectories(load_results(arguments.run_folder, arguments.suite))
    with atomic_folder(folder) as new:
        for name, document in documents.items():
            (new / name).write_bytes(json_line(document))
    print(f"{len(documents):,} episodes in {folder}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.results import load_results
    from ragen_gym.bench.verify import EXIT_CODES, verify

    run = load_results(arguments.run_folder, arguments.suite)
    with progress_bar("episodes", len(run.records)) as bar:
        verdict = verify(run, bar.update)
    if arguments.json:
        print_json(verdict.to_dict())
        return EXIT_CODES[verdict.verdict]
    lines = [f"{run.suite.name} {run.suite.hash}: {run.agent}"]
    lines += first_lines([str(difference) for difference in verdict.differences])
    lines.append(f"{verdict.agreed:,} of {verdict.episodes:,} episodes are as recorded.")
    lines += [f"{said[0].upper()}{said[1:]}." for said in verdict.lacks]
    if unasked := sum(not rollouts for split in run.asked.values() for rollouts in split):
        instances = sum(len(split.levels) for split in run.suite.splits)
        lines.append(f"{unasked:,} of the suite's {instances:,} instances were not asked for (--split, --limit).")
    lines.append(_VERDICTS[verdict.verdict])
    if verdict.doubts:
        lines.append(f"But ask why: {'; '.join(verdict.doubts)}.")
    print("\n".join(lines))
    return EXIT_CODES[verdict.verdict]
