"""The benchmarks' own parts: the timer, the page, and what becomes of a peer that does not work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, speed
from benchmarks.speed import __main__ as program
from benchmarks.speed import measurements, number
from benchmarks.speed.measurements import TASKS, batch
from benchmarks.speed.page import write_page
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


def test_rows_are_written_into_a_page_of_the_same_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_HERE", tmp_path)
    tables: dict[str, Any] = {"grid": {}, "text": {}}
    other = {"title": "a lake", "unit": "steps", "rate": 1.0}
    known = {"runs": 1, "skipped": [], "growth": tables, "sizes": tables, "imports": {}, "first": {}, "memory": {}}
    results = {**known, "machine": machine(*program._PACKAGES), "rates": {"lake single": other}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    arguments = ["--only", "regret single", "--write", "--seconds", "0.01", "--runs"]
    assert program.main([*arguments, "1"]) == 0
    rates = json.loads((tmp_path / "results.json").read_text())["rates"]
    assert rates.keys() == {"lake single", "regret single"}
    assert rates["lake single"] == other
    times = rates["regret single"]["times"]["lake single"]
    assert times > 0
    assert f"{number(times)} times a lake" in (tmp_path / "README.md").read_text()
    with pytest.raises(ValueError, match="Measure everything, without --only"):
        program.main([*arguments, "2"])
    with pytest.raises(ValueError, match="--write needs --only"):
        program.main(["--write"])


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


def test_a_batch_plays_the_steps_that_it_counts() -> None:
    play, work = batch("ragen/FrozenLake-v0", 5, read=("level_id",))
    play(70)
    assert work == 5


SHORT = ("--runs", "2", "--seconds", "0.01")


def test_the_command_measures_beside_gymnasium(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([*SHORT, "--only", "lake single", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert list(found["rates"]) == ["gymnasium lake", "lake single"]  # the peer first, in the same run
    row = found["rates"]["lake single"]
    assert 1e4 < row["lowest"] <= row["rate"] <= row["highest"]
    assert row["times"] == {"gymnasium lake": pytest.approx(row["rate"] / found["rates"]["gymnasium lake"]["rate"])}
    assert "numba" in found["machine"]
    assert printed.err.splitlines()[1].startswith("ragen-gym: measuring 2 of 2: FrozenLake")
    assert program.main([*SHORT, "--only", "bandit single"]) == 0
    assert "steps/s" in capsys.readouterr().out


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--list"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [task.key for task in TASKS]
    assert program.main(["--list", "--json"]) == 0
    assert [task["key"] for task in json.loads(capsys.readouterr().out)] == [task.key for task in TASKS]
    for words, said in (
        (["--only", "chess"], "no measurement's key has that; they are lake grid, "),
        (["--runs", "0"], "give 1 run or more"),
        (["--seconds", "nan"], "above 0 to 60 s"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            program.main(words)


def test_interrupted_it_prints_what_it_has(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interrupted(*arguments: Any) -> tuple[float, float, float]:
        asked.append(arguments)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return speed.rate(*arguments)

    monkeypatch.setattr(measurements, "rate", interrupted)
    assert program.main([*SHORT, "--only", "lake single", "--json"]) == 130
    assert list(json.loads(capsys.readouterr().out)["rates"]) == ["gymnasium lake"]


@pytest.mark.parametrize(
    ("value", "text"), [(34.6e6, "34.6M"), (999.6, "1k"), (560_400, "560k"), (18_312, "18.3k"), (0.42, "0.42")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_page_holds_every_measurement(tmp_path: Path) -> None:
    def row(task: Any) -> dict[str, Any]:
        return {"title": task.title, "unit": task.unit, "rate": 2e6, "package": "gymnasium 1"}

    counts = {"grid": {"1": 1e3}, "text": {"1": 2e3}}
    results = {"machine": "a machine", "runs": 7, "rates": {task.key: row(task) for task in TASKS}, "skipped": []}
    results |= {"growth": counts, "sizes": counts, "imports": {"`import x`": 3.0}, "first": {}, "memory": {"y": 603.0}}
    write_page(tmp_path / "README.md", results)
    page = (tmp_path / "README.md").read_text()
    assert all(page.count(f"| {task.title} |") == 1 for task in TASKS)
    assert "1 times Gymnasium's FrozenLake" in page
    assert "603 bytes" in page
