"""What the commands of ``ragen-gym`` print of other people's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_gym.cli import main


def test_a_name_with_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "levels\x1b]0;taken\x07\x9b31m.txt"
    assert main(["levels", "export", "FrozenLake", "-n", "2", "--out", name]) == 0
    assert main(["levels", "export", f"Nope{name}", "--out", "other.txt"]) == 2
    captured = capsys.readouterr()
    assert "2 distinct levels" in captured.out
    assert not set(captured.out + captured.err) & set("\x1b\x07\x9b")
