"""The process that a user starts: what it refuses, prints and frees."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import launch, patches
from ragen_agent.openrlhf.processes import write_state
from ragen_agent.run import run_folder
from ragen_agent.run.alarm import History
from ragen_agent.run.console import Display
from ragen_agent.run.loop import LoopState
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines


def test_a_run_that_cannot_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the same command would be refused, and --resume would go on with the local trainer."""
    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    words = ["train", "--backend", "openrlhf", "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "openrlhf.staleness=1", "--set", "openrlhf.colocate=true"]) == 2
    assert "use openrlhf.colocate=false" in capsys.readouterr().err
    assert main([*words, "--set", "openrlhf.flags=--train.seed 3"]) == 2
    assert "use the setting seed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_stopped_early_is_not_started_again_once_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why it stopped, and with which versions it was resumed."""
    small = {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}, "warm_start": {"epochs": 0}}
    config = with_settings(Config(), small | {"training": {"iterations": 4}, "evaluation": {"levels": 2}})
    folder, started = RunFolder.create(tmp_path / "run", config), []
    rate = {"rate": 0.5, "low": 0.1, "high": 0.9, "n": 2}

    def run(folder: RunFolder, config: Config, settings: OpenRLHF, done: int, *unread: object) -> None:
        started.append(done)
        if len(started) == 1:
            raise KeyboardInterrupt
        append_json_lines(folder.metrics, [{"iteration": 0, "success": 0.5}])
        write_state(folder.path, LoopState(1))
        folder.write_summary({**folder.read_summary(), "before": rate, "after": rate, "stopped": "Stopped: why."})
        (folder.path / "checkpoint.new").mkdir()

    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    monkeypatch.setattr(launch, "_run", run)
    monkeypatch.setattr(patches, "needed", lambda accelerator: False)
    monkeypatch.setattr(launch, "check_devices", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        launch.train_distributed(config, OpenRLHF(), folder, Display(Console(file=StringIO())))
    seconds = folder.read_summary()["wall_s"]
    assert seconds > 0
    for version in ("1", "2"):
        known: dict[str, Any] = {"python": version}
        monkeypatch.setattr(run_folder, "versions", lambda known=known: known)
        console = Console(file=StringIO())
        launch.train_distributed(config, OpenRLHF(), folder, Display(console))
        assert isinstance(console.file, StringIO)
        assert "Stopped: why." in console.file.getvalue()
    assert started == [0, 0], "interrupted, then once"
    assert folder.read_summary()["wall_s"] > seconds
    assert folder.checkpoint.is_dir()
    assert [each.get("python") for each in folder.read_versions()][-2:] == ["1", "2"]


def test_an_interrupted_run_says_which_iterations_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: Config, settings: OpenRLHF, folder: RunFolder, display: Display) -> None:
        append_json_lines(folder.metrics, [{"iteration": i} for i in range(3)])
        write_state(folder.path, LoopState(saved))
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "check_run", lambda *_: True)
    monkeypatch.setattr(launch, "train_distributed", interrupted)
    for saved, said in ((2, "stopped; 2 of 3 iterations were saved"), (3, "stopped; everything so far is kept")):
        run = tmp_path / f"run{saved}"
        assert main(["train", "--backend", "openrlhf", "--out", str(run)]) == 130
        assert f"Go on with: ragen-agent train --resume {run}" in (error := capsys.readouterr().err)
        assert said in error


def test_signs_of_collapse_are_shown_as_they_are_recorded(tmp_path: Path) -> None:
    folder, console = RunFolder.create(tmp_path / "run", Config()), Console(file=StringIO(), width=400)
    records = [{"iteration": i, "invalid_rate": float(i > 0)} for i in range(5)]
    records[3]["alarm"] = ["invalid_rise"]  # type: ignore[assignment]
    history, display = History([], Config().stops), Display(console)
    with display.progress("reinforcement", 5):
        for record in records:
            with folder.metrics.open("a") as file:
                file.write(json.dumps(record) + "\n")
            launch._show(folder, history, display, [])
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("Echo Trap alarm after iteration 4: invalid rise (1 against 0)") == 1
    assert console.file.getvalue().count("Echo Trap alarm") == 1
    assert len(history.records) == 5


# As a driver: it meets a port that is in use at each start but the last, or plays an iteration first.
COLLIDING = """
import json, pathlib, socket, sys
run = pathlib.Path(sys.argv[-1]).parent
starts = run / "starts"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if sys.argv[2] == "after-iterations":
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 0, "success": 0.5}) + "\\n")
if sys.argv[2] == "other":
    raise ValueError("another reason")
if len(starts.read_text()) < int(sys.argv[1]):
    taken = socket.create_server(("127.0.0.1", 0))
    socket.create_server(taken.getsockname())
"""


@pytest.mark.parametrize(
    ("free_at", "kind", "starts", "ends"),
    [
        (2, "port", 2, ""),
        (9, "port", launch.STARTS, "already in use"),
        (9, "after-iterations", 1, "already in use"),
        (2, "other", 1, "another reason"),
    ],
)
def test_a_start_whose_port_was_taken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_at: int, kind: str, starts: int, ends: str
) -> None:
    monkeypatch.setattr(launch, "DRIVER", (sys.executable, "-c", COLLIDING, str(free_at), kind))
    folder, console = RunFolder.create(tmp_path / "run", Config()), Console(file=StringIO(), width=400)
    with nullcontext() if not ends else pytest.raises(launch.RunStoppedError, match=ends):
        launch._run(folder, Config(), OpenRLHF(), 0, Display(console), [])
    assert len((folder.path / "starts").read_text()) == starts
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("starting again") == starts - 1
