"""``ragen-gym bench report``, ``verify``, ``rescore`` and ``leaderboard``: runs replayed from their records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.cli.command import add_command, first_lines, print_json, progress_bar, table_lines, wrapped
from ragen_gym.core.storage import check_free, write_atomic

if TYPE_CHECKING:
    from ragen_gym.bench.rescore import RescoredRun
    from ragen_gym.bench.results import BenchResults
    from ragen_gym.bench.verify import Verdict

__all__ = ["add"]

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
     reasons of infrastructure, or there is no summary.json; the rate may be
     of a part that was chosen
  2  bad input: no run is in the folder, or its suite is not found

What this cannot show:

  - that the records are the first ones: whoever owns the folder can write
    others that the game gives, or leave out sessions
  - that the run was the only one: it may be the best of many runs, seeds or
    folders
  - that the replies are a model's, or that the agent did not look at the
    game: a python: agent runs in the same process. What it is shown (task.env)
    draws other transition noise than what scores, and success above the
    interval of optimal play is printed as a doubt
  - that tokens, seconds, reasoning and finish reasons are true: they are
    what the agent said; a cost is only checked against them

Only a judge who plays the agent again can show these.

examples:
  ragen-gym bench verify runs/qwen
  ragen-gym bench verify runs/qwen --json | jq .verdict
"""


_RESCORE_EXAMPLES = """\
Recorded replies are parsed or rewarded differently, without the model. Where a reply now says other moves than were
played, what the model would have replied next is unknown, unless the episode ends there: such episodes are left out of
the new rate and listed, and the rate is bounded by all of them failing and all of them succeeding.

examples:
  ragen-gym bench rescore runs/qwen --lenient                       any name of an action in the answer counts
  ragen-gym bench rescore runs/qwen --no-think --out runs/qwen-short
  ragen-gym bench rescore runs/qwen --format-penalty 0
  ragen-gym bench rescore runs/qwen --parser my_parsers:read        (reply, names of the actions) -> Reply
  ragen-gym bench rescore runs/qwen --reward my_rewards:pay         (Reply, rewards of its moves) -> number
"""

_LEADERBOARD_EXAMPLES = """\
A submission is the folder of a run with a text file submission.toml in it:

  who = "Ada, Example University"
  model = "Qwen2.5-0.5B-Instruct, StarPO-S on the training split"
  settings = "one rollout a level, T = 0.5, 400 tokens a reply"
  link = "https://example.org/weights"   (may be left out)

It is accepted where bench verify verifies it, and where it played, of a suite of the package, all instances of each
split that it played, each as often. The page lists the others with the reason, and the exit code is 1 where there are
any.

examples:
  ragen-gym bench leaderboard submissions/                a folder for each submission
  ragen-gym bench leaderboard runs/mine --out page.md     before you submit it
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the four commands."""
    report = add_command(commands, "report", "write an HTML page of scores and episodes", _report, _REPORT_EXAMPLES)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument("--out", type=Path, metavar="FILE", help="the page (default: RUN/report.html)")
    report.add_argument("--force", action="store_true", help="replace the file if there is one")
    report.add_argument(
        "--megabytes", type=float, default=20.0, metavar="N", help="the most that episodes take (default: 20)"
    )
    tables = report.add_mutually_exclusive_group()
    for name, what in (("markdown", "Markdown"), ("json", "JSON")):
        tables.add_argument(f"--{name}", action="store_true", help=f"print the scores as {what} instead of a page")
    verify = add_command(
        commands, "verify", "replay a run, and check that its files are right", _verify, _VERIFY_EXAMPLES
    )
    verify.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    verify.add_argument("--run-code", action="store_true", help="import the functions that a rescored run names")
    verify.add_argument("--json", action="store_true", help="print JSON")
    rescore = add_command(
        commands, "rescore", "parse or reward recorded replies differently", _rescore, _RESCORE_EXAMPLES
    )
    rescore.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    parsing = rescore.add_mutually_exclusive_group()
    parsing.add_argument("--lenient", action="store_true", help="take every action that the last answer names")
    parsing.add_argument(
        "--parser", metavar="M:F", help="a function of yours that parses replies (default: the suite's parser)"
    )
    parsing.add_argument("--think", action="store_true", default=None, help="a reply must think before it answers")
    parsing.add_argument("--no-think", dest="think", action="store_false", help="a reply must be an answer alone")
    rewarding = rescore.add_mutually_exclusive_group()
    rewarding.add_argument(
        "--format-penalty",
        type=float,
        metavar="X",
        help="what a malformed reply adds to the reward of its turn (default: the suite's)",
    )
    rewarding.add_argument("--reward", metavar="M:F", help="a function of yours that rewards turns")
    rescore.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the rescored run, in a new folder (default: only print it)"
    )
    rescore.add_argument("--json", action="store_true", help="print JSON")
    for parser in (report, verify, rescore):
        parser.add_argument(
            "--suite",
            metavar="SUITE",
            help="the suite, by name, folder or table: needed where it moved or has games of your own",
        )
    summary = "verify submissions, and write their page, sorted by suite and score"
    board = add_command(commands, "leaderboard", summary, _leaderboard, _LEADERBOARD_EXAMPLES)
    board.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="submissions, or folders that hold them")
    board.add_argument(
        "--out", type=Path, default=Path("leaderboard.md"), metavar="FILE", help="the page (default: leaderboard.md)"
    )
    board.add_argument("--force", action="store_true", help="replace the file if there is one")
    board.add_argument("--json", action="store_true", help="print JSON, and write no page")


def _report(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.compare import compare_results
    from ragen_gym.bench.losses import losses_by_split
    from ragen_gym.bench.replay import Replayer
    from ragen_gym.bench.report.benchmark_page import page
    from ragen_gym.bench.report.html_page import is_page
    from ragen_gym.bench.report.tables import markdown_tables
    from ragen_gym.bench.results import load_several
    from ragen_gym.bench.score import score_results

    printing = next((form for form in ("markdown", "json") if getattr(arguments, form)), None)
    if printing and arguments.out:
        raise ValueError(f"--out is for the page: leave it out with --{printing}, and redirect what is printed.")
    out: Path = arguments.out or arguments.runs[0] / "report.html"
    if not arguments.megabytes > 0:
        raise ValueError(f"--megabytes {arguments.megabytes:g} must be above 0.")
    runs = load_several(arguments.runs, arguments.suite)
    if not printing:
        check_free(out, arguments.force or (arguments.out is None and is_page(out)))
    for run in runs:
        if not run.records:
            raise ValueError(f"{run.path} holds no episode yet: run it first.")
    summaries = [score_results(run) for run in runs]
    if arguments.markdown:
        print(markdown_tables(summaries), end="")
        return 0
    with progress_bar("comparisons", len(runs) - 1) as bar:
        comparisons = []
        for run in runs[1:]:
            comparisons.append(compare_results(runs[0], run))
            bar.update(len(comparisons))
    if arguments.json:
        replayers = {split.name: Replayer(split, valued=True) for split in runs[0].suite.splits}
        losses = [
            {"agent": runs[place].agent, "split": name, **asdict(found)}
            for name, place, found in losses_by_split(runs, replayers)
        ]
        print_json({"runs": summaries, "comparisons": comparisons, "losses": losses})
        return 0
    with progress_bar("episodes", sum(len(run.records) for run in runs)) as bar:
        text = page(runs, summaries, comparisons, megabytes=arguments.megabytes, progress=bar.update)
    check_free(out, True)
    write_atomic(out, text)
    print(out)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.results import RecordError, load_results
    from ragen_gym.bench.verify import EXIT_CODES, Mismatch, Verdict, verify

    try:
        run = load_results(arguments.run_folder, arguments.suite)
    except RecordError as error:
        verdict = Verdict(differences=[Mismatch("episodes.jsonl", "a line", str(error), "a record")])
        lines = first_lines([str(error)])
    else:
        with progress_bar("episodes", len(run.records)) as bar:
            verdict = verify(run, bar.update, run_code=arguments.run_code)
        lines = _verdict_lines(run, verdict)
    if arguments.json:
        print_json(verdict.to_dict())
    else:
        print("\n".join([*lines, _last_line(verdict)]))
    return EXIT_CODES[verdict.verdict]


_SENTENCES = {
    "verified": "Verified.",
    "incomplete": "Incomplete: nothing differs, but something is missing that is needed to verify the run.",
    "false": "False: the files are not those of a run that was played like this.",
}


def _last_line(verdict: Verdict) -> str:
    if not verdict.holds:
        return _SENTENCES[verdict.verdict]
    return f"Verified, but ask why. {'; '.join(verdict.doubts).capitalize()}." if verdict.doubts else "Verified."


def _verdict_lines(run: BenchResults, verdict: Verdict) -> list[str]:
    lines = [f"{run.suite.name} {run.suite.hash}: {run.agent}"]
    lines += first_lines([str(difference) for difference in verdict.differences])
    if verdict.summary:
        lines += first_lines([str(difference) for difference in verdict.summary])
    lines.append(f"{verdict.agreed:,} of {verdict.episodes:,} episodes are as recorded.")
    lines += [f"{said[0].upper()}{said[1:]}." for said in (*verdict.lacks, *verdict.doubts)]
    if unasked := sum(not rollouts for split in run.asked.values() for rollouts in split):
        instances = sum(len(split.levels) for split in run.suite.splits)
        lines.append(f"{unasked:,} of the suite's {instances:,} instances were not asked for (--split, --limit).")
    if verdict.summary is not None:
        lines.append(f"summary.json is {'not ' * bool(verdict.summary)}what the records give.")
    return lines


def _rescore(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.rescore import Rescoring, bounds, rescore, save
    from ragen_gym.bench.results import load_results

    parser = "lenient" if arguments.lenient else arguments.parser
    rescoring = Rescoring(parser, arguments.think, arguments.format_penalty, arguments.reward)
    if rescoring.changes_nothing:
        raise ValueError("nothing would change: give --lenient, --parser, --think, --no-think or a reward.")
    if arguments.out is not None and arguments.out.exists():
        raise ValueError(f"--out {arguments.out} exists: choose another folder for the rescored run.")
    run = load_results(arguments.run_folder, arguments.suite)
    with progress_bar("episodes", len(run.records)) as bar:
        rescored = rescore(run, rescoring, bar.update)
    if arguments.out is not None:
        save(run, rescored, arguments.out)
    if arguments.json:
        print_json(_rescored_dict(rescored, bounds(rescored)))
        return 0
    print("\n".join(_rescored_lines(run, rescored, bounds(rescored))))
    if arguments.out is not None:
        print(f"\n{arguments.out}")
    return 0


def _rescored_dict(rescored: RescoredRun, splits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "agent": rescored.identity["agent"],
        "splits": splits,
        "changed": rescored.changed,
        "reworded": rescored.reworded,
        "unknown": [asdict(each) for each in rescored.unknown],
    }


def _rescored_lines(run: BenchResults, rescored: RescoredRun, splits: dict[str, dict[str, Any]]) -> list[str]:
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
    lines = [rescored.identity["agent"], "", *table_lines(rows), ""]
    if rescored.unknown:
        lines.append(
            f"In {len(rescored.unknown):,} episodes other moves would have been played and the model replied "
            "again: they are unknown, and left out of the rescored rate. The bounds hold for every outcome of them."
        )
        lines += first_lines([str(each) for each in rescored.unknown])
    if rescored.changed:
        lines.append(
            f"{rescored.changed:,} episodes end with other moves than were played, and their outcome is known."
        )
    if rescored.reworded:
        lines.append(
            f"In {rescored.reworded:,} episodes the messages would have stated another reward; the replies are kept as "
            "they are."
        )
    return lines


def _percent(outcomes: Sequence[bool]) -> str:
    return f"{100 * sum(outcomes) / len(outcomes):.1f} %" if outcomes else ""


def _mean(rewards: Sequence[float]) -> str:
    return f"{sum(rewards) / len(rewards):.3f}" if rewards else ""


def _leaderboard(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.report.leaderboard import find_submissions, judge, page

    paths = find_submissions(arguments.folders)
    if not arguments.json:
        check_free(arguments.out, arguments.force)
    with progress_bar("submissions", len(paths)) as bar:
        entries, refusals = judge(paths, bar.update)
    refused = [{"path": str(each.path), "reason": each.reason} for each in refusals]
    if arguments.json:
        accepted = [{"path": str(each.path), **asdict(each.submission), "summary": each.summary} for each in entries]
        print_json({"accepted": accepted, "refused": refused})
    else:
        write_atomic(arguments.out, page(entries, refusals))
        for each in refusals:
            print(wrapped(f"refused: {each.reason}", f"{each.path}  "))
        print(f"{arguments.out}: {len(entries)} accepted, {len(refusals)} refused")
    return 1 if refusals else 0
