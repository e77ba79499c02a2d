"""The recipes' page: made of what was recorded, without the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recipes

HERE = Path(recipes.__file__).parent
NAME = recipes.DEFAULT


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The summary of a recorded run, whose folder is on disk."""
    shutil.copy(HERE / "recipes.json", tmp_path)
    summary = json.loads((HERE / "recipes.json").read_text(encoding="utf-8"))[NAME]["0"]
    write(tmp_path, {key: value for key, value in summary.items() if key != "machine"})
    monkeypatch.setattr(recipes, "machine", lambda *packages: "another machine")
    return dict(summary)


def write(folder: Path, summary: dict[str, Any]) -> None:
    run = folder / "runs" / f"{NAME}-seed0"
    run.mkdir(parents=True, exist_ok=True)
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


@pytest.mark.parametrize("names", [[], [NAME]])
def test_a_recorded_run_keeps_its_machine_and_is_not_trained_again(
    names: list[str], recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "ragen_agent", lambda arguments: pytest.fail("trained again"))
    assert recipes.main([*names, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path), "--seeds", "0", "1"]) == 0
    for file in ("recipes.json", "recipes.md"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (HERE / file).read_text(encoding="utf-8")


def test_a_stopped_run_is_written_with_what_there_is(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes.json").unlink()
    compared = ("more_imitation", "clean_warm_start")
    write(tmp_path, {row: value for row, value in recorded.items() if row not in compared})
    monkeypatch.setattr(recipes, "ragen_agent", lambda arguments: 130)
    with pytest.raises(SystemExit, match="130"):
        recipes.main([NAME, "--seeds", "0", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)])
    text = (tmp_path / "recipes.md").read_text(encoding="utf-8")
    assert f"| then reinforcement | {100 * recorded['after']['rate']:.1f} |" in text
    assert text.count("| not yet |  |") == 3
