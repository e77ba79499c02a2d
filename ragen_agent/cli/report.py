"""``ragen-agent report``: one HTML page of one or more runs; ``ragen-agent watch``: a run while it goes on."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.cli.settings import add_run_code, check_consent
from ragen_gym.core.command_line import add_command, print_json

if TYPE_CHECKING:
    from ragen_agent.config import Config
    from ragen_agent.report.watch import RunStatus

REPORT = """\
Writes one HTML page of one or more runs, finished or not, that needs neither a server nor a network: curves between
random and optimal play, alarms, what was measured with its intervals, settings and versions, and a viewer of the
recorded episodes with every token's advantage and log-prob. Runs that differ only in their seed are drawn as a band;
others are compared.

examples:
  ragen-agent report runs/FrozenLake-grpo-seed0
  ragen-agent report runs/seed0 runs/seed1 runs/seed2 --out seeds.html
  ragen-agent report runs/starpo-s runs/starpo --out comparison.html --force"""


WATCH = """\
Shows a run in the terminal while it goes on: how far it is, its rates between random and optimal play, its figures as
sparklines, alarms, and the last episode that it wrote down. It only reads, so it can be started before the run, during
it and after it. Ctrl-C leaves it. With --web it shows the report as a local page instead, which follows the run: only
programs on this machine can open it, those of its other users included.

examples:
  ragen-agent watch runs/FrozenLake-grpo-seed0
  ragen-agent watch runs/FrozenLake-grpo-seed0 --web       the report in a browser, growing
  ragen-agent watch runs/FrozenLake-grpo-seed0 --once      one update, for scripts
  ragen-agent watch runs/FrozenLake-grpo-seed0 --json      the same figures as JSON"""


SECONDS = 1.0  # between two updates


def add(commands: Any) -> None:
    """Adds the commands to the parser."""
    report = add_command(commands, "report", "write a page of one or more runs", _report, description=REPORT)
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    report.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html in the first folder, where an earlier page is replaced)",
    )
    report.add_argument("--force", action="store_true", help="replace the file if there is one")
    add_run_code(report)
    watch = add_command(commands, "watch", "show a run while it goes on", _watch, description=WATCH)
    watch.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run, which may still be empty")
    instead = watch.add_mutually_exclusive_group()
    instead.add_argument("--once", action="store_true", help="print one update and exit")
    instead.add_argument("--json", action="store_true", help="print the figures once, as JSON")
    instead.add_argument("--web", action="store_true", help="serve the report as a local page that follows the run")
    watch.add_argument("--port", type=int, default=0, metavar="N", help="with --web: its port (default: a free one)")
    add_run_code(watch)


def _report(options: argparse.Namespace) -> int:
    from ragen_agent.report.runs import load_runs
    from ragen_gym.core.console import ProgressBar, rich_console
    from ragen_gym.core.storage import check_free, write_atomic

    out = options.out or options.runs[0] / "report.html"
    runs = load_runs(options.runs)
    for run in runs:
        check_consent(run.folder.path, options.run_code, run.config, kinds=("module",))
    from ragen_agent.report.run_page import page
    from ragen_gym.bench.report.html_page import is_page

    check_free(out, options.force or (options.out is None and is_page(out)))
    with ProgressBar("episodes", 0, transient=True) as bar:
        text = page(runs, progress=lambda done, total: bar.update(done, total=total))
    check_free(out, True)
    write_atomic(out, text)
    rich_console().print(f"{out}: {len(runs)} run{'s' * (len(runs) != 1)}", soft_wrap=True)
    return 0


def _watch(options: argparse.Namespace) -> int:
    import time

    from rich.live import Live

    from ragen_agent.report.watch import FINISHED, dashboard, read_status
    from ragen_gym.core.console import rich_console

    if options.web:
        return _serve(options)
    console = rich_console()
    if (options.once or options.json) and not options.run_folder.is_dir():
        raise ValueError(f"there is no folder {options.run_folder}.")
    status = read_status(options.run_folder)
    if options.json:
        print_json(_figures(status))
        return 0
    if not options.once and console.is_terminal and status.phase != FINISHED:
        try:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while status.phase != FINISHED:
                    live.update(dashboard(status, console.width), refresh=True)
                    time.sleep(SECONDS)
                    status = read_status(options.run_folder)
        except KeyboardInterrupt:
            pass
    console.print(dashboard(status, console.width))
    return 0


def _serve(options: argparse.Namespace) -> int:
    from ragen_agent.report.watch import RunPage
    from ragen_gym.bench.report.live import LivePage, make_server

    def check(config: Config) -> None:
        check_consent(options.run_folder, options.run_code, config, kinds=("module",))

    page = RunPage(options.run_folder, check)
    with make_server(LivePage(page.render, page.files, SECONDS), options.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/ follows {options.run_folder}; Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _figures(status: RunStatus) -> dict[str, Any]:
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
