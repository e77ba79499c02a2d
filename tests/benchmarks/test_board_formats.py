"""The page of board formats, of pairs that are measured already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import board_formats
from benchmarks.board_formats import HERE, main
from ragen_agent.config import Config


def test_measured_pairs_are_not_run_again_and_name_their_machines(tmp_path: Path) -> None:
    results = json.loads((HERE / "board_formats.json").read_text(encoding="utf-8"))
    first, second = (dict(pair, rate=rate) for pair, rate in zip(results["pairs"], (0.25, 0.5), strict=False))
    results["pairs"] = [first | {"machine": "one"}, second | {"machine": "another"}]
    written = json.dumps(results)
    (tmp_path / "board_formats.json").write_text(written, encoding="utf-8")
    chosen = ["--formats", first["format"], "--thoughts", first["thought"]]
    assert main([*chosen, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "board_formats.json").read_text(encoding="utf-8") == written
    page = (tmp_path / "board_formats.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if "(" in line and line.startswith("| ")]
    assert "| 50.0" in rows[0], "the best first"
    assert [row.rstrip(" |")[-1] for row in rows] == ["2", "1"]
    assert "Machines: (1) one; (2) another." in page


def test_pairs_of_other_levels_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = json.loads((HERE / "board_formats.json").read_text(encoding="utf-8"))
    first: dict[str, Any] = results["pairs"][0]
    run: list[tuple[str, str]] = []

    def measured(_: Config, text_format: str, thought: str) -> dict[str, Any]:
        run.append((text_format, thought))
        return first

    monkeypatch.setattr(board_formats, "_pair", measured)
    file = tmp_path / "board_formats.json"
    chosen = ["--formats", first["format"], "--thoughts", first["thought"], "--out", str(tmp_path)]
    file.write_text(other := json.dumps(results | {"demonstrator": 0.99}), encoding="utf-8")
    with pytest.raises(
        SystemExit, match=r"is of something else \(demonstrator 0\.99, not 0\.\d+\): choose another --out"
    ):
        main(chosen)
    assert file.read_text(encoding="utf-8") == other
    assert run == []

    file.unlink()
    assert main(chosen) == 0
    assert run == [(first["format"], first["thought"])]
    assert json.loads(file.read_text(encoding="utf-8")) == results | {"pairs": [first]}
