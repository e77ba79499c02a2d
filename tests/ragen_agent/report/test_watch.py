"""The state of a run and its dashboard: in every phase, of files that grow and are torn, on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.report.watch import FILES, FINISHED, WAITING, bar, dashboard, read_status, sparkline
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines, read_json_lines

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
RATE = {"rate": 0.5, "low": 0.4, "high": 0.6, "n": 10}


def picture(path: Path, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(dashboard(read_status(path), width))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_sparklines_and_bars() -> None:
    assert sparkline([0.0, 0.5, 1.0], 3, 0.0, 1.0) == "▁▅█"
    assert sparkline([0.9, 1.0], 2, 0.0, 1.0) == "▇█"
    assert sparkline([2.0, 2.0], 5) == "▅▅"
    assert sparkline([float(n) for n in range(50)], 4) == "▁▃▆█"
    assert sparkline([], 5) == ""
    text = bar(0.5, 0.1, 1.0, 21)
    assert text.plain == "━━┃━━━━━━━──────────┃"
    assert bar(0.0, None, None, 4).plain == "────"


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_finished_run(runs: dict[str, Path], width: int) -> None:
    shown = picture(runs["seed0"], width)
    assert max(map(len, shown.splitlines())) <= width
    assert FINISHED in shown
    assert f"{len(read_json_lines(runs['seed0'] / 'metrics.jsonl'))}/4 iterations" in shown
    rate = json.loads((runs["seed0"] / "summary.json").read_text())["after"]["rate"]
    assert f"{100 * rate:.1f} %" in shown
    assert "alarms" in shown


def test_an_interrupted_run(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["broken"], tmp_path / "run")
    status = read_status(run)
    assert (status.phase, len(status.metrics)) == ("reinforcement", 2)
    assert status.seconds is not None
    assert status.left == pytest.approx(2 * status.seconds)
    with (run / "episodes.jsonl").open("a") as file:
        file.write('{"torn')
    for name in FILES:
        os.utime(run / name, (1, 1))
    shown = picture(run, 160)
    assert "it may have been stopped" in shown
    last = read_json_lines(runs["broken"] / "episodes.jsonl")[-1]
    asked = [m["content"] for m in last["messages"] if m["role"] == "user"][len(last["turn_ends"]) - 1]
    assert asked.splitlines()[0] in shown


def test_every_state_of_a_young_run(runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert read_status(path).phase == WAITING
    path.mkdir()
    assert main(["watch", str(path), "--once"]) == 0
    assert "There is no run" in picture(path)
    RunFolder.create(path, RunFolder.reopen(runs["seed0"])[1])
    assert read_status(path).phase == "warm start"
    shutil.copytree(runs["seed0"] / "warm", path / "warm")
    assert read_status(path).phase == "measuring the start"
    with (path / "metrics.jsonl").open("w") as file:
        file.write('{"iteration": 0, "success": 0.5, "return_std": 0.1, "seconds": 3.0}\n{"iter')
    status = read_status(path)
    assert (status.phase, len(status.metrics), status.left) == ("reinforcement", 1, 9.0)
    assert status.words == ["reinforcement", "1/4 iterations", "3.0 s each", "9 s left"]
    (path / "metrics.jsonl").write_text('{"iteration"\n')
    with pytest.raises(ValueError, match="not JSON"):
        read_status(path)


def test_a_run_goes_on_after_its_result_if_it_is_to_be_compared(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", with_settings(Config(), {"evaluation": {"imitation": True}}))
    folder.write_summary({"after": RATE, "more_imitation": RATE})
    assert read_status(folder.path).phase == "imitation, for comparison"
    folder.write_summary({"after": RATE, "more_imitation": RATE, "clean_warm_start": RATE})
    assert read_status(folder.path).phase == FINISHED


def test_as_json(runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["watch", str(runs["seed0"]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    metrics = read_json_lines(runs["seed0"] / "metrics.jsonl")
    assert (told["phase"], told["iterations"], told["of"]) == (FINISHED, len(metrics), 4)
    assert told["last"] == metrics[-1]
    assert told["rates"] == json.loads((runs["seed0"] / "summary.json").read_text())
    file = tmp_path / "file"
    file.write_text("")
    assert main(["watch", str(file), "--json"]) == 2


def test_json_holds_no_figure_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    append_json_lines(folder.metrics, [{"iteration": 0, "entropy": float("nan"), "grad_norm": float("inf")}])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert main(["watch", str(folder.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (shown["last"]["entropy"], shown["last"]["grad_norm"]) == (None, None)


@contextmanager
def watching(run: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`ragen-agent watch` on a terminal of its own: the process, and the terminal's other end."""
    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "ragen_agent.cli", "watch", str(run)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
    )
    os.close(other)
    try:
        yield process, terminal
    finally:
        process.kill()
        os.close(terminal)


def test_on_a_terminal_it_follows_the_run_to_its_end(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunFolder.create(run, RunFolder.reopen(runs["seed0"])[1])
    with watching(run) as (process, terminal):
        assert "warm start" in _until(terminal, "warm start")
        folder = RunFolder(run)
        append_json_lines(folder.metrics, [{"iteration": 0, "success": 0.25, "return_std": 0.5, "seconds": 2.0}])
        assert "1/4 iterations" in _until(terminal, "1/4 iterations")
        folder.write_summary(RunFolder(runs["seed0"]).read_summary())
        assert FINISHED in _until(terminal, None)
        assert process.wait(30) == 0


def test_ctrl_c_ends_it_and_gives_the_terminal_back(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunFolder.create(run, RunFolder.reopen(runs["seed0"])[1])
    with watching(run) as (process, terminal):
        seen = _until(terminal, "warm start")
        process.send_signal(signal.SIGINT)
        seen += _until(terminal, None)
        assert process.wait(30) == 0
    assert "Traceback" not in seen
    assert seen.rindex(SHOW_CURSOR) > seen.rindex(HIDE_CURSOR)


def _until(terminal: int, wanted: str | None) -> str:
    """What a terminal shows until the text is there, or all of it; fails after a minute and a half."""
    seen, limit = "", time.monotonic() + 90
    while time.monotonic() < limit:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return seen
        if not data:
            return seen
        seen += data.decode(errors="replace")
        if wanted is not None and wanted in seen:
            return seen
    raise AssertionError(f"{wanted!r} was not shown: {seen[-2000:]!r}")


@pytest.mark.parametrize("change", [{"messages": 3}, {"turn_rewards": ["1"]}, {"turn_infos": [1]}], ids=str)
def test_a_damaged_episode_is_named_by_its_file(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    shutil.copytree(runs["seed0"], tmp_path / "run")
    path = tmp_path / "run" / "episodes.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | change)]) + "\n")
    for command in (["watch", "--once"], ["report", "--force"]):
        assert main([*command, str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert str(path) in said
        assert "line" in said
