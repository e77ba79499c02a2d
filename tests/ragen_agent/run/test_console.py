"""The picture of a run."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ragen_agent.config import Config, Evaluation
from ragen_agent.run.console import Display, plot_curve, rates_table


def test_the_curve_has_whole_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[float] = []
    save = Figure.savefig

    def seen(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        ticks.extend(figure.axes[0].get_xticks())

    monkeypatch.setattr(Figure, "savefig", seen)
    plot_curve([{"success": 0.5}] * 20, {}, tmp_path / "curve.png", Config())
    assert len(ticks) > 2
    assert all(tick == round(tick) for tick in ticks)


def test_names_and_replies_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """And not as emoji where rich knows one of the name."""
    display = Display()
    display.say("> <answer>:100:</answer>")
    display.console.print(rates_table("my_games:Taxi", Evaluation(), {}))
    shown = capsys.readouterr().out
    assert "<answer>:100:</answer>" in shown
    assert "my_games:Taxi: success" in shown
