"""Verification: a run as it was played holds, and whatever is changed in its files is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.bench.agent import Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.episode import play_episode
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, identity, plan_episodes
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Replayer, ReplyRules
from ragen_gym.bench.results import BenchResults, ResultsFolder, load_results, load_several, read_records
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite
from ragen_gym.bench.verify import check_episode, differences, verify
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

SMOKE = load_suite("smoke")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a player that breaks the form now and then, with its summary."""
    path = tmp_path_factory.mktemp("runs") / "hasty"
    run_suite(SMOKE, ImperfectAgent("hasty", 0.7, 0.7), path, RunOptions(rollouts=2))
    run = load_results(path)
    ResultsFolder(path).write_summary(score_results(run))
    return path


def changed(run: BenchResults, number: int, change: Callable[[EpisodeRecord], EpisodeRecord]) -> BenchResults:
    records = list(run.records)
    records[number] = change(records[number])
    assert records[number] != run.records[number]
    return replace(run, records=tuple(records))


def the_first(run: BenchResults, wanted: Callable[[EpisodeRecord], bool]) -> int:
    return next(number for number, record in enumerate(run.records) if wanted(record))


def test_a_run_holds(played: Path) -> None:
    verdict = verify(load_results(played))
    assert verdict.holds
    assert (verdict.episodes, verdict.agreed, verdict.asked, verdict.missing) == (96, 96, 96, 0)
    assert verdict.summary == []


@pytest.mark.parametrize("agent", ["random", "oracle", "greedy"])
def test_agents_that_move_hold_too(agent: str, tmp_path: Path) -> None:
    run_suite(SMOKE, make_agent(agent), tmp_path / agent, RunOptions(limit=3))
    verdict = verify(load_results(tmp_path / agent))
    assert (verdict.verdict, verdict.differences) == ("incomplete", [])
    assert verdict.episodes == 18
    assert verdict.summary is None


def of_turn(**new: Any) -> Callable[[EpisodeRecord], EpisodeRecord]:
    def change(record: EpisodeRecord) -> EpisodeRecord:
        return replace(record, turns=(replace(record.turns[0], **new), *record.turns[1:]))

    return change


CHANGES: dict[str, Callable[[EpisodeRecord], EpisodeRecord]] = {
    "success": lambda record: replace(record, success=not record.success),
    "total_reward": lambda record: replace(record, total_reward=record.total_reward + 0.1),
    "last_board": lambda record: replace(record, last_board=record.last_board + "#"),
    "noise_seed": lambda record: replace(record, noise_seed=record.noise_seed + 1),
    "level_id": lambda record: replace(record, level_id="0" * 16),
    "terminated": lambda record: replace(record, terminated=not record.terminated),
    "system": lambda record: replace(record, system=record.system + " Always win."),
    "key": lambda record: replace(record, key="0" * 16),
    "index": lambda record: replace(record, index=8),
    "split": lambda record: replace(record, split="chess"),
    "failure": lambda record: replace(record, failure=Failure.MODEL_ERROR, success=False),
    "number of turns": lambda record: replace(record, turns=(*record.turns, record.turns[-1])),
    "reward": of_turn(reward=7.0),
    "message": of_turn(message="Turn 1 of 1."),
    "problem": of_turn(problem="unknown_action"),
    "actions": of_turn(actions=(3, 3, 3, 3)),
    "end": lambda record: replace(record, turns=record.turns[:-1]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_changed_is_found(what: str, played: Path) -> None:
    run = load_results(played)
    number = the_first(run, lambda record: record.success and len(record.turns) > 1 and not record.turns[0].problem)
    verdict = verify(changed(run, number, CHANGES[what]))
    assert what in {difference.what for difference in verdict.differences}
    assert verdict.agreed == verdict.episodes - 1
    assert not verdict.holds


def test_a_reply_that_says_otherwise_is_found(played: Path) -> None:
    run = load_results(played)
    number = the_first(run, lambda record: len(record.turns[0].actions) == 1 and record.split == "sokoban")
    (played_there,) = run.records[number].turns[0].actions
    other = (played_there + 1) % 4
    names = ("Up", "Down", "Left", "Right")
    better = of_turn(reply=f"<think>I know.</think><answer>{names[other]}</answer>")
    verdict = verify(changed(run, number, better))
    assert [(d.what, d.claimed, d.found) for d in verdict.differences] == [("actions", (played_there,), (other,))]


def test_two_records_of_one_episode_are_found(played: Path) -> None:
    run = load_results(played)
    again = replace(run, records=(*run.records, replace(run.records[0], key="f" * 16)))
    assert {d.what for d in verify(again).differences} == {"number of records", "key"}


def test_an_action_that_no_game_has(played: Path) -> None:
    run = load_results(played)
    moves = (TurnRecord("", None, (9,), 0.0),)
    verdict = verify(changed(run, 0, lambda record: replace(record, turns=moves)))
    assert "plays action 9; the game has 0 to" in str(verdict.differences[0])


def test_a_summary_that_the_records_do_not_give(played: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for path in played.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    summary = json.loads((copy / "summary.json").read_text())
    summary["splits"]["sokoban"]["success"]["rate"] += 0.01
    del summary["splits"]["bandit"]["turns"]
    (copy / "summary.json").write_text(json.dumps(summary))
    found = verify(load_results(copy)).summary
    assert found is not None
    assert [(d.where, d.what) for d in found] == [
        ("summary.splits.sokoban.success", "rate"),
        ("summary.splits.bandit", "turns"),
    ]
    assert main(["bench", "verify", str(copy)]) == 1


def test_missing_and_excluded_episodes_are_counted(tmp_path: Path) -> None:
    class Breaks(ImperfectAgent):
        async def reply(self, messages: Sequence[Any], task: Task) -> Answer:
            if task.split == "bandit":
                raise RuntimeError("no")
            return await super().reply(messages, task)

    run_suite(SMOKE, Breaks("breaks", 0.9, 1.0), tmp_path / "run", RunOptions(limit=2))
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["split"] != "sokoban"]
    (tmp_path / "run" / "episodes.jsonl").write_text("".join(kept))
    verdict = verify(load_results(tmp_path / "run"))
    assert verdict.verdict == "incomplete"
    assert (verdict.asked, verdict.missing, verdict.excluded) == (12, 2, 2)


def test_a_run_that_goes_on_after_it_was_read(tmp_path: Path) -> None:
    path, agent = tmp_path / "run", ImperfectAgent("hasty", 0.7, 0.7)
    run_suite(SMOKE, agent, path, RunOptions(limit=1))
    run = load_results(path)
    run_suite(SMOKE, agent, path)
    ResultsFolder(path).write_summary(score_results(load_results(path)))
    verdict = verify(run)
    assert (verdict.verdict, verdict.episodes, verdict.differences, verdict.summary) == ("incomplete", 6, [], None)
    assert verify(load_results(path)).verdict == "verified"


def test_a_run_that_goes_on_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, agent, read = tmp_path / "run", ImperfectAgent("hasty", 0.7, 0.7), ResultsFolder.read_seen
    run_suite(SMOKE, agent, path, RunOptions(limit=1))
    ResultsFolder(path).write_summary(score_results(load_results(path)))

    def slow(folder: ResultsFolder, info: dict[str, Any]) -> Any:
        monkeypatch.undo()
        run_suite(SMOKE, agent, path)
        return read(folder, info)

    monkeypatch.setattr(ResultsFolder, "read_seen", slow)
    verdict = verify(load_results(path))
    assert (verdict.verdict, verdict.episodes, verdict.differences) == ("incomplete", 48, [])
    assert verdict.summary is None, "the summary of the first session is gone"


def test_a_run_that_is_played_now(tmp_path: Path) -> None:
    verdicts = []

    class Watches(ImperfectAgent):
        async def reply(self, messages: Sequence[Any], task: Task) -> Answer:
            if (task.split, task.index) == ("frozen_lake", 1):
                verdicts.append(verify(load_results(tmp_path / "run")))
            return await super().reply(messages, task)

    run_suite(SMOKE, Watches("watches", 0.9, 1.0), tmp_path / "run", RunOptions(limit=2, concurrency=3))
    assert {(each.verdict, len(each.differences)) for each in verdicts} == {("incomplete", 0)}
    assert verdicts[0].episodes


NAMES = ("Up", "Down", "Left", "Right", "up", "Jump", "")


@given(
    replies=st.lists(
        st.one_of(
            st.lists(st.sampled_from(NAMES), max_size=7).map(
                lambda names: f"<think>x</think><answer>{'||'.join(names)}</answer>"
            ),
            st.text(max_size=20),
            st.just("<answer>Up</answer>"),
        ),
        min_size=5,
        max_size=5,
    ),
    split=st.sampled_from([split for split in SMOKE.splits if "bandit" not in split.name]),
    index=st.integers(0, 7),
)
def test_any_replies_make_a_record_that_holds(replies: list[str], split: Any, index: int) -> None:
    class Says:
        name = "says"

        async def reply(self, messages: Sequence[Any], task: Task) -> str:
            return replies[len(messages) // 2 - 1]

    request = RunOptions(splits=(split.name,))
    job = plan_episodes(SMOKE, identity(SMOKE, Says(), request), request)[index]
    env = split.make_game()
    env.reset(seed=0)
    record = asyncio.run(play_episode(Says(), env, job, Timeouts()))
    record = EpisodeRecord.from_dict(json.loads(json.dumps(record.to_dict())))
    assert check_episode(SMOKE, Replayer(split, ReplyRules()), record) == []
    replay = Replayer(split).replay(record)
    assert [len(turn.moves) for turn in replay.turns] == [len(turn.actions) for turn in record.turns]
    assert replay.total_reward == pytest.approx(record.total_reward)


def test_differences_of_nested_values() -> None:
    assert differences({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2.0 + 1e-12}]}) == []
    found = differences({"a": [1, 2], "b": None}, {"a": [1, 3], "c": "x"})
    assert {(d.where, d.what) for d in found} == {("summary.a", "1"), ("summary", "b"), ("summary", "c")}
    assert [d.what for d in differences({"a": [1]}, {"a": [1, 2]})] == ["a"]


def test_another_version_of_the_suite_is_refused(played: Path, tmp_path: Path) -> None:
    info = json.loads((played / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**info, "hash": "0" * 16}))
    with pytest.raises(ValueError, match=f"with hash 0000000000000000; smoke has hash {SMOKE.hash}"):
        load_results(tmp_path)


def test_runs_of_one_agent_get_names_and_of_two_suites_are_refused(played: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hasty is named twice"):
        load_several([played, played])
    run_suite(SMOKE, ImperfectAgent("hasty", 0.7, 0.7), tmp_path / "again", RunOptions(limit=1))
    assert [run.agent for run in load_several([played, tmp_path / "again"])] == ["hasty (hasty)", "hasty (again)"]
    namesake = (tmp_path / "again").rename(tmp_path / "hasty")
    assert [run.agent for run in load_several([played, namesake])] == [f"hasty ({played})", f"hasty ({namesake})"]
    ragen = load_suite("ragen-v1")
    run_suite(ragen, ImperfectAgent("hasty", 1, 1), tmp_path / "other", RunOptions(limit=1, splits=("bandit",)))
    with pytest.raises(ValueError, match="a report is of one suite"):
        load_several([played, tmp_path / "other"])


def test_the_command_says_what_it_found(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "verify", str(played)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"smoke {SMOKE.hash}: hasty",
        "96 of 96 episodes are as recorded.",
        "summary.json is what the records give.",
        "Verified.",
    ]
    assert main(["bench", "verify", str(played), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
    assert read_records(played / "episodes.jsonl")
