"""The measurements of speed: the timer, the comparisons, and what becomes of a peer that does not work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import speed
from benchmarks.speed_peers import PEER_TASKS, rate, report


def test_a_rate_is_work_per_second_of_cpu_time() -> None:
    def spin(count: int) -> None:
        end = time.process_time() + 0.002 * count
        while time.process_time() < end:
            pass

    median, lowest, highest = rate(spin, work=10, runs=3, seconds=0.02)
    assert lowest <= median <= highest
    assert median == pytest.approx(10 / 0.002, rel=0.2)


def test_a_peer_says_what_it_measured_or_why_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report("numpy", "a", "A", "steps", lambda: (2.0, 1.0, 3.0))
    report("numpy", "b", "B", "steps", lambda: (1 // 0, 1.0, 1.0))
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good.pop("package").startswith("numpy ")
    assert good == {"key": "a", "title": "A", "unit": "steps", "rate": [2.0, 1.0, 3.0]}
    assert bad["skipped"].startswith("ZeroDivisionError")
    monkeypatch.setattr(speed, "PEERS", tmp_path)
    (tmp_path / "envpool").mkdir()
    (tmp_path / "envpool" / "installed").touch()  # and yet it is not
    [missing] = speed.measured_peer("envpool")
    assert missing["title"] == "envpool"
    assert "No such file or directory" in missing["skipped"]


def test_every_comparison_has_its_peer_and_every_task_its_row() -> None:
    keys = {task.key for task in speed.TASKS} | {key for tasks in PEER_TASKS.values() for key, *_ in tasks}
    assert {peer for task in speed.TASKS for peer in task.peers} <= keys
    page = Path(speed.__file__).with_suffix(".md").read_text(encoding="utf-8")
    assert all(page.count(f"| {task.title} |") == 1 for task in speed.TASKS)


def test_the_tasks_of_peers_run_without_this_suite() -> None:
    program = "import sys, benchmarks.speed_peers; print([m for m in sys.modules if m.startswith('ragen')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "[]"


def test_the_command_measures_beside_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--runs", "2", "--seconds", "0.01", "--only", "lake single"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "numba" in lines[0]
    titles = [line for line in lines[1:] if line and not line.startswith(" ")]
    assert [title.partition(" ")[0] for title in titles] == ["Gymnasium's", "FrozenLake"], "the peer in the same run"
    assert re.fullmatch(rf"  [\d.]+ times {re.escape(titles[0])}", lines[-1])
    with pytest.raises(SystemExit):
        speed.main(["--only", "chess"])
    assert "no measurement's key has that; they are lake grid, " in capsys.readouterr().err
