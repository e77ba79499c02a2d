"""The benchmarks' own parts: the timer, the page, and what becomes of a peer that does not work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import speed
from benchmarks.speed import __main__ as program
from benchmarks.speed import measurements
from benchmarks.speed.measurements import TASKS
from benchmarks.speed.peer_tasks import PEER_TASKS


def test_a_rate_is_work_per_second_of_cpu_time() -> None:
    def spin(count: int) -> None:
        end = time.process_time() + 0.002 * count
        while time.process_time() < end:
            pass

    median, lowest, highest = speed.rate(spin, work=10, runs=3, seconds=0.02)
    assert lowest <= median <= highest
    assert median == pytest.approx(10 / 0.002, rel=0.2)


def test_a_peer_says_what_it_measured_or_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    speed.report("a", "A", "steps", lambda: (2.0, 1.0, 3.0))
    speed.report("b", "B", "steps", lambda: (1 // 0, 1.0, 1.0))
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good == {"key": "a", "title": "A", "unit": "steps", "rate": [2.0, 1.0, 3.0]}
    assert bad["skipped"].startswith("ZeroDivisionError")


def test_a_peer_that_cannot_be_installed_is_skipped_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(command: list[str], seconds: float, **environment: str) -> str:
        raise subprocess.CalledProcessError(1, command, stderr="ERROR: no such package\n\n")

    monkeypatch.setattr(measurements, "_call", refuse)
    assert measurements.measure_peer(measurements.PEERS[0], tmp_path) == [
        {"key": "envpool", "title": "envpool", "unit": "", "skipped": "ERROR: no such package"}
    ]


def test_every_peer_has_its_tasks_and_every_comparison_its_peer() -> None:
    assert list(PEER_TASKS) == list(measurements.PEERS)
    keys = {task.key for task in TASKS} | {key for tasks in PEER_TASKS.values() for key, *_ in tasks}
    assert {peer for task in TASKS for peer in task.peers} <= keys


def test_the_tasks_of_peers_run_without_this_suite() -> None:
    program = "import sys, benchmarks.speed.peer_tasks; print([m for m in sys.modules if m.startswith('ragen')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "[]"


SHORT = ("--runs", "2", "--seconds", "0.01")


def test_the_command_measures_beside_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([*SHORT, "--only", "lake single"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "numba" in lines[0]
    titles = [line for line in lines[1:] if line and not line.startswith(" ")]
    assert [title.partition(" ")[0] for title in titles] == ["Gymnasium's", "FrozenLake"], "the peer in the same run"
    assert re.fullmatch(rf"  [\d.]+ times {re.escape(titles[0])}", lines[-1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "chess"], "no measurement's key has that; they are lake grid, "),
        (["--runs", "0"], "give 1 run or more"),
        (["--seconds", "nan"], "above 0 to 60 s"),
    ],
)
def test_the_command_refuses(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        program.main(words)


def test_the_page_is_made_of_its_results_and_holds_every_measurement(tmp_path: Path) -> None:
    folder = Path(speed.__file__).parent
    program.write_page(tmp_path / "README.md", json.loads((folder / "results.json").read_text(encoding="utf-8")))
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page == (folder / "README.md").read_text(encoding="utf-8")
    assert all(page.count(f"| {task.title} |") == 1 for task in TASKS)
