"""Lines of the console."""

import pytest

from ragen_agent.config import Evaluation
from ragen_agent.run.console import Display, rates_table


def test_names_and_replies_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """And not as emoji where rich knows one of the name."""
    display = Display()
    display.say("> <answer>:100:</answer>")
    display.console.print(rates_table("my_games:Taxi", Evaluation(), {}))
    shown = capsys.readouterr().out
    assert "<answer>:100:</answer>" in shown
    assert "my_games:Taxi: success" in shown
