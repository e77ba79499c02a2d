"""The recipes' page: made of what was recorded, without the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import recipes


def test_recorded_runs_are_not_trained_again(tmp_path: Path) -> None:
    shutil.copy(recipes.HERE / "recipes.json", tmp_path)
    recorded = json.loads((tmp_path / "recipes.json").read_text(encoding="utf-8"))
    for name, seeds in recorded.items():
        command = ["--recipes", name, "--seeds", *seeds, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
        assert recipes.main(command) == 0
    assert not (tmp_path / "runs").exists()
    for file in ("recipes.json", "recipes.md"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (recipes.HERE / file).read_text(encoding="utf-8")


def test_a_stopped_run_is_written_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, recorded = next(iter(json.loads((recipes.HERE / "recipes.json").read_text(encoding="utf-8")).items()))
    whole = recorded["0"]
    folder = tmp_path / "runs" / f"{name}-seed0"
    folder.mkdir(parents=True)
    partial = {row: value for row, value in whole.items() if row not in ("more_imitation", "clean_warm_start")}
    (folder / "summary.json").write_text(json.dumps(partial), encoding="utf-8")

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "train", stopped)
    arguments = ["--recipes", name, "--seeds", "0", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        recipes.main(arguments)
    text = (tmp_path / "recipes.md").read_text(encoding="utf-8")
    assert f"| then reinforcement | {100 * whole['after']['rate']:.1f} |" in text
    assert text.count("| not yet | |") == 3
