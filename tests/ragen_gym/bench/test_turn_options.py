"""Every option of a turn reaches a suite, and everything that is made of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Task
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.report.viewer_data import details
from ragen_gym.bench.results import BenchResults, load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import Split, Suite, load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.core.levels import Level
from ragen_gym.core.settings import declared
from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.envs.reply import Problem, explain_problem

BOARD = "######\n######\n#PXO_#\n######\n######\n######"
PUSHED = "######\n######\n#_P√_#\n######\n######\n######"

TABLE = """
name = "grounded"
[budgets]
grounding = true
world_modelling = true
state_reward = 0.5
max_tokens_per_turn = 200
[[splits]]
name = "push"
env = "Sokoban"
levels = "push.txt"
"""


class Describes:
    """Leaves out the observation, then describes both boards right, or only the first."""

    name = "describes"

    def __init__(self, expected: str) -> None:
        self.expected = expected

    async def reply(self, messages: Sequence[Any], task: Task) -> str:
        if len(messages) == 2:
            return "<think>Push.</think><answer>Right</answer>"
        thinking = f"<observation>{task.env.board}</observation><prediction>{self.expected}</prediction>"
        return f"<think>{thinking}</think><answer>Right</answer>"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.toml").write_text(TABLE, encoding="utf-8")
    (tmp_path / "push.txt").write_text(BOARD + "\n", encoding="utf-8")
    return tmp_path


def played(suite: Path, expected: str) -> BenchResults:
    run_suite(load_suite(suite), Describes(expected), suite / "run")
    return load_results(suite / "run", suite)


@pytest.mark.parametrize(("expected", "state_reward"), [(PUSHED, 0.5), (BOARD, 0.25)])
def test_grounding_and_state_reward_reach_every_command(
    suite: Path, expected: str, state_reward: float, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played(suite, expected)
    (record,) = run.records
    assert [turn.problem for turn in record.turns] == ["no_state", None]
    assert [turn.reward for turn in record.turns] == pytest.approx([-0.1, 10.9 + state_reward])
    assert "in at most 200 tokens" in record.turns[0].message
    assert not verify(run).differences

    shown = details(Replayer(run.suite.splits[0]), record, "")
    assert shown["turns"][0]["problem"] == explain_problem(Problem.NO_STATE)
    assert [len(turn["actions"]) for turn in shown["turns"]] == [0, 1]
    for command in (["score", "--write"], ["verify"], ["report"]):
        assert main(["bench", *command, str(run.path), "--suite", str(suite)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("option", [field.name for field in fields(TurnConfig)])
def test_the_hash_of_a_suite_covers_every_option_of_a_turn(option: str) -> None:
    def hash_of(**options: Any) -> str:
        return Suite("push", (Split("push", "Sokoban", {}, (Level("Sokoban", BOARD),), TurnConfig(**options)),)).hash

    readers: dict[str, dict[str, Any]] = {"state": {"grounding": True}, "image": {"observation": "image"}}
    needed = readers.get(option.partition("_")[0], {})
    default, choices = getattr(TurnConfig(), option), declared(TurnConfig)[option].choices
    other = next((choice for choice in choices if choice != default), None)
    if other is None:
        other = not default if isinstance(default, bool) else (default or 0) + 1
    assert hash_of(**needed, **{option: other}) != hash_of(**needed)
