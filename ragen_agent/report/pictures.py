"""Pictures of a report for the documentation: ``python -m ragen_agent.report.pictures renders/guides [RUN ...]``.

The page of these runs is photographed in Chromium through Playwright, which the extra ``test`` brings. Where none are
named, two seeds of StarPO-S and of vanilla StarPO learn FrozenLake in ``runs/pictures``, some five minutes each on one
core; what is there from an earlier call is used or gone on with.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.game_defaults import default_settings
from ragen_agent.local.run import train
from ragen_agent.report.page import page
from ragen_agent.report.runs import load_runs
from ragen_agent.training.console import Display
from ragen_agent.training.run_folder import RunFolder

__all__ = ["main", "photograph", "play"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SETTINGS: Settings = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 8000},
    "training": {"iterations": 40},
    "stops": {"validate_every": 5},
    "diagnostics": {"entropy_every": 1},
}


def play(folder: Path) -> list[Path]:
    """Trains the runs that are missing, and goes on with those that were cut short; the folders of all."""
    paths = []
    for preset, starpo_s in (("starpo-s", True), ("starpo", False)):
        for seed in (0, 1):
            path = folder / f"{preset}-{seed}"
            settings = merged(SETTINGS, {"seed": seed, "training": {"starpo_s": starpo_s}})
            if path.exists():
                run, config = RunFolder.reopen(path)
            else:
                config = with_settings(Config(), merged(default_settings("FrozenLake"), settings))
                run = RunFolder.create(path, config)
            if "clean_warm_start" not in run.read_summary():
                train(config, run, Display())
            paths.append(path)
    return paths


def photograph(browser: Any, path: Path, out: Path) -> Iterator[Path]:
    """Pictures of the page at ``path`` in a browser of Playwright's: its upper part, and its viewer in mid-episode."""
    sheet = browser.new_page(viewport={"width": 1240, "height": 1500}, reduced_motion="reduce", color_scheme="light")
    sheet.goto(path.as_uri())
    sheet.wait_for_selector(".rv-turn")
    sheet.screenshot(path=out / "training_report.png")
    yield out / "training_report.png"
    sheet.locator(".rv-filters button", has_text="Largest advantage").click()
    rows = sheet.locator(".rv-row")
    rows.nth(min(1, rows.count() - 1)).click()
    sheet.locator(".rv-head").click()  # where no ring of the focus distracts
    for _ in range(2):
        sheet.keyboard.press("ArrowRight")
    sheet.mouse.move(0, 0)
    sheet.locator(".rv").screenshot(path=out / "training_viewer.png")
    yield out / "training_viewer.png"
    sheet.close()


def main(arguments: Sequence[str]) -> int:
    """Writes both pictures into the folder that is named, or into ``renders/guides``."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m ragen_agent.report.pictures", description=__doc__)
    parser.add_argument(
        "out", nargs="?", type=Path, default=Path("renders/guides"), metavar="DIR", help="for the pictures"
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs (default: plays its own)")
    options = parser.parse_args(arguments)
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    runs = load_runs(options.runs or play(Path("runs/pictures")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_bytes(page(runs).encode("utf-8", "surrogatepass"))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            for picture in photograph(browser, path, options.out):
                print(picture)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
