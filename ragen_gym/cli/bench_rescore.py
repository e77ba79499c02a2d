"""``ragen-gym bench rescore``: what recorded replies are worth in another reading."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_gym.cli.run_options import command, counting, first_lines

if TYPE_CHECKING:
    from ragen_gym.bench.rescore import RescoredRun
    from ragen_gym.bench.results import BenchResults

__all__ = ["add"]

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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    rescore = command(commands, "rescore", "read or pay recorded replies in another way", _RESCORE_EXAMPLES, _rescore)
    rescore.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run")
    reading = rescore.add_mutually_exclusive_group()
    reading.add_argument("--lenient", action="store_true", help="take every action that the last answer names")
    reading.add_argument("--parser", metavar="M:F", help="a function of yours that reads replies")
    reading.add_argument("--think", action="store_true", default=None, help="a reply must think before it answers")
    reading.add_argument("--no-think", dest="think", action="store_false", help="a reply must be an answer alone")
    paying = rescore.add_mutually_exclusive_group()
    paying.add_argument("--format-penalty", type=float, metavar="X", help="what a problem adds to a turn's reward")
    paying.add_argument("--reward", metavar="M:F", help="a function of yours that pays turns")
    rescore.add_argument("--out", type=Path, metavar="DIR", help="keep the rescored run, in a new folder")
    rescore.add_argument("--json", action="store_true", help="print JSON")
    rescore.add_argument("--suite", metavar="SUITE", help="where the suite is now, if the run does not say it")


def _rescore(arguments: argparse.Namespace) -> int:
    from ragen_gym.bench.rescore import Rescoring, bounds, rescore, save
    from ragen_gym.bench.results import load_results

    parser = "lenient" if arguments.lenient else arguments.parser
    rescoring = Rescoring(parser, arguments.think, arguments.format_penalty, arguments.reward)
    if rescoring.changes_nothing:
        raise ValueError("nothing is to be changed: give --lenient, --parser, --think, --no-think or a reward.")
    if arguments.out is not None and arguments.out.exists():
        raise ValueError(f"--out {arguments.out} exists: choose another folder for the rescored run.")
    run = load_results(arguments.run_folder, arguments.suite)
    with counting(len(run.records), "episodes") as count:
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rescored.identity["agent"], ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append("")
    if rescored.unknown:
        lines.append(
            f"In {len(rescored.unknown):,} episodes another move would have been played and the model would have gone "
            "on: they are unknown, and left out of the rescored rate. The bounds hold whatever became of them."
        )
        lines += first_lines([str(each) for each in rescored.unknown])
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
