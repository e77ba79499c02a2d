"""Progress on standard error: plain lines without a terminal, a bar on one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ragen_gym.core.console import ProgressBar, track


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("ragen_gym.core.console.time.monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_now_and_then(clock: list[float], capsys: Any) -> None:
    with ProgressBar("episodes", 2000, prefix="bench: ", seconds=10) as bar:
        bar.advance()
        clock[0] = 9.0
        bar.advance()
        assert capsys.readouterr().err == ""
        clock[0] = 10.0
        bar.update(1500, "3 failed")
        bar.advance(info="4 failed")
    captured = capsys.readouterr()
    assert captured.err == "bench: 1,500 of 2,000 episodes, 3 failed, 3 s left\n"
    assert captured.out == ""
    assert bar.done == 1501


def test_a_first_line_at_once(clock: list[float], capsys: Any) -> None:
    with ProgressBar("episodes", 2, at_once=True) as bar:
        assert capsys.readouterr().err == "0 of 2 episodes\n"
        bar.advance()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_and_lines_above_it() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with ProgressBar("levels", 3, done=1, console=console) as bar:
        bar.say("[not markup]")
        bar.update(3)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[not markup]" in text
    assert "levels" in text
    assert "3/3" in text


def test_track_yields_every_item(capsys: Any) -> None:
    assert list(track(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
