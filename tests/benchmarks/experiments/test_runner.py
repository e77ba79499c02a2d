"""What an experiment shows in a terminal while its runs are played."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.experiments import runner
from benchmarks.experiments.plan import plan
from benchmarks.experiments.spec import read


def test_the_iterations_of_each_run_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    planned = plan(read("thinking"), tmp_path, 1, only=["Bandit, none"], quick=True)
    terminal = io.StringIO()
    assert runner.run_all(planned, 1, Console(file=terminal, force_terminal=True, width=100)) == {}
    [run] = planned
    total = run.config.training.iterations
    assert any(f"{run.name} {done}/{total}" in terminal.getvalue() for done in range(1, total))


def test_a_folder_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    assert runner._progress({"folder": str(tmp_path / "gone"), "iterations": 3}) == " 0/3"
    (tmp_path / "metrics.jsonl").mkdir()
    assert runner._progress({"folder": str(tmp_path), "iterations": 3}) == " 0/3"
