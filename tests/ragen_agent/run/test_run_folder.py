"""A run's folder, and what it says of the code that made it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from ragen_agent.config import Config
from ragen_agent.run import run_folder
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.seen import read_seen


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    RunFolder.create(run, Config(seed=3))
    before = (run / "config.toml").read_bytes()
    with pytest.raises(ValueError, match="holds another run") as refused:
        RunFolder.create(run, Config(seed=4))
    assert shlex.split(str(refused.value))[-2:] == ["--resume", str(run)], "the command can be pasted into a shell"
    assert (run / "config.toml").read_bytes() == before
    assert RunFolder.reopen(run)[1] == Config(seed=3)
    with pytest.raises(ValueError, match="is not an empty folder"):
        RunFolder.create(tmp_path, Config())
    with pytest.raises(ValueError, match=r"holds no run .*give the folder"):
        RunFolder.reopen(tmp_path)


def test_state_is_replaced_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.load_state() is None
    for iteration in (1, 2):
        folder.save_state({"iteration": iteration, "model": {"w": torch.ones(2) * iteration}})
    state = folder.load_state()
    assert state is not None
    assert state["iteration"] == 2
    assert state["model"]["w"].tolist() == [2.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_the_levels_that_were_trained_on(tmp_path: Path) -> None:
    model = RunFolder.create(tmp_path / "model", Config())
    assert read_seen(model.path) == frozenset()
    model.add_seen([3, 1])
    model.add_seen([2, 3])
    model.checkpoint.mkdir()
    run = RunFolder.create(tmp_path / "run", Config(model=str(model.checkpoint)))
    assert read_seen(run.seen) == {1, 2, 3}, "what the starting model was trained on"
    RunFolder(run.path).add_seen([2**64 - 1])
    assert read_seen(run.seen) == {1, 2, 3, 2**64 - 1}
    run.seen.unlink()  # a run of an earlier version: what it saw before is not known
    run.add_seen([4])
    assert not run.seen.exists()
    run.checkpoint.mkdir()
    assert not RunFolder.create(tmp_path / "next", Config(model=str(run.checkpoint))).seen.exists(), "nor by the next"
    run.copy_seen(run.checkpoint)
    moved = run.checkpoint.rename(tmp_path / "moved")
    assert not RunFolder.create(tmp_path / "after", Config(model=str(moved))).seen.exists(), "nor where it is moved"
    (tmp_path / "from elsewhere").mkdir()
    other = RunFolder.create(tmp_path / "other", Config(model=str(tmp_path / "from elsewhere")))
    assert read_seen(other.seen) == frozenset(), "nobody's run: it was trained on no level"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_state_of_a_checkout(tmp_path: Path) -> None:
    package, installed = tmp_path / "code" / "package", tmp_path / "code" / ".venv" / "package"
    for folder in (package, installed):
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("one = 1\n")
    git(tmp_path / "code", "init", "-q")
    git(tmp_path / "code", "add", "package")
    git(tmp_path / "code", "commit", "-q", "-m", "first")
    commit = git(package, "rev-parse", "HEAD")
    assert run_folder.git_state(package) == commit
    (package / "module.py").write_text("one = 2\n")
    assert run_folder.git_state(package) == f"{commit}-dirty"
    assert run_folder.git_state(installed) is None, "it is not tracked"
    assert run_folder.git_state(tmp_path) is None


def test_a_run_notes_what_it_went_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.note_versions()
    first = folder.read_versions()
    assert len(first) == 1, "nothing had changed"
    assert {"ragen-gym", "torch", "transformers"} <= first[0]["packages"].keys()
    newer = {**first[0], "packages": {**first[0]["packages"], "torch": "9.9"}, "started": "2030-01-01T00:00:00+00:00"}
    monkeypatch.setattr(run_folder, "versions", lambda: newer)
    RunFolder.reopen(tmp_path / "run")[0].note_versions()
    assert folder.read_versions() == [first[0], newer]
    (tmp_path / "run" / "versions.json").unlink()
    assert folder.read_versions() == [], "a run that was made without it"
