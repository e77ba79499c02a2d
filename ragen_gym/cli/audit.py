"""``ragen-gym audit``: whether an environment, of whatever library, is what it says."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragen_gym.cli.command import progress_bar, table_lines, wrapped
from ragen_gym.core.command_line import add_command, print_json
from ragen_gym.core.validation import json_or_text, named_values

if TYPE_CHECKING:
    from ragen_gym.audit import AuditSettings, Report

_EXAMPLES = """\
targets:
  FrozenLake-v1, ragen/Sokoban-v0, minigrid:MiniGrid-Empty-5x5-v0   a Gymnasium id, its module before a colon
  my_package.envs:make                                             a callable that makes an environment
  textarena:NAME, gem:NAME, reasoning-gym:NAME                     a game or task of these libraries

examples:
  ragen-gym audit FrozenLake-v1
  ragen-gym audit textarena:Hangman-v0 --python ../textarena/.venv/bin/python
  ragen-gym audit my_env:Maze --option size=6 --train 0:1000 --test 1000:1100
  ragen-gym audit my_env:Maze --check seed_repeats --check group_level
  ragen-gym audit --learnable my_env:Quiz --minutes 2               does a small model learn from it?

The exit code is 0 without findings, 1 with some, 2 for bad input. With --learnable it is 1 for every verdict but
"teaches" and "not applicable".
"""
_RANDOM_TEXT = """\
The environment lists no actions, so the checks played random characters of its text space, which may reach little of \
it. Give real actions, such as --action "go north" --action look."""
_MARKS = {"passed": "ok", "finding": "FINDING", "not applicable": "-"}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "audit",
        "test anyone's environment: seeds, groups, splits, rewards",
        _audit,
        _EXAMPLES,
        "Ask an environment whether it is what it says. Each check passes, has a finding, or does not apply, and says "
        "why. The environment runs in a process of its own with a time limit.",
    )
    many: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="the environments; see below")
    parser.add_argument("--check", **many, metavar="ID", help="only this check; repeatable")
    parser.add_argument(
        "--option", **many, metavar="KEY=VALUE", help="argument of the constructor, as JSON or text; repeatable"
    )
    parser.add_argument(
        "--action", **many, metavar="ACTION", help="an action to choose from, as JSON or text; repeatable"
    )
    parser.add_argument(
        "--train",
        metavar="SPLIT",
        help="levels trained on: FIRST:LAST seeds, module:function that returns them, or KEY=VALUE of the constructor "
        "(default: splits are not checked)",
    )
    parser.add_argument("--test", metavar="SPLIT", help="the same of the levels held out; needs --train")
    parser.add_argument("--seeds", type=int, default=24, metavar="N", help="seeds that a check plays (default: 24)")
    parser.add_argument("--seconds", type=float, default=20, metavar="S", help="time of one check (default: 20)")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter that has the target's library (default: this one)",
    )
    parser.add_argument("--path", **many, metavar="DIR", help="folder to import from; repeatable")
    parser.add_argument(
        "--learnable",
        action="store_true",
        help="instead of the checks, train a small model and its controls on each environment; needs ragen-gym[agent]",
    )
    parser.add_argument(
        "--minutes", type=float, default=1, metavar="M", help="time of --learnable for an environment (default: 1)"
    )
    parser.add_argument("--all", action="store_true", help="show the checks that passed or do not apply, too")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _audit(arguments: argparse.Namespace) -> int:
    from ragen_gym.audit import CHECKS, AuditSettings, audit

    settings = AuditSettings(
        options=named_values("--option", arguments.option),
        actions=[json_or_text(text) for text in arguments.action],
        checks=arguments.check,
        seeds=arguments.seeds,
        seconds=arguments.seconds,
        train=arguments.train,
        test=arguments.test,
        python=arguments.python,
        path=arguments.path,
    )
    if arguments.learnable:
        return _learn(arguments, settings)
    reports = []
    for target in arguments.targets:
        with progress_bar(f"audit {target}", len(settings.checks or CHECKS)) as bar:
            reports.append(audit(target, settings, lambda check, place: bar.update(place, check)))
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    else:
        print("\n\n".join("\n".join(_lines(report, arguments.all)) for report in reports))
    return 1 if any(report.findings() for report in reports) else 0


def _learn(arguments: argparse.Namespace, settings: AuditSettings) -> int:
    if settings.checks or settings.train:
        raise ValueError("--learnable trains instead of the checks: leave out --check, --train and --test.")
    learnable = import_module("ragen_agent.learnable")
    how, reports = learnable.LearnSettings(seconds=60 * arguments.minutes), []
    for target in arguments.targets:
        with progress_bar(f"learn {target}", len(learnable.CONTROLS)) as bar:
            reports.append(learnable.learn(target, settings, how, lambda phase, place: bar.update(place, phase)))
    if arguments.json:
        print_json([asdict(report) for report in reports])
    for report in () if arguments.json else reports:
        print(wrapped(f"{report.verdict}: {report.reason}", f"{report.target} ({report.version}): "))
        print("\n".join(table_lines([(each.question, each.answer, each.detail) for each in report.answers])))
    return int(any(report.verdict not in ("teaches", "not applicable") for report in reports))


def _lines(report: Report, everything: bool) -> list[str]:
    counts = report.counts()
    found = counts["finding"]
    lines = [
        f"{report.target} ({report.version}): {found} finding{'s' * (found != 1)}, {counts['passed']} passed, "
        f"{counts['not applicable']} not applicable"
    ]
    if report.random_text:
        lines += ["", wrapped(_RANDOM_TEXT)]
    if everything:
        rows = [(_MARKS[each.status], each.check.id, each.detail) for each in report.results]
        lines += ["", *table_lines(rows)]
    for each in report.findings():
        lines += ["", wrapped(each.detail, f"{each.check.severity} {each.check.id}: ")]
        lines += [f"    {line}" for line in each.evidence.split("\n")]
        lines += [wrapped(each.check.why, "  why: "), wrapped(each.check.fix, "  fix: ")]
    return lines
