"""``ragen-agent watch --web`` on a run whose files grow as the trainer wrote them, over HTTP and in a browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from ragen_agent.cli import main
from ragen_agent.report.run_page import page
from ragen_agent.report.runs import load_run
from ragen_gym.core.storage import append_json_lines, read_json_lines
from tests.browser import open_page


@pytest.mark.slow
def test_the_page_of_a_training_grows_in_a_browser(chromium: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    whole, run = runs["seed0"], tmp_path / "run"
    metrics, episodes = (read_json_lines(whole / f"{name}.jsonl") for name in ("metrics", "episodes"))
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen_agent.cli", "watch", str(run), "--web"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    sheet = open_page(chromium, address, ".rv-bar")
    live, curve = sheet.page.locator(".live"), sheet.page.locator(".chart[data-name=success] .mean")
    expect(live).to_have_text("waiting for the run", timeout=60_000)

    def grow(first: int, end: int) -> None:
        append_json_lines(run / "episodes.jsonl", [e for e in episodes if first <= e.get("iteration", 0) < end])
        append_json_lines(run / "metrics.jsonl", metrics[first:end])

    run.mkdir()
    shutil.copytree(whole / "checkpoint", run / "checkpoint")
    shutil.copy(whole / "versions.json", run)
    grow(0, 2)
    shutil.copy(whole / "config.toml", run)  # the run begins with it
    expect(live).to_have_text(
        re.compile(r"reinforcement · 2/4 iterations · \d+\.\d s each · \d+ s left"), timeout=60_000
    )
    assert str(curve.get_attribute("d")).count("L") == 1
    sheet.page.wait_for_selector(".rv-tokens span")
    sheet.page.locator(".chart[data-name=success] > svg").hover(position={"x": 200, "y": 90})
    assert "iteration" in sheet.page.locator(".chart[data-name=success] .readout").inner_text()
    grow(2, 4)
    expect(live).to_have_text(re.compile(r"^measuring · 4/4 iterations"), timeout=60_000)
    expect(curve).to_have_attribute("d", re.compile(r"^[^L]*(L[^L]*){3}$"))
    sheet.page.locator(".chart[data-name=success] > svg").hover(position={"x": 200, "y": 90})
    assert "iteration" in sheet.page.locator(".chart[data-name=success] .readout").inner_text(), "of the new chart"
    shutil.copy(whole / "summary.json", run)
    expect(live).to_have_text(re.compile(r"^finished · 4/4 iterations"), timeout=60_000)
    after = json.loads((whole / "summary.json").read_text())["after"]
    expect(sheet.page.locator("section:has(#numbers)")).to_contain_text(f"{100 * after['rate']:.1f} %")
    assert {each.rpartition("/")[0] + "/" for each in sheet.asked if not each.startswith("data:")} == {address}
    sheet.close()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_a_live_page_replays_the_last_episodes(runs: dict[str, Path]) -> None:
    run = load_run(runs["seed0"])
    total = len(read_json_lines(runs["seed0"] / "episodes.jsonl"))
    assert f"The last 5 of {total} recorded episodes." in page([run], recent=5)
    assert f"All {total} recorded episodes." in page([run], recent=total + 1)


def test_one_way_of_watching_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path), "--web", "--once"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--web", "--port", "70000"]) == 2
    assert "port 70000 cannot be used" in capsys.readouterr().err
