"""The audit of other libraries: what becomes of findings that their evidence does not show, and of rows asked again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import audit


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        ("assert 1 > 2", ""),
        ("1 / 0  # raises", ""),
        ("assert 2 > 1", "no assertion of its evidence failed"),
        ("2 + 2  # raises", "its evidence raised nothing"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_evidence_that_shows_nothing_says_how_it_ended(evidence: str, reason: str) -> None:
    found = audit.unreproduced(evidence, sys.executable, [])
    assert reason in found
    assert bool(found) is bool(reason)


def test_findings_that_are_not_reproduced_are_listed_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(audit.OUT.read_text(encoding="utf-8"))
    monkeypatch.setattr(audit, "OUT", tmp_path / "audit.json")
    audit.OUT.write_text(json.dumps(rows))
    published = audit.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(audit, "PAGE", tmp_path / "audit.md")
    assert audit.main(["--page-only"]) == 0
    assert audit.PAGE.read_text(encoding="utf-8") == published, "of the JSON alone, on whatever machine"
    assert capsys.readouterr().err == ""
    row = next(row for row in rows if row["target"] == "Taxi-v4")
    check = next(check for check in row["checks"] if check["status"] == "finding")
    check |= {"reproduced": False, "not_reproduced": "no assertion of its evidence failed", "detail": "a|b"}
    audit.OUT.write_text(json.dumps(rows))
    assert audit.main(["--page-only"]) == 1
    shown = capsys.readouterr().err
    line = f"not reproduced: {row['library']}, Taxi-v4, {check['check']}: no assertion of its evidence failed"
    assert shown.splitlines() == [line]
    assert r"| a\|b | no: no assertion of its evidence failed |" in audit.PAGE.read_text(encoding="utf-8")


def test_a_row_asked_again_stays_in_its_place() -> None:
    rows = json.loads(audit.OUT.read_text(encoding="utf-8"))
    assert [audit.merged(rows, row) for row in rows] == [rows] * len(rows)
    left = {"library": rows[3]["library"], "target": rows[3]["target"], "left_out": "no interpreter was given"}
    assert audit.merged(rows, left) == rows, "what cannot be had today keeps what was found before"
