"""Event files hold what metrics.jsonl holds; without TensorBoard its absence is said."""

from __future__ import annotations

import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from ragen_agent.cli import main
from ragen_agent.local.run_folder import read_json_lines

INSTALLED = find_spec("tensorboard") is not None


@pytest.mark.skipif(INSTALLED, reason="TensorBoard is installed")
def test_without_tensorboard_it_says_so(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs["seed0"]), "--tensorboard"]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not (runs["seed0"] / "tensorboard").exists()


@pytest.mark.skipif(not INSTALLED, reason="TensorBoard is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_figure_is_there_once(runs: dict[str, Path], tmp_path: Path) -> None:
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    shutil.copytree(runs["seed0"], run)
    for _ in range(2):  # the second time in place of the first
        assert main(["report", str(run), "--tensorboard"]) == 0
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    metrics = read_json_lines(run / "metrics.jsonl")
    for name in ("success", "spread", "return"):
        written = [(event.step, event.value) for event in events.Scalars(name)]
        assert written == [(r["iteration"] + 1, pytest.approx(r[name], rel=1e-5)) for r in metrics]


def test_the_distributed_trainers_own_files_are_left_alone(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(runs["seed0"] / "config.toml", run)
    (run / "openrlhf.toml").write_text("")
    assert main(["report", str(run), "--tensorboard"]) == 2
    assert "its own event files" in capsys.readouterr().err
