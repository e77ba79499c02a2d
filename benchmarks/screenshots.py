"""Screenshots of the reports for the documentation: ``python -m benchmarks.screenshots renders/guides``.

Two agents without a model play the suite ``ragen-v1``; Chromium takes the screenshots of the page of their runs,
through Playwright, which the extra ``test`` brings.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.compare import compare
from ragen_gym.bench.report.page import page
from ragen_gym.bench.run import load_runs
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score
from ragen_gym.bench.suites import load_suite
from ragen_gym.bench.tasks import Request
from ragen_gym.envs.policies import plan_moves

__all__ = ["BROWSERS", "ImperfectAgent", "benchmark_page", "main", "take_screenshots"]

#: Names of Chromium's program, where Playwright has none of its own.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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
        run_suite(suite, agent, folder / agent.name, Request())
    runs = load_runs([folder / agent.name for agent in agents])
    summaries = [score(suite, run.records, run.agent) for run in runs]
    first, second = ((run.agent, run.records) for run in runs)
    path = folder / "report.html"
    path.write_text(page(runs, summaries, [compare(suite, first, second)]), encoding="utf-8")
    return path


def take_screenshots(browser: Any, path: Path, out: Path) -> Iterator[Path]:
    """Screenshots of the page at ``path`` in a browser of Playwright: its upper part, and its viewer in mid-episode."""
    sheet = browser.new_page(viewport={"width": 1240, "height": 1180}, reduced_motion="reduce", color_scheme="light")
    sheet.goto(path.as_uri())
    sheet.wait_for_selector(".rv-turn")
    sheet.screenshot(path=out / "benchmark_report.png")
    yield out / "benchmark_report.png"
    sheet.locator(".rv-row").nth(2).click()
    sheet.locator(".rv-head").click()  # moves the focus, whose ring would show
    for _ in range(3):
        sheet.keyboard.press("ArrowRight")
    sheet.locator(".rv-turn.current summary").click()
    sheet.mouse.move(0, 0)
    sheet.locator(".rv").screenshot(path=out / "benchmark_viewer.png")
    yield out / "benchmark_viewer.png"
    sheet.close()


def main(arguments: Sequence[str]) -> int:
    """Write both screenshots into the folder given, or into ``renders/guides``."""
    from playwright.sync_api import sync_playwright

    out = Path(arguments[0] if arguments else "renders/guides")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder:
        path = benchmark_page(Path(folder))  # before Playwright, which keeps an event loop running
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            for screenshot in take_screenshots(browser, path, out):
                print(screenshot)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
