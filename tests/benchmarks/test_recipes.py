"""The recipes' page: made of what was recorded, without the runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import recipes

HERE = Path(recipes.__file__).parent


def test_recorded_runs_are_not_trained_again(tmp_path: Path) -> None:
    shutil.copy(HERE / "recipes.json", tmp_path)
    recorded = json.loads((tmp_path / "recipes.json").read_text(encoding="utf-8"))
    for name, seeds in recorded.items():
        command = ["--recipes", name, "--seeds", *seeds, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
        assert recipes.main(command) == 0
    assert not (tmp_path / "runs").exists()
    for file in ("recipes.json", "recipes.md"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (HERE / file).read_text(encoding="utf-8")


def test_a_whole_run_keeps_the_machine_that_trained_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(HERE / "recipes.json", tmp_path)
    recorded = json.loads((tmp_path / "recipes.json").read_text(encoding="utf-8"))
    name = recipes.DEFAULT
    folder = tmp_path / "runs" / f"{name}-seed0"
    folder.mkdir(parents=True)
    summary = {key: value for key, value in recorded[name]["0"].items() if key != "machine"}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    monkeypatch.setattr(recipes, "machine", lambda *packages: "another machine")
    arguments = ["--recipes", name, "--seeds", "0", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert recipes.main(arguments) == 0
    assert json.loads((tmp_path / "recipes.json").read_text(encoding="utf-8")) == recorded


def test_a_stopped_run_is_written_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, recorded = next(iter(json.loads((HERE / "recipes.json").read_text(encoding="utf-8")).items()))
    whole = recorded["0"]
    folder = tmp_path / "runs" / f"{name}-seed0"
    folder.mkdir(parents=True)
    partial = {row: value for row, value in whole.items() if row not in ("more_imitation", "clean_warm_start")}
    (folder / "summary.json").write_text(json.dumps(partial), encoding="utf-8")

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "train", stopped)
    arguments = ["--recipes", name, "--seeds", "0", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert recipes.main(arguments) == 130
    text = (tmp_path / "recipes.md").read_text(encoding="utf-8")
    assert f"| then reinforcement | {100 * whole['after']['rate']:.1f} |" in text
    assert text.count("| not yet | |") == 3


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_saves_when_it_is_stopped_is_waited_for(stop: signal.Signals, tmp_path: Path) -> None:
    saving = """
import pathlib, signal, sys, time
def save(number, frame):
    time.sleep(1)  # longer than subprocess.run leaves a child after Ctrl-C
    pathlib.Path(sys.argv[2]).touch()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    child = [sys.executable, "-c", saving, str(ready), str(saved)]
    parent = [sys.executable, "-c", f"from benchmarks.recipes import run; run({child!r})"]
    with subprocess.Popen(parent, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.05)
        if stop == signal.SIGINT:
            os.killpg(process.pid, stop)  # as a terminal sends it, to both
        else:
            process.send_signal(stop)  # as a scheduler sends it, to the parent
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert saved.exists()
