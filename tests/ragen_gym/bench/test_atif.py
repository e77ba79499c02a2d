"""Episodes as ATIF trajectories; Harbor's own validator reads them in ``tests/integrations``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent


def exported(run: Path, out: Path) -> dict[str, Any]:
    assert main(["bench", "export", str(run), "--out", str(out)]) == 0
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in out.iterdir()}


def test_the_steps_are_the_conversation_with_its_rewards(tmp_path: Path) -> None:
    run_suite(load_suite("smoke"), ImperfectAgent("imperfect", 0.7, 0.8), tmp_path / "run", RunOptions(limit=2))
    found, run = exported(tmp_path / "run", tmp_path / "out"), load_results(tmp_path / "run")
    assert len(found) == len(run.records) > 0
    assert {record.success for record in run.records} == {True, False}
    for record in run.records:
        document = found[f"{record.split}-{record.index}-{record.rollout}.json"]
        system, user, *turns = document["steps"]
        assert [step["step_id"] for step in document["steps"]] == list(range(1, len(turns) + 3))
        assert (system["source"], system["message"]) == ("system", record.system)
        assert (user["source"], user["message"]) == ("user", record.turns[0].message)
        assert [step["message"] for step in turns] == [turn.reply for turn in record.turns]
        seen = [step["observation"]["results"][0]["content"] for step in turns]
        assert seen == [*[turn.message for turn in record.turns[1:]], record.last_board]
        assert [step["extra"]["reward"] for step in turns] == [turn.reward for turn in record.turns]
        assert document["final_metrics"]["extra"]["reward"] == record.total_reward
        assert (document["extra"]["success"], document["trajectory_id"]) == (record.success, record.key)


def test_an_agent_of_moves_says_their_names(tmp_path: Path) -> None:
    command = ["bench", "run", "--suite", "smoke", "--agent", "oracle", "--limit", "1", "--split", "sokoban"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    (document,) = exported(tmp_path / "run", tmp_path / "out").values()
    user, *moves = document["steps"]
    assert user["source"] == "user"
    assert {step["message"] for step in moves} <= {"Up", "Down", "Left", "Right"}
    assert "model_name" not in document["agent"]


def test_a_folder_that_is_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "export", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "give a folder that does not" in capsys.readouterr().err
