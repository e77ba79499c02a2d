"""The recipes' page: made of what was recorded, without the runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
