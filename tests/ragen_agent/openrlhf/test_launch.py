"""What the process that a user starts prints, and what goes to the run's log."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import weakref
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf import cpu_patches, launch
from ragen_agent.openrlhf.processes import RunState
from ragen_agent.run import run_folder
from ragen_agent.run.alarm import History
from ragen_agent.run.console import Display
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines

# The C library's ``malloc_stats`` writes to the standard error when the interpreter has ended, as nanobind does.
ENDING = """
import atexit, ctypes, sys
from pathlib import Path
from ragen_agent.openrlhf import cpu_patches, launch
report = ctypes.cast(ctypes.CDLL(None).malloc_stats, ctypes.c_void_p)
assert ctypes.pythonapi.Py_AtExit(report) == 0
if sys.argv[1:]:
    atexit.register(launch._send_stderr_to, Path(sys.argv[1]))
print("an error", file=sys.stderr)
"""


def ended(*arguments: str) -> str:
    command = [sys.executable, "-c", ENDING, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="this C library has no malloc_stats")
def test_what_libraries_report_at_their_end_is_in_the_log_and_errors_are_on_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "openrlhf.log"
    assert ended(str(log)).strip() == "an error"
    assert "system bytes" in log.read_text()
    assert "system bytes" in ended(), "without it this is on the terminal"


def test_a_run_that_cannot_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the same command would be refused, and --resume would go on with the local trainer."""
    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    words = ["train", "--backend", "openrlhf", "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "openrlhf.staleness=1", "--set", "openrlhf.colocate=true"]) == 2
    assert "use openrlhf.colocate=false" in capsys.readouterr().err
    assert main([*words, "--", "--train.seed", "3"]) == 2
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

    def run(folder: RunFolder, log: Path, config: Config, done: int, *unread: object) -> None:
        started.append(done)
        append_json_lines(folder.metrics, [{"iteration": 0, "success": 0.5}])
        RunState(1, "iteration1").write(folder.path)
        folder.write_summary({**folder.read_summary(), "before": rate, "after": rate, "stopped": "Stopped: why."})
        (folder.path / "checkpoint.new").mkdir()

    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    monkeypatch.setattr(launch, "_run", run)
    monkeypatch.setattr(launch, "atexit", SimpleNamespace(register=lambda *_: None))
    monkeypatch.setattr(cpu_patches, "needed", lambda accelerator: False)
    monkeypatch.setattr(launch, "check_devices", lambda *_: None)
    for version in ("1", "2"):
        known: dict[str, Any] = {"python": version}
        monkeypatch.setattr(run_folder, "versions", lambda known=known: known)
        console = Console(file=StringIO())
        launch.train_distributed(config, OpenRLHF(), folder, Display(console))
        assert isinstance(console.file, StringIO)
        assert "Stopped: why." in console.file.getvalue()
    assert started == [0]
    assert folder.checkpoint.is_dir()
    assert [each.get("python") for each in folder.read_versions()][-2:] == ["1", "2"]


def test_a_resumed_run_keeps_the_flags_that_it_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that an interrupted run names to go on with does not hold them."""
    small = {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}, "warm_start": {"epochs": 0}}
    config = with_settings(Config(), small | {"training": {"iterations": 2}, "evaluation": {"levels": 2}})
    folder = RunFolder.create(tmp_path / "run", config)

    def run(*_: Any) -> None:
        raise launch.RunStoppedError("the run stopped")

    monkeypatch.setattr(launch, "_check_installed", lambda: None)
    monkeypatch.setattr(launch, "_run", run)
    monkeypatch.setattr(launch, "atexit", SimpleNamespace(register=lambda *_: None))
    monkeypatch.setattr(cpu_patches, "needed", lambda accelerator: False)
    monkeypatch.setattr(launch, "check_devices", lambda *_: None)
    added = ["--train.agent_func_path", "mine.py", "--ds.param_dtype=fp16"]
    for given, kept in ((added, added), ([], added), (["--ds.overlap_comm"], ["--ds.overlap_comm"])):
        with pytest.raises(launch.RunStoppedError):
            launch.train_distributed(config, OpenRLHF(), folder, Display(Console(file=StringIO())), given)
        flags = json.loads((folder.path / "openrlhf.json").read_text())["flags"]
        assert flags[-len(kept) :] == kept


def test_the_warm_start_gives_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the processes of the run, which share the GPU with the launcher."""
    small = {"small_model": {"hidden": 32, "layers": 1, "feed_forward": 32}, "warm_start": {"epochs": 1}}
    config = with_settings(Config(), {**small, "demonstrations": {"episodes": 64}})
    built: list[weakref.ref[Any]] = []
    alive: list[bool] = []
    build = Policy.build

    def noted(config: Config) -> Any:
        policy = build(config)
        built.extend((weakref.ref(policy.model), weakref.ref(next(policy.model.parameters()))))
        return policy

    monkeypatch.setattr(Policy, "build", noted)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: alive.extend(ref() is not None for ref in built))
    folder = RunFolder.create(tmp_path / "run", config)
    launch._model(config, folder, Display(Console(file=StringIO())))
    assert alive == [False, False], "nothing of it is left when the cache is emptied"


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
        launch._run(folder, folder.path / "openrlhf.log", Config(), 0, Display(console), [])
    assert len((folder.path / "starts").read_text()) == starts
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("starting again") == starts - 1


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
