"""Screenshots of the reports for the documentation: ``python -m benchmarks.screenshots benchmark``, or ``training``.

``benchmark``: two agents without a model play the suite ``ragen-v1``. ``training``: the runs that are given, or two
seeds of StarPO-S and of vanilla StarPO on FrozenLake, some five minutes each on one core; those in ``runs/screenshots``
are used, or resumed. Chromium takes the screenshots through Playwright, which the extra ``test`` brings.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local.run import train
from ragen_agent.report.run_page import page as training_html
from ragen_agent.report.runs import load_runs as load_training_runs
from ragen_agent.run.console import Display
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.compare import compare
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.report.benchmark_page import page as benchmark_html
from ragen_gym.bench.results import load_several
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from ragen_gym.envs.policies import plan_moves

__all__ = ["BROWSERS", "ImperfectAgent", "benchmark_page", "benchmark_screenshots", "main", "training_screenshots"]

#: Names of Chromium's program, where Playwright has none of its own.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

#: Of the training runs, over the defaults of FrozenLake.
TRAINING: Settings = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 8000},
    "training": {"iterations": 40},
    "stops": {"validate_every": 5},
    "diagnostics": {"entropy_every": 1},
}


class ImperfectAgent:
    """Writes replies such as a model writes: most moves are the oracle's, some are random, some replies are malformed.

    Args:
        name: of the agent.
        skill: chance that a move is the oracle's.
        care: chance that a reply is well-formed.
        seed: of its random moves.
    """

    def __init__(self, name: str, skill: float, care: float, seed: int = 0) -> None:
        self.name = name
        self.settings = {"skill": skill, "care": care, "seed": seed}

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """One to three moves, with a thought."""
        env, settings = task.env, self.settings
        rng = np.random.default_rng([int(settings["seed"]), task.seed, len(messages)])
        number = min(int(rng.integers(1, 4)), env.max_actions_per_turn, env.actions_left)
        mistakes = [rng.random() > settings["skill"] for _ in range(number)]
        moves = [
            int(rng.integers(len(env.action_names))) if mistake else move
            for mistake, move in zip(mistakes, plan_moves(env, number), strict=False)
        ]
        names = [env.action_names[move] for move in moves]
        care = "I am sure of this." if not any(mistakes) else "I am not sure of all of it, so I will look again."
        thought = (
            f"{env.actions_left} actions are left. From where I stand I would go {', then '.join(names)}: that should "
            f"bring me closer to the goal. {care}"
        )
        answer = (
            f"<answer>{' || '.join(names)}</answer>" if rng.random() < settings["care"] else f"Let us try {names[0]}."
        )
        text = f"<think>{thought}</think>{answer}"
        read = sum(len(message["content"]) for message in messages)
        return Answer(text, prompt_tokens=read // 4, completion_tokens=len(text) // 4, finish_reason="stop")


def benchmark_page(folder: Path) -> Path:
    """The report of two agents' runs, in ``folder``."""
    suite = load_suite("ragen-v1")
    agents = ImperfectAgent("careful", 0.92, 0.97), ImperfectAgent("hasty", 0.6, 0.8, seed=1)
    for agent in agents:
        run_suite(suite, agent, folder / agent.name, RunOptions())
    runs = load_several([folder / agent.name for agent in agents])
    summaries = [score_results(run) for run in runs]
    first, second = ((run.agent, run.records) for run in runs)
    path = folder / "report.html"
    path.write_text(benchmark_html(runs, summaries, [compare(suite, first, second)]), encoding="utf-8")
    return path


def training_runs(folder: Path) -> list[Path]:
    """Trains the runs that are missing in ``folder`` and resumes those that were interrupted; the folders of all."""
    paths = []
    for preset, starpo_s in (("starpo-s", True), ("starpo", False)):
        for seed in (0, 1):
            path = folder / f"{preset}-{seed}"
            if path.exists():
                run, config = RunFolder.reopen(path)
            else:
                settings = merged(TRAINING, {"seed": seed, "training": {"starpo_s": starpo_s}})
                config = with_settings(Config(), merged(default_settings("FrozenLake"), settings))
                run = RunFolder.create(path, config)
            if "clean_warm_start" not in run.read_summary():
                train(config, run, Display())
            paths.append(path)
    return paths


def training_page(folder: Path, runs: Sequence[Path]) -> Path:
    """The report of these runs, in ``folder``."""
    path = folder / "report.html"
    path.write_text(training_html(load_training_runs(runs)), encoding="utf-8")
    return path


def benchmark_screenshots(browser: Any, path: Path, out: Path) -> Iterator[Path]:
    """Screenshots of the page at ``path`` in a browser of Playwright: its upper part, and its viewer in mid-episode."""
    return _screenshots(browser, path, out, "benchmark", upper=1180, row=2, steps=3, opened=".rv-turn.current summary")


def training_screenshots(browser: Any, path: Path, out: Path) -> Iterator[Path]:
    """A screenshot of the viewer of a training report, at an episode with large advantages."""
    return _screenshots(browser, path, out, "training", upper=0, row=1, steps=2, button="Largest advantage")


def _screenshots(
    browser: Any,
    path: Path,
    out: Path,
    name: str,
    *,
    upper: int,
    row: int,
    steps: int,
    button: str = "",
    opened: str = "",
) -> Iterator[Path]:
    """``upper`` pixels of the page; then, after a click on a button, the viewer after some steps of a row's episode."""
    viewport = {"width": 1240, "height": upper or 1500}
    sheet = browser.new_page(viewport=viewport, reduced_motion="reduce", color_scheme="light")
    sheet.goto(path.as_uri())
    sheet.wait_for_selector(".rv-turn")
    if upper:
        sheet.screenshot(path=out / f"{name}_report.png")
        yield out / f"{name}_report.png"
    if button:
        sheet.locator(".rv-filters button", has_text=button).click()
    rows = sheet.locator(".rv-row")
    rows.nth(min(row, rows.count() - 1)).click()
    sheet.locator(".rv-head").click()  # moves the focus, whose ring would show
    for _ in range(steps):
        sheet.keyboard.press("ArrowRight")
    if opened:
        sheet.locator(opened).click()
    sheet.mouse.move(0, 0)
    sheet.locator(".rv").screenshot(path=out / f"{name}_viewer.png")
    yield out / f"{name}_viewer.png"
    sheet.close()


def main(arguments: Sequence[str]) -> int:
    """Write the screenshots of one of the reports."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m benchmarks.screenshots", description=__doc__)
    reports = parser.add_subparsers(dest="report", required=True)
    for name in ("benchmark", "training"):
        report = reports.add_parser(name, help=f"of the report of {name} runs")
        report.add_argument("--out", type=Path, default=Path("renders/guides"), metavar="DIR", help="for the pictures")
        if name == "training":
            report.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs (default: its own)")
    options = parser.parse_args(arguments)
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as temporary:  # pages before Playwright, which keeps an event loop running
        if options.report == "benchmark":
            path, take = benchmark_page(Path(temporary)), benchmark_screenshots
        else:
            path = training_page(Path(temporary), options.runs or training_runs(Path("runs/screenshots")))
            take = training_screenshots
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            for screenshot in take(browser, path, options.out):
                print(screenshot)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
