"""Values that no run writes: each is an error that names the file, the line and the field, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import ResultsFolder, read_records
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.step import StepEnv
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

SMOKE = load_suite("smoke")
HUGE = 10**4000


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run_suite(SMOKE, ImperfectAgent("some", 0.8, 0.9), path, RunOptions(splits=("sokoban",)))
    assert main(["bench", "score", str(path), "--write"]) == 0
    return path


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Path:
    shutil.copytree(played, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", HUGE), ("completion_tokens", 2**53 + 1), ("prompt_tokens", -1), ("retries", HUGE),
        ("reward", 10**400), ("reward", float("nan")), ("reward", float("inf")), ("seconds", float("-inf")),
        ("total_reward", 10**400), ("total_reward", 1e300), ("cost", float("nan")), ("index", -1), ("rollout", HUGE),
        ("noise_seed", HUGE), ("actions", [HUGE]), ("actions", [-1]), ("turns", "many"), ("extra", 3),
        # of another type
        ("key", None), ("index", "1"), ("index", 1.0), ("rollout", True), ("success", 1), ("failure", "tired"),
        ("failure", 1), ("cost", "1"), ("turns", {}), ("turns", [1]), ("message", None), ("reply", 1),
        ("actions", None), ("actions", ["Up"]), ("actions", [True]), ("problem", 1), ("prompt_tokens", 1.5),
    ],
)  # fmt: skip
def test_of_a_record(field: str, value: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[2])
    (record if field in record else record["turns"][0])[field] = value
    lines[2] = json.dumps(record)
    (run / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    for command, code in (("verify", 1), ("report", 2), ("score", 2)):
        assert main(["bench", command, str(run)]) == code
        said = "".join(capsys.readouterr())
        assert "episodes.jsonl, line 3, is not such a record" in said
        assert field.rstrip("s") in said
        assert len(said) < 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sessions", "none"), ("sessions", {}), ("sessions", ["one"]), ("settings", []), ("agent", None), ("agent", 3),
        ("agent", "\x1b[2Jrandom"), ("agent", ""),
        ("temperature", float("nan")), ("temperature", HUGE), ("prompts", []), ("hash", 7), ("suite", ["smoke"]),
        # of its session
        ("rollouts", HUGE), ("rollouts", 0), ("rollouts", "2"), ("limit", -1), ("limit", 1.5), ("splits", "sokoban"),
        ("splits", [3]),
    ],
)  # fmt: skip
def test_of_a_run(field: str, value: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads((run / "run.json").read_text())
    (info if field in info else info["sessions"][0])[field] = value
    (run / "run.json").write_text(json.dumps(info))
    said = commands_fail(run, capsys)
    assert "run.json: " in said
    assert field.rstrip("s") in said


@pytest.mark.parametrize("field", ["settings", "temperature", "prompts", "agent"])
def test_a_run_that_lacks_what_was_asked(field: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads((run / "run.json").read_text())
    del info[field]
    (run / "run.json").write_text(json.dumps(info))
    assert f"run.json: the run lacks its '{field}'" in commands_fail(run, capsys)
    with pytest.raises(ValueError, match=f"run.json: the run lacks its '{field}'"):
        run_suite(SMOKE, ImperfectAgent("some", 0.8, 0.9), run)


def test_prompts_that_lack_a_split(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads((run / "run.json").read_text())
    del info["prompts"]["sokoban"]
    (run / "run.json").write_text(json.dumps(info))
    assert main(["bench", "verify", str(run)]) == 1
    assert main(["bench", "rescore", str(run), "--lenient"]) == 2
    assert "no split 'sokoban': verify the run first" in capsys.readouterr().err


def commands_fail(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    for command in (["verify"], ["report"], ["score"], ["rescore", "--lenient"]):
        assert main(["bench", *command, str(run)]) == 2
    said = "".join(capsys.readouterr())
    assert len(said) < 2500
    return said


def test_rollouts_beyond_counting_are_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A session that asks for 2**53 rollouts is no reason to list them."""
    info = json.loads((run / "run.json").read_text())
    info["sessions"][0]["rollouts"] = 2**53
    (run / "run.json").write_text(json.dumps(info))
    assert main(["bench", "verify", str(run)]) == 1
    assert f"{8 * 2**53 - 8:,} of {8 * 2**53:,} episodes that were asked for are missing" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, ""])
def test_files_that_no_parser_likes(text: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    (run / "episodes.jsonl").write_text("\n".join([text or "x", *lines]) + "\n")
    assert main(["bench", "verify", str(run)]) == 1
    assert "line 1, is not" in capsys.readouterr().out
    (run / "run.json").write_text(text)
    assert main(["bench", "score", str(run)]) == 2


@pytest.mark.parametrize("answer", [{"prompt_tokens": HUGE}, {"completion_tokens": -1}, {"retries": 2**53 + 1}])
def test_of_an_answer(answer: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Absurd(ImperfectAgent):
        async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
            return Answer("<answer>Up</answer>", **answer)

    run_suite(SMOKE, Absurd("absurd", 1, 1), tmp_path / "run", RunOptions(limit=1, splits=("sokoban",)))
    (record,) = read_records(ResultsFolder(tmp_path / "run").episodes)
    assert record.failure is Failure.AGENT_ERROR
    assert "from 0 to 2**53" in record.detail
    assert len(record.detail) < 300
    for command in ("verify", "report"):
        assert main(["bench", command, str(tmp_path / "run")]) in (0, 3), capsys.readouterr()


@pytest.mark.parametrize("reward", [1e17, float("nan"), float("-inf"), 2.0**53])
def test_of_a_reward(reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A custom game may pay it, and a run with a record of it could not be read."""
    step = StepEnv.step

    def paying(env: StepEnv, action: int) -> Any:
        board, _, *rest = step(env, action)
        return board, reward, *rest

    monkeypatch.setattr(StepEnv, "step", paying)
    run_suite(SMOKE, ImperfectAgent("some", 0.8, 1), tmp_path / "run", RunOptions(limit=1, splits=("sokoban",)))
    (record,) = read_records(ResultsFolder(tmp_path / "run").episodes)
    assert record.failure is Failure.ENVIRONMENT_ERROR
    assert "must be from -2**53 to 2**53" in record.detail


@pytest.mark.parametrize("half", ["\ud800", "x\ud83d"])
def test_half_a_surrogate_pair_in_a_reply_is_replaced(half: str, tmp_path: Path) -> None:
    """A client cannot send it back as UTF-8 with the next turn's messages."""

    class Halves:
        name = "halves"

        async def reply(self, messages: Sequence[Message], task: Task) -> Answer | str:
            json.dumps(list(messages), ensure_ascii=False).encode()
            said = f"<think>{half}</think><answer>Up {half}</answer>"
            return said if task.index else Answer(said, reasoning=half)

    run_suite(SMOKE, Halves(), tmp_path / "run", RunOptions(splits=("sokoban",)))
    records = read_records(ResultsFolder(tmp_path / "run").episodes)
    assert [record.failure for record in records] == [None] * 8
    assert all(len(record.turns) == 5 for record in records)
    assert {turn.reply.count("\ufffd") for record in records for turn in record.turns if turn.reply} == {2}
    assert {turn.reasoning for turn in records[0].turns} <= {None, half[:-1] + "\ufffd"}
    assert main(["bench", "score", str(tmp_path / "run"), "--write"]) == 0
    assert main(["bench", "verify", str(tmp_path / "run")]) == 0
