"""The section on rewards of stated budgets: means and verdicts over seeds, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import budget
from benchmarks.budget_rewards import PLAY, PRETRAINED, PRETRAINED_REWARDED, PRETRAINED_START, REWARDED, SPLIT, section
from ragen_agent.cli.settings import check_name
from ragen_gym.bench.suites import load_suite


def row(success: float, score: float, recall: float | None, said: int = 9) -> dict[str, Any]:
    rate = None if recall is None else {"rate": recall}
    own = {"coverage": {"rate": 0.5}, "score": {"mean": score}, "constant": {"excess": {"mean": score - 2}}}
    impossible = {"recall": rate, "at_pivot": rate, "precision": {"rate": 0.25}, "lost": 30, "said": said}
    budget = {"width": {"mean": 1.0, "n": 60}, "own": own, "optimal": own, "impossible": impossible}
    return {"success": {"rate": success}, "budget": budget}


def test_a_verdict_needs_an_interval_on_one_side_of_zero() -> None:
    rows = {
        "start": [row(0.5, 9.0, 0.1)],
        "none": [row(0.5, 9.0, None), row(0.6, 9.5, 0.0), row(0.4, 8.5, 0.0)],
        "score": [row(0.5, 4.0, 0.8), row(0.6, 4.6, 0.9), row(0.4, 3.4, 0.7)],
        "bagen": [row(0.1, 9.0, 0.0, 60), row(0.2, 19.5, 0.0, 60), row(0.1, 1.0, 0.0, 60)],
    }
    page = section(rows, 128, 0.2).replace("\N{MINUS SIGN}", "-")
    assert "| the start | 50.0 | 1.0 | 50.0 | 9.0 | 7.0 | 10.0 | 10.0 | 25.0 | 50.0 |" in page
    score, bagen = [line for line in page.splitlines() if line.startswith("- **")]
    assert score.startswith("- **Success and the proper score**, minus success alone with the same seed: ")
    assert "; score -5.0 (-5.2 to -4.8), better" in score
    assert "; recall % 80.0 (55.2 to 104.8), better" in score
    assert ": success % 0.0 (0.0 to 0.0), not told apart" in score
    assert "; recall % 0.0 (0.0 to 0.0), not told apart" in bagen
    assert ": success % -36.7 (-51.0 to -22.3), worse" in bagen
    assert "on every board" in bagen
    assert "on every board" not in score
    assert "Random play succeeds in 20.0 % of these lakes, and 2 of the 3 rewards end surely above\nit" in page
    assert "(by seed 9 of 60, 9 of 60, 9 of 60 statements; at the start 9 of 60)" in page
    assert "number: 5 of the 12 comparisons" in page
    assert "**A pretrained model** was not trained" in page
    page = section(rows, 128, 0.2, {"model": "smollm2-135m", "rows": rows})
    assert "**A pretrained model**, `smollm2-135m`, by" in page
    assert page.count("| the start | 50.0 |") == 2


def test_what_impossible_says_stands_beside_the_success_of_all_episodes() -> None:
    success = {"rate": 0.4, "n": 50}
    stopping = {"episodes": 12, "tokens": 0.065, "successes_lost": 0.12}
    assert budget._stopping({"success": success, "budget": {"stopping": stopping}}) == (
        "Of the 12 episodes in which it says `impossible`, 6 then succeed (50.0 %; of all 40.0 %). "
        "Stopping at the first would save 6.5 % of its tokens and lose 6 of its 20 successes."
    )
    silent = {"success": success, "budget": {"stopping": {**stopping, "episodes": 0}}}
    assert budget._stopping(silent) == "It never says `impossible`."


def test_a_pretrained_model_is_trained_on_what_the_suite_shows() -> None:
    said = {**budget.TRAINED, **PLAY, **REWARDED, **PRETRAINED, **PRETRAINED_START, **PRETRAINED_REWARDED}
    for name in said.keys() - PLAY.keys():
        check_name(name)
    config = next(split for split in load_suite("budget-v1").splits if split.name == SPLIT).turn_config
    for name in ("max_turns", "max_actions", "max_actions_per_turn", "example", "budget"):
        assert said[f"turns.{name}"] == str(getattr(config, name)).lower()


def test_a_model_goes_with_rewards(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        budget.main(["--model", "smollm2-135m"])
    assert "--model goes with --rewards" in capsys.readouterr().err
