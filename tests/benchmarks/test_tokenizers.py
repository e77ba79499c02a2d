"""The page of tokenizers: made of what was recorded, nothing measured again."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks import tokenizers

HERE = Path(tokenizers.__file__).parent


def test_the_page_is_made_of_the_record(tmp_path: Path) -> None:
    shutil.copy(HERE / "tokenizers.json", tmp_path)
    assert tokenizers.main(["--out", str(tmp_path)]) == 0
    for file in ("tokenizers.json", "tokenizers.md"):
        assert (tmp_path / file).read_text(encoding="utf-8") == (HERE / file).read_text(encoding="utf-8")
