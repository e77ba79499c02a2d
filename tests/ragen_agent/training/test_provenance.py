"""What a run says of the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ragen_agent.config import Config
from ragen_agent.training import provenance as versions
from ragen_agent.training import run_folder
from ragen_agent.training.run_folder import RunFolder


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package in it, committed."""
    package = tmp_path / "code" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("one = 1\n")
    git(tmp_path / "code", "init", "-q", "-b", "trunk")
    git(tmp_path / "code", "add", ".")
    git(tmp_path / "code", "commit", "-q", "-m", "first")
    return package


def test_the_state_of_a_checkout(checkout: Path) -> None:
    clean = versions.git_state(checkout)
    assert clean == {"commit": git(checkout, "rev-parse", "HEAD"), "branch": "trunk", "changed": []}
    (checkout / "module.py").write_text("one = 2\n")
    changed = versions.git_state(checkout)
    assert changed is not None
    assert changed["changed"] == ["package/module.py"]
    (checkout / "module.py").write_text("one = 3\n")
    other = versions.git_state(checkout)
    assert other is not None
    assert (other["changed"], other["commit"]) == (changed["changed"], changed["commit"])
    assert other["diff_sha256"] != changed["diff_sha256"]


def test_what_no_repository_knows_has_no_state(checkout: Path, tmp_path: Path) -> None:
    installed = checkout.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "module.py").write_text("")
    assert versions.git_state(installed) is None
    outside = tmp_path / "outside"
    outside.mkdir()
    assert versions.git_state(outside) is None


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
