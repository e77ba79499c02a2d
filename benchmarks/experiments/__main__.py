"""``python -m benchmarks.experiments``: runs experiments and writes their pages."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.experiments.hypothesis_tests import Finding, Runs, adjust, answer, compare, is_decided, stopped_early
from benchmarks.experiments.overview import markdown_overview
from benchmarks.experiments.pages import write_page
from benchmarks.experiments.plan import PlannedRun, arm_settings, plan
from benchmarks.experiments.records import RECORDS, complete_runs, dropped_p_values, missing_runs, recorded_seeds
from benchmarks.experiments.runner import check_settings, run_all
from benchmarks.experiments.spec import Experiment, names, read
from ragen_agent.cli.settings import add_run_code, check_consent
from ragen_agent.config import Config, with_settings
from ragen_agent.inference import torchvision_ops
from ragen_gym.core.command_line import Parser, run_program
from ragen_gym.core.console import rich_console
from ragen_gym.core.storage import locked_folder, write_atomic
from ragen_gym.games.game import NotSolvedError

PROGRAM = "python -m benchmarks.experiments"

ABOUT = """\
Runs experiments: tables of configurations with some seeds each, and controls. Each writes plots, records and a page
with intervals into its folder. Stop it at any moment, even by kill -9, and give the same command to go on; finished
runs are not repeated, nor are those that the pages' folder records: `--pages benchmarks/experiments` adds
to what is published. The conclusions on the pages follow from the intervals alone. An experiment with `looks` in its
table adds seeds to the arms whose comparisons are open, look by look, until each is decided or the last look is over;
of several experiments each is looked at before the first is looked at again. Verdicts are corrected for the number of
comparisons in all tables.

examples:
  python -m benchmarks.experiments --list
  python -m benchmarks.experiments echo-trap --dry-run
  python -m benchmarks.experiments echo-trap --jobs 2
  python -m benchmarks.experiments uncertainty-filter --only "top 25" --only "random 25" --seeds 5
  python -m benchmarks.experiments all --jobs 2
  python -m benchmarks.experiments mine.toml --dry-run  (a table like those in benchmarks/experiments/tables)
  python -m benchmarks.experiments thinking --quick     (a minute; shows that it runs, proves nothing)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    torchvision_ops.prepare()
    return run_program(PROGRAM, _parser, arguments, (gymnasium.error.Error, NotSolvedError))


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description=ABOUT)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="experiments, or all: those of the small model, see --list; or the path of a table (.toml) of your own",
    )
    parser.add_argument("--list", action="store_true", help="list the experiments and their questions")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds of each arm (default 3, or the looks of the experiment up to N)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default runs/experiments, or -quick)")
    parser.add_argument(
        "--pages",
        type=Path,
        metavar="DIR",
        help="folder of pages, plots and records (default: that of the runs)",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs, one core each (default 1)")
    parser.add_argument("--only", action="append", default=[], metavar="ARM", help="only this arm; repeatable")
    add_run_code(parser)
    parser.add_argument(
        "--quick", action="store_true", help="a few tiny iterations: shows that it runs, proves nothing"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the runs that are left, and exit")
    parser.add_argument("--write", action="store_true", help="only write the page again, from the runs on disk")
    return parser


def _run(options: argparse.Namespace) -> int:
    console = rich_console()
    if options.list or not options.names:
        return _list(console)
    for name in ("seeds", "jobs"):
        given = getattr(options, name)
        if given is not None and given < 1:
            raise ValueError(f"--{name} is {given}; it must be at least 1.")
    everything = "all" in options.names
    experiments = [read(name) for name in (names() if everything else dict.fromkeys(options.names))]
    _check_code([each for each in experiments if each.name not in names()], options)
    out = options.out or Path("runs") / ("experiments-quick" if options.quick else "experiments")
    pages = options.pages or out
    for folder in (out, pages):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; give a folder.")
    planned = {each.name: _planned(each, options, out, _looks(each, options)[-1], options.only) for each in experiments}
    if everything:
        experiments = [each for each in experiments if not planned[each.name][0].config.model]
        planned = {each.name: planned[each.name] for each in experiments}
    if options.dry_run:
        return _dry(planned, pages, console)
    shown = {each.name: _shown(each, options, out, pages) for each in experiments}
    if options.write and not any(complete_runs(runs, pages / name) for name, runs in shown.items()):
        raise ValueError(f"there are no complete runs of {', '.join(options.names)} in {out}, nor records in {pages}.")
    for runs in shown.values():  # all of them, before the first takes its hour
        check_settings(runs)
    with locked_folder(out):  # experiments share warm starts, so one command works in a folder at a time
        return 1 if _play_and_write(experiments, options, out, pages, console) else 0


def _check_code(own: Sequence[Experiment], options: argparse.Namespace) -> None:
    """Raises a ValueError if a table of one's own names code to run, and ``--run-code`` is not given."""
    for experiment in own:
        path = Path(f"{experiment.name}.toml")
        for settings in (arm_settings(experiment, arm) for arm in experiment.arms):
            games: dict[str, Any] = {name: settings[name] for name in ("game", "games") if name in settings}
            check_consent(path, options.run_code, with_settings(Config(), games))  # before ``plan`` imports them
        for run in plan(experiment, Path(), 1):
            check_consent(path, options.run_code, run.config)


def _looks(experiment: Experiment, options: argparse.Namespace) -> list[int]:
    """At how many seeds the experiment is looked at, one after another."""
    if options.seeds is None and experiment.looks and not options.quick:
        return list(experiment.looks)
    most = options.seeds or 3
    return [*(look for look in experiment.looks if look < most and not options.quick), most]


def _planned(
    experiment: Experiment, options: argparse.Namespace, out: Path, seeds: int, only: Sequence[str] = ()
) -> list[PlannedRun]:
    return plan(experiment, out / experiment.name, seeds, only=only, quick=options.quick)


def _shown(experiment: Experiment, options: argparse.Namespace, out: Path, pages: Path) -> list[PlannedRun]:
    """What a page is of: all arms, with all seeds that are asked for or there; seeds of a later look where they are."""
    folder = pages / experiment.name
    ends = [path.name.rpartition("-seed")[2] for path in (out / experiment.name / "runs").glob("*-seed*")]
    there = max((int(end) + 1 for end in ends if end.isdecimal()), default=0)
    asked = _looks(experiment, options)[0]
    runs = _planned(experiment, options, out, max(there, recorded_seeds(folder), asked))
    absent = {run.name for run in missing_runs(runs, folder) if not run.folder.is_dir()}
    return [run for run in runs if run.config.seed < asked or run.name not in absent or not experiment.looks]


def _play_and_write(
    experiments: Sequence[Experiment], options: argparse.Namespace, out: Path, pages: Path, console: Console
) -> int:
    """Plays what is missing, look by look, and writes the pages after each; returns how many runs failed."""
    begun, failures = list(experiments), dict[str, dict[str, str]]()
    arms = {each.name: list(options.only) for each in experiments}
    findings: dict[str, list[Finding]] = {}
    number = 0
    while begun:
        for each in list(begun):
            failed, folder = dict[str, str](), pages / each.name
            if not options.write:
                planned = _planned(each, options, out, _looks(each, options)[number], arms[each.name])
                failed = _play(each.name, planned, folder, options.jobs)
            shown = _shown(each, options, out, pages)
            if not failed and len(missing_runs(shown, folder)) == len(shown):
                begun.remove(each)  # a page of runs that are elsewhere stays as it is
                continue
            failures[each.name] = failed
        findings = _write_pages(experiments, failures, options, out, pages)
        for each in list(begun):
            looks, open_claims = _looks(each, options), [f for f in findings[each.name] if not is_decided(f)]
            open_arms = {arm for f in open_claims for arm in f.comparison.arms}
            wanted = [a.name for a in each.arms if a.name in open_arms and (not options.only or a.name in options.only)]
            arms[each.name] = wanted
            if number + 1 == len(looks) or options.write or failures[each.name] or not wanted:
                begun.remove(each)
            else:
                rich_console(stderr=True).print(
                    f"{each.name}: after {looks[number]} seeds {len(wanted)} arms get more: {', '.join(wanted)}.",
                )
        number += 1
    for name in failures:
        for sentence in filter(None, (answer(findings[name]), stopped_early(findings[name]))):
            console.print(f"- {sentence}", soft_wrap=True)
        console.print(f"Page: {pages / name / name}.md", soft_wrap=True)
    if "all" in options.names:
        console.print(f"Overview: {pages / 'README.md'}", soft_wrap=True)
    return sum(map(len, failures.values()))


def _write_pages(
    experiments: Sequence[Experiment],
    failures: Mapping[str, Mapping[str, str]],
    options: argparse.Namespace,
    out: Path,
    pages: Path,
) -> dict[str, list[Finding]]:
    """Write the pages of the experiments that have runs, and the overview of all; returns the adjusted findings.

    Tables of the repository are corrected together, with those whose records lie in ``pages``; one of your own alone.
    """
    known = names()
    others = [name for name in known if name not in {each.name for each in experiments}]
    others = [] if options.quick else [name for name in others if (pages / name / RECORDS).is_file()]
    tables = [*experiments, *map(read, others)]
    shown = {each.name: _shown(each, options, out, pages) for each in tables}
    runs: dict[str, Runs] = {name: complete_runs(planned, pages / name) for name, planned in shown.items()}
    found = {each.name: [compare(runs[each.name], one) for one in each.comparisons] for each in tables}
    further = [] if options.quick else dropped_p_values()
    findings = adjust({name: row for name, row in found.items() if name in known}, further)
    for name in set(found) - set(known):
        findings |= adjust({name: found[name]})
    for each in experiments:
        if (failed := failures.get(each.name)) is not None:
            planned, folder = shown[each.name], pages / each.name
            write_page(each, planned, runs[each.name], findings[each.name], failed, folder, quick=options.quick)
    if "all" in options.names:
        every = {each.name: [run for arm in runs[each.name].values() for run in arm.values()] for each in experiments}
        write_atomic(pages / "README.md", markdown_overview(experiments, findings, every, len(further)))
    return findings


def _play(name: str, planned: Sequence[PlannedRun], pages: Path, jobs: int) -> dict[str, str]:
    """Plays what is missing of ``planned``; what went wrong, by the name of the run."""
    log = rich_console(stderr=True)
    left = missing_runs(planned, pages)
    log.print(f"{name}: {len(planned)} runs, {len(planned) - len(left)} complete, {len(left)} to play.")
    try:
        return run_all(left, jobs, log)
    except KeyboardInterrupt:
        done = len(planned) - len(missing_runs(planned, pages))
        log.print(
            f"\nStopped: {done} of {len(planned)} runs are complete, and what the others have is kept. The same "
            "command goes on.",
        )
        raise


def _list(console: Console) -> int:
    table = Table("name", "arms", "question", box=None, padding=(0, 2, 1, 0))
    for each in map(read, names()):
        table.add_row(Text(each.name, "bold"), str(len(each.arms)), each.question)
    console.print(table)
    return 0


def _dry(planned: Mapping[str, Sequence[PlannedRun]], pages: Path, console: Console) -> int:
    """The runs that are neither whole nor recorded in ``pages``, with the minutes that runs like them took."""
    count, known = 0, sum(map(len, planned.values()))
    for name, runs in planned.items():
        left, there = missing_runs(runs, pages / name), complete_runs(runs, pages / name)
        count += len(left)
        table = Table("arm", "what differs", "runs left", "minutes of one", box=None, padding=(0, 2, 0, 0))
        for arm in {run.arm.name: run.arm for run in left}.values():
            minutes = [
                run.summary["wall_s"] / 60 for run in there.get(arm.name, {}).values() if "wall_s" in run.summary
            ]
            took = f"{fmean(minutes):.1f}" if minutes else ""
            table.add_row(arm.name, arm.about, str(sum(run.arm == arm for run in left)), took)
        if left:
            console.print(Text(name, "bold"), table, sep="\n")
    console.print(f"{count} runs, without the {known - count} that are there. Nothing was run.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
