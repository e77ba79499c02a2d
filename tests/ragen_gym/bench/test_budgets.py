"""Scores of stated budgets against exact truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.report.tables import budgets
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main

TABLE = """
name = "stated"
[budgets]
budget = true
think = false
max_turns = 4
max_actions = 4
max_actions_per_turn = 1
[[splits]]
name = "corridor"
env = "FrozenLake"
env_options = { success_rate = 1.0 }
levels = "corridor.txt"
"""
LEVELS = "P__G\nOOOO\nOOOO\nOOOO\n\n___P\n_OOO\n_OOO\nGOOO\n"  # three moves, and six, which are too many


class Says:
    """Plays given moves with given budgets, level by level."""

    name = "says"

    def __init__(self, *replies: Sequence[tuple[str, str]]) -> None:
        self.replies = replies

    async def reply(self, messages: Sequence[Any], task: Task) -> Answer:
        budget, move = self.replies[task.index][len(messages) // 2 - 1]
        return Answer(f"<budget>{budget}</budget><answer>{move}</answer>", completion_tokens=10)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    (tmp_path / "corridor.txt").write_text(LEVELS, encoding="utf-8")
    return tmp_path


def scored(suite: Path, agent: Any) -> dict[str, Any]:
    run_suite(load_suite(suite), agent, suite / "run")
    found = score_results(load_results(suite / "run", suite))
    split: dict[str, Any] = found["splits"]["corridor"]
    return split


def test_an_honest_optimal_player_is_perfect(suite: Path) -> None:
    entry = scored(suite, make_agent("budget:oracle"))["budget"]
    assert entry["stated"] == {"rate": 1, "n": 7}
    for truth in ("optimal", "own"):
        assert entry[truth]["coverage"]["rate"] == 1
        assert entry[truth]["score"]["mean"] == entry[truth]["brier"]["mean"] == 0
    assert entry["impossible"]["precision"]["rate"] == entry["impossible"]["recall"]["rate"] == 1
    # The whole of the lost level is saved, and nothing of the other.
    assert entry["stopping"] == {
        "episodes": 1,
        "replies": 4 / 7,
        "replies_of_failed": 1,
        "tokens": None,
        "successes_lost": 0,
    }
    assert entry["optimism"]["n"] == 0


def test_the_figures_by_hand(suite: Path) -> None:
    # Level 0: [1, 3] covers 3; stays; then [1, 4] covers 3; then a wasted move loses it: possible, then impossible.
    first = ("[1, 3]", "Left"), ("[1, 4]", "Left"), ("[2, 2]", "Right"), ("impossible", "Right")
    # Level 1 is lost from the start: an interval, a text that is no budget, impossible twice.
    second = ("[1, 2]", "Left"), ("soon", "Left"), ("impossible", "Left"), ("impossible", "Left")
    split = scored(suite, Says(first, second))
    assert split["success"]["rate"] == 0
    entry = split["budget"]
    assert entry["stated"] == {"rate": 7 / 8, "n": 8}
    # To go: 3 of 4 left, 3 of 3, lost of 2, lost of 1; lost in all of level 1, 5, 4, 3 and 2 for no success.
    scores = [2, 3, 10, 0, 1 + 10 * 3, 4, 0, 0]
    assert entry["optimal"]["score"]["mean"] == pytest.approx(sum(scores) / 8)
    assert entry["optimal"]["coverage"]["rate"] == pytest.approx(6 / 8)
    assert entry["own"]["coverage"]["rate"] == pytest.approx(5 / 8)  # [1, 4] of 3 moves left holds no success
    assert entry["width"]["mean"] == pytest.approx((2 + 3 + 0 + 0 + 1 + 4 + 0 + 0) / 8)
    assert entry["impossible"]["said"] == 3
    assert entry["impossible"]["lost"] == 6
    assert entry["impossible"]["precision"]["rate"] == 1
    assert entry["impossible"]["recall"]["rate"] == pytest.approx(3 / 6)
    assert entry["impossible"]["at_pivot"]["rate"] == 0
    assert entry["stopping"]["replies"] == entry["stopping"]["tokens"] == pytest.approx(3 / 8)
    assert entry["optimism"] == {"n": 5, "not_seeing": 3 / 5, "chance": 0, "not_planning": pytest.approx(2 / 5)}


def test_the_constants_are_the_best_in_hindsight(suite: Path) -> None:
    entry = scored(suite, make_agent("budget:oracle", states="wide"))["budget"]["optimal"]
    # To go with the moves left: (3, 4), (2, 3), (1, 2) and no success of 4, 3, 2 and 1, which is 5, 4, 3 and 2.
    to_go = [(3, 4), (2, 3), (1, 2), (5, 4), (4, 3), (3, 2), (2, 1)]

    def score(low: int, high: int, moves: int, left: int) -> float:
        low, high = min(low, left + 1), min(high, left + 1)
        return high - low + 10 * max(low - moves, moves - high, 0)

    best = min(sum(score(low, high, *each) for each in to_go) for low in range(6) for high in range(low, 6)) / 7
    assert entry["constant"]["score"] == pytest.approx(best)
    assert entry["score"]["mean"] == pytest.approx(sum(score(1, 20, *each) for each in to_go) / 7)
    assert entry["constant"]["excess"]["mean"] == pytest.approx(entry["score"]["mean"] - best)
    assert entry["clock"]["score"] <= entry["constant"]["score"]


def test_moves_without_replies_state_nothing(suite: Path) -> None:
    assert "budget" not in scored(suite, make_agent("oracle"))


def test_a_run_is_verified_and_its_budgets_are_printed(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(suite / "run")
    arguments = ["bench", "run", "--suite", str(suite), "--agent", "budget:blind", "--out", run]
    assert main(arguments) == 0
    assert "Stated budgets of corridor, against optimal play: 100.0 % hold" in capsys.readouterr().out
    found = load_results(suite / "run", str(suite))
    assert verify(found).verdict == "verified"
    assert len(budgets(score_results(found))) == 1


def test_budgets_are_for_one_action_a_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "run", "--suite", "smoke", "--limit", "1", "--out", str(tmp_path / "run"), "--agent"]
    assert main([*arguments, "budget:oracle"]) == 2
    assert "use --suite budget-v1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "it is refused before play"


@pytest.mark.parametrize(
    ("policy", "states", "message"),
    [
        ("greedy", "own", "budget:greedy has no such policy: choose one of random, blind, oracle"),
        ("oracle", "true", "states='true' must be one of own, wide, possible, impossible"),
    ],
)
def test_unknown_agents(policy: str, states: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_agent(f"budget:{policy}", states=states)
