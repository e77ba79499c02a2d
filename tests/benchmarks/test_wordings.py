"""The page of untrained models: made of what was recorded, nothing played again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks import wordings

HERE = Path(wordings.__file__).parent


def test_what_was_recorded_is_not_played_again(tmp_path: Path) -> None:
    shutil.copy(HERE / "wordings.json", tmp_path)
    recorded = json.loads((tmp_path / "wordings.json").read_text(encoding="utf-8"))
    for game, models in recorded.items():
        assert wordings.main(["--games", game, "--models", *models, "--out", str(tmp_path)]) == 0
    for file in ("wordings.json", "wordings.md"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (HERE / file).read_text(encoding="utf-8")
