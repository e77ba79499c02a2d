"""What an experiment shows in a terminal while its runs are played."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.experiments import runner
from benchmarks.experiments.plan import plan
from benchmarks.experiments.spec import read
from ragen_agent.config import Config


def test_the_iterations_of_each_run_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is played by a real worker, and then held: its lines appear one by one, each when the last is shown."""
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    terminal, play = io.StringIO(), runner._Workers.play
    planned = plan(read("thinking"), tmp_path, 1, only=["Bandit, none"], quick=True)
    [run] = planned

    def shown(progress: str) -> bool:
        deadline = time.monotonic() + 120
        while progress not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        return progress in terminal.getvalue()

    def play_and_hold(self: Any, job: Mapping[str, Any]) -> str:
        problem = play(self, job)
        if problem or not job["iterations"]:
            return problem
        metrics = run.folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        assert len(lines) == job["iterations"] > 1
        for done in range(1, len(lines) + 1):
            metrics.write_text("".join(lines[:done]))
            assert shown(f"{run.name} {done}/{len(lines)}")
        return problem

    monkeypatch.setattr(runner._Workers, "play", play_and_hold)
    assert runner.run_all(planned, 1, Console(file=terminal, force_terminal=True, width=100)) == {}


def test_nothing_begins_when_the_time_is_over(tmp_path: Path) -> None:
    planned = plan(read("thinking"), tmp_path / "thinking", 1, only=["Bandit, none"], quick=True)
    assert runner.run_all(planned, 1, Console(file=io.StringIO()), ends=time.monotonic()) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # two processes import torch
def test_a_process_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "JOBS_OF_A_PROCESS", 1)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("seed = 1\n", encoding="utf-8")
    workers, job = runner._Workers(), runner._job(Config(), folder)
    assert ["started with other settings" in workers.play(job) for _ in range(2)] == [True, True]
    assert [process.poll() for process in workers._all] == [0, 0]
    workers.close(kill=False)


def test_a_folder_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    assert runner._progress({"folder": str(tmp_path / "gone"), "iterations": 3}) == " 0/3"
    (tmp_path / "metrics.jsonl").mkdir()
    assert runner._progress({"folder": str(tmp_path), "iterations": 3}) == " 0/3"
