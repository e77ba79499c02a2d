"""What an experiment shows in a terminal while its runs are played."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.experiments import runner
from benchmarks.experiments.plan import plan
from benchmarks.experiments.spec import read


@pytest.mark.slow  # a process imports torch
def test_each_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    terminal = io.StringIO()
    planned = plan(read("thinking"), tmp_path / "thinking", 1, only=["Bandit, none"], quick=True)
    assert runner.run_all(planned, 1, Console(file=terminal, force_terminal=True, width=100)) == {}
    assert f"{planned[0].name} 0/3" in terminal.getvalue()
    assert f"runs 1/1  {planned[0].name}: after " in terminal.getvalue()


def test_nothing_begins_when_the_time_is_over(tmp_path: Path) -> None:
    planned = plan(read("thinking"), tmp_path / "thinking", 1, only=["Bandit, none"], quick=True)
    assert runner.run_all(planned, 1, Console(file=io.StringIO()), ends=time.monotonic()) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_run_shows_its_iterations_and_a_folder_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    [run] = plan(read("thinking"), tmp_path, 1, only=["Bandit, none"], quick=True)
    assert runner._progress(run) == " 0/3"
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("{}\n{}\n")
    assert (runner._progress(run), runner._progress(run.warm)) == (" 2/3", "")
    (run.folder / "metrics.jsonl").unlink()
    (run.folder / "metrics.jsonl").mkdir()
    assert runner._progress(run) == " 0/3"
