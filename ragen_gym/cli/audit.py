"""``ragen-gym audit``: whether an environment, of whatever library, is what it says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ragen_gym.cli.command import add_command, named_values, print_json, progress_bar, table_lines, wrapped
from ragen_gym.core.storage import check_free, write_atomic
from ragen_gym.core.validation import json_or_text

if TYPE_CHECKING:
    from ragen_gym.audit import Report

__all__ = ["add"]

_EXAMPLES = """\
targets:
  FrozenLake-v1, ragen/Sokoban-v0, minigrid:MiniGrid-Empty-5x5-v0   a Gymnasium id, its module before a colon
  my_package.envs:make                                             a callable that makes an environment
  textarena:NAME, gem:NAME, reasoning-gym:NAME                     a game or task of these libraries

examples:
  ragen-gym audit FrozenLake-v1
  ragen-gym audit textarena:Hangman-v0 --python ../textarena/.venv/bin/python
  ragen-gym audit my_env:Maze --option size=6 --train 0:1000 --test 1000:1100 --page audit.html
  ragen-gym audit my_env:Maze --check seed_repeats --check group_level

The exit code is 0 where nothing of --fail-on or graver was found, 1 where something was, 2 for bad input.
"""
_MARKS = {"passed": "ok", "finding": "FINDING", "not applicable": "-"}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "audit",
        "test anyone's environment: seeds, groups, splits, rewards, masks",
        _audit,
        _EXAMPLES,
        "Ask an environment whether it is what it says. Each check passes, has a finding, or does not apply, and says "
        "why. The environment runs in a process of its own with a time limit.",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="the environments; see below")
    parser.add_argument("--list", action="store_true", help="list the checks and stop")
    parser.add_argument("--check", action="append", default=[], metavar="ID", help="only this check; repeatable")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the constructor, as JSON or text",
    )
    parser.add_argument(
        "--action", action="append", default=[], metavar="ACTION", help="an action to choose from, as JSON or text"
    )
    parser.add_argument(
        "--train",
        metavar="SPLIT",
        help="levels trained on: FIRST:LAST seeds, module:function that returns them, or KEY=VALUE of the constructor "
        "(default: splits are not checked)",
    )
    parser.add_argument("--test", metavar="SPLIT", help="the same of the levels held out; needs --train")
    parser.add_argument("--seeds", type=int, default=24, metavar="N", help="seeds that a check plays (default: 24)")
    parser.add_argument(
        "--steps", type=int, default=30, metavar="N", help="actions of an episode at most (default: 30)"
    )
    parser.add_argument("--seconds", type=float, default=20, metavar="S", help="time of one check (default: 20)")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that has the target's library (default: this one)",
    )
    parser.add_argument("--path", action="append", default=[], metavar="DIR", help="folder to import from; repeatable")
    parser.add_argument(
        "--fail-on",
        choices=("note", "warning", "error"),
        default="warning",
        help="least severity that gives exit code 1 (default: warning)",
    )
    parser.add_argument("--all", action="store_true", help="show the checks that passed or do not apply, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page")


def _audit(arguments: argparse.Namespace) -> int:
    from ragen_gym.audit import CHECKS, AuditSettings, audit

    if arguments.list:
        rows = [(check.id, check.severity, check.title) for check in CHECKS.values()]
        print("\n".join(table_lines([("check", "severity", "passes where"), *rows])))
        return 0
    if not arguments.targets:
        raise ValueError("no target: give a Gymnasium id, module:callable, or another form that --help lists.")
    if arguments.page:
        check_free(arguments.page, True)
    settings = AuditSettings(
        options=named_values("--option", arguments.option),
        actions=[json_or_text(text) for text in arguments.action],
        checks=arguments.check,
        seeds=arguments.seeds,
        steps=arguments.steps,
        seconds=arguments.seconds,
        train=arguments.train,
        test=arguments.test,
        python=arguments.python,
        path=arguments.path,
    )
    reports = []
    for target in arguments.targets:
        with progress_bar(f"audit {target}", len(settings.checks or CHECKS)) as bar:
            reports.append(audit(target, settings, lambda check, place, _: bar.update(place, check)))
    if arguments.page:
        write_atomic(arguments.page, page(reports))
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    else:
        print("\n\n".join("\n".join(_lines(report, arguments.all)) for report in reports))
    return 1 if any(report.findings(arguments.fail_on) for report in reports) else 0


def _lines(report: Report, everything: bool) -> list[str]:
    counts = report.counts()
    found = counts["finding"]
    lines = [
        f"{report.target} ({report.version}): {found} finding{'s' * (found != 1)}, {counts['passed']} passed, "
        f"{counts['not applicable']} not applicable"
    ]
    if everything:
        rows = [(_MARKS[each.status], each.check.id, each.detail) for each in report.results]
        lines += ["", *table_lines(rows)]
    for each in report.findings():
        lines += ["", wrapped(each.detail, f"{each.check.severity} {each.check.id}: ")]
        lines += [f"    {line}" for line in each.evidence.split("\n")]
        lines += [wrapped(each.check.why, "  why: "), wrapped(each.check.fix, "  fix: ")]
    return lines


def page(reports: list[Report]) -> str:
    """The reports as one HTML page."""
    from importlib.resources import files

    from ragen_gym.bench.report.html_page import plural, render_page

    found = [(report, result) for report in reports for result in report.findings()]
    titles = ", ".join(report.target for report in reports)
    return render_page(
        "audit.html",
        None,
        folder=Path(str(files("ragen_gym.audit") / "templates")),
        styles=("audit.css",),
        kind="Audit",
        title=titles if len(titles) <= 60 else f"{len(reports)} environments",
        lede="Whether environments are what they say: every check passed, has a finding, or does not apply.",
        counts=[plural(len(reports), "target"), plural(len(found), "finding")],
        findings=[f"{report.target}: {result.detail}" for report, result in found if result.check.severity == "error"],
        terms=[
            ("finding", "The check failed; the code below it ends in an assertion that fails."),
            ("passed", "The check was carried out and held, on as many seeds as it says."),
            ("not applicable", "The check says nothing about this environment, for the reason given; it is no pass."),
            ("error, warning, note", "A reported number is wrong; may be wrong; good to know."),
        ],
        colophon=["Made by ragen-gym audit."],
        reports=reports,
    )
