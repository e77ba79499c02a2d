"""What all measurements share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import budget, exact, made_folder, real_model, rollout, vision

HOME = Path(rollout.__file__).parent


def test_the_folder_of_a_page_is_made_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made_folder(f"{tmp_path}/new/page") == tmp_path / "new" / "page"
    assert made_folder(str(tmp_path)).is_dir()
    assert (tmp_path / "new" / "page").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        rollout.main(["--out", f"{tmp_path}/file"])
    assert f"{tmp_path}/file cannot be made: File exists; name another folder." in capsys.readouterr().err


@pytest.mark.parametrize("measurement", [budget, exact, real_model, rollout, vision], ids=lambda each: each.__name__)
def test_a_page_is_made_of_its_results(measurement: Any) -> None:
    name = measurement.__name__.rpartition(".")[2]
    results = json.loads((HOME / f"{name}.json").read_text(encoding="utf-8"))
    assert measurement._page(results) == (HOME / f"{name}.md").read_text(encoding="utf-8")
