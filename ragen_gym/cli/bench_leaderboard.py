"""``ragen-gym bench leaderboard``: submissions verified, and their page."""

from __future__ import annotations

import argparse
from pathlib import Path

from ragen_gym.cli.command import add_command, print_json, progress_bar, wrapped
from ragen_gym.core.storage import check_free, write_atomic

__all__ = ["add"]

_EXAMPLES = """\
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
    """Add the command."""
    summary = "verify submissions, and write their page, sorted by suite and score"
    parser = add_command(commands, "leaderboard", summary, _leaderboard, _EXAMPLES)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="submissions, or folders that hold them")
    parser.add_argument(
        "--out", type=Path, default=Path("leaderboard.md"), metavar="FILE", help="the page (default: leaderboard.md)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON, and write no page")


def _leaderboard(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

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
