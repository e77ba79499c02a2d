"""What an experiment shows in a terminal while its runs are played."""

from __future__ import annotations

import io
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
    assert f"runs 1/1  {planned[0].name}: after " in terminal.getvalue()
