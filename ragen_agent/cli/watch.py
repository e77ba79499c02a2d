"""``ragen-agent watch``: a run in the terminal while it goes on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen_agent.report.tail import RunStatus

__all__ = ["add"]

ABOUT = """\
Shows a run in the terminal while it goes on: how far it is, its rates between random and optimal play, its figures as
sparklines, alarms, and the last episode that it wrote down. It only reads, so it can be started before the run, during
it and after it. Ctrl-C leaves it.

examples:
  ragen-agent watch runs/FrozenLake-grpo-seed0
  ragen-agent watch runs/FrozenLake-grpo-seed0 --once      one update, for scripts
  ragen-agent watch runs/FrozenLake-grpo-seed0 --json      the same figures as JSON"""


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    watch = commands.add_parser(
        "watch",
        help="show a run in the terminal while it goes on",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    watch.set_defaults(run=_watch)
    watch.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run, which may still be empty")
    watch.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two updates (default 1)")
    watch.add_argument("--once", action="store_true", help="print one update and exit")
    watch.add_argument("--json", action="store_true", help="print the figures once, as JSON")


def _watch(options: argparse.Namespace) -> int:
    import time

    from rich.console import Console
    from rich.live import Live

    from ragen_agent.report.dashboard import dashboard
    from ragen_agent.report.tail import FINISHED, RunTail

    if options.every <= 0:
        raise ValueError(f"--every is {options.every:g}; it must be above 0.")
    console, tail = Console(highlight=False), RunTail(options.run_folder)
    if (options.once or options.json) and not options.run_folder.is_dir():
        raise ValueError(f"there is no folder {options.run_folder}.")
    status = tail.read()
    if options.json:
        print(json.dumps(_status_json(status), indent=2, ensure_ascii=False))
        return 0
    if not options.once and console.is_terminal and status.phase != FINISHED:
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while status.phase != FINISHED:
                    live.update(dashboard(status, console.width), refresh=True)
                    time.sleep(options.every)
                    status = tail.read()
        except KeyboardInterrupt:
            pass
    console.print(dashboard(status, console.width))
    return 0


def _status_json(status: RunStatus) -> dict[str, Any]:
    return {
        "phase": status.phase,
        "iterations": len(status.metrics),
        "of": status.config.training.iterations if status.config else None,
        "seconds_an_iteration": status.seconds,
        "seconds_left": status.left,
        "seconds_quiet": status.quiet,
        "rates": status.summary,
        "last": status.metrics[-1] if status.metrics else None,
        "alarms": [vars(sign) for sign in status.signs],
    }
