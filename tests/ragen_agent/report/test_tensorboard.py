"""Event files hold what metrics.jsonl holds, also while a run goes on; without TensorBoard its absence is said."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from ragen_agent.config import Config
from ragen_agent.local import run as training
from ragen_agent.run import tracking
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import Interrupting, quiet

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def watched(run: Path) -> Config:
    """The settings of a run, with event files."""
    config = RunFolder.reopen(run)[1]
    return replace(config, diagnostics=replace(config.diagnostics, tensorboard=True))


def check_events(run: Path, iterations: int) -> None:
    """Holds the event files of a run to its figures: each iteration is there, once."""
    accumulator = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    metrics = read_json_lines(run / "metrics.jsonl")
    assert len(metrics) == iterations
    for name in ("success", "return_std", "return"):
        written = [(event.step, event.value) for event in found.Scalars(name)]
        assert written == [(r["iteration"] + 1, pytest.approx(r[name], rel=1e-5)) for r in metrics]


def test_without_tensorboard_it_says_so(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    config = watched(runs["seed0"])
    with pytest.raises(ValueError, match=r"tensorboard needs tensorboard: run pip install 'ragen-gym\[tracking\]'"):
        training.TrainingRun(config, RunFolder.create(tmp_path / "run", config), quiet())


def test_a_run_writes_them_as_it_goes_on(runs: dict[str, Path], tmp_path: Path) -> None:
    config = watched(runs["seed0"])
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        training.train(config, folder, Interrupting(1))
    check_events(folder.path, 2)
    training.TrainingRun(config, folder, quiet()).reinforce()
    check_events(folder.path, 4)
