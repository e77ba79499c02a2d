"""A disk that fills up during a run: one line that says so, nothing lost, and the resumed run is the unbroken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_agent.cli import main
from ragen_agent.config import merged
from ragen_agent.local import run as training
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import DiskFullError
from tests.ragen_agent.displays import quiet
from tests.ragen_agent.local.test_run import TINY, complete, configure, weights, without_clock
from tests.ragen_gym.core.test_storage import limited_files

CONFIG = configure(merged(TINY, {"training": {"iterations": 3}}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unbroken run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    complete(CONFIG, path)
    return path


def resumed_equals(whole: Path, path: Path) -> None:
    folder, config = RunFolder.reopen(path)
    training.train(config, folder, quiet())
    assert without_clock(path) == without_clock(whole)
    assert weights(path).keys() == weights(whole).keys()
    assert all((weights(path)[name] == value).all() for name, value in weights(whole).items())
    left = {file.name for file in path.rglob("*") if file.name.endswith((".tmp", ".new", ".old"))}
    assert not left, "what could not be finished is removed"


@pytest.mark.parametrize("name", ["warm/model.safetensors", "state.pt", "episodes.jsonl"])
def test_a_file_that_may_not_grow_is_named(name: str, whole: Path, tmp_path: Path) -> None:
    size = (whole / name).stat().st_size
    with limited_files(size - 1), pytest.raises(DiskFullError, match="file too large") as caught:
        complete(CONFIG, tmp_path / "run")
    named = name.partition("/")[0]
    assert f"{tmp_path / 'run' / named} cannot be written" in str(caught.value)
    resumed_equals(whole, tmp_path / "run")


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["--game", "Bandit", "--set", "small_model.hidden=32", "--set", "demonstrations.episodes=96"]
    with limited_files(20_000):
        assert main(["train", *options, "--out", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"ragen-agent: {out / 'warm'} cannot be written: file too large;")
    assert said[0].endswith(f"ragen-agent train --resume {out}")
