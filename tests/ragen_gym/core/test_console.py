"""What the commands of ``ragen-gym`` print of other people's names."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from ragen_gym.cli import main
from ragen_gym.core.console import ProgressBar, plain_output, rich_console

ESCAPES = "\x1b]0;taken\x07\x9b31m\u202etxt"
CONTROLS = set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["levels", "export", "FrozenLake", "-n", "2", "--out", f"levels{ESCAPES}.txt"], 0),
        (["levels", "export", f"Nope{ESCAPES}", "--out", "other.txt"], 2),
        (["levels", "export", "FrozenLake", "--out", "other.txt", f"more{ESCAPES}"], 2),
        (["info", "FrozenLake", "--levels", f"given{ESCAPES}.txt"], 0),
    ],
)
def test_a_name_with_control_characters(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"given{ESCAPES}.txt").write_text("PG\n__\n\nPO\nOG\n", encoding="utf-8")
    assert main(words) == code
    said = "".join(capsys.readouterr())
    assert "taken" in said or code == 0
    assert not set(said) & CONTROLS, ascii(said)


def test_errors_are_plain_and_bars_of_libraries_are_drawn() -> None:
    with redirect_stderr(io.StringIO()) as errors, plain_output():
        print(f"a{ESCAPES}", file=sys.stderr)
        print("\r 50%|#    |", end="", file=sys.stderr)
    assert not set(errors.getvalue()) & CONTROLS
    assert errors.getvalue().endswith("\r 50%|#    |")


def test_a_bar_is_drawn_while_texts_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with (
        redirect_stdout(io.StringIO()) as out,
        plain_output(),
        ProgressBar("steps", 2, console=rich_console(force_terminal=True)) as bar,
    ):
        bar.say(ESCAPES)
        bar.advance(2)
    assert "\x1b[2K" in out.getvalue()
    assert "\N{REPLACEMENT CHARACTER}[2K" not in out.getvalue()
    assert "\x1b]0" not in out.getvalue()
