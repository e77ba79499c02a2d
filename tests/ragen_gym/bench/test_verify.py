"""Verification: a run as it was played holds; what is changed, left out or relabelled in its files is found; values
that no run writes are errors that name the file and the field."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_gym.bench import results
from ragen_gym.bench.agent import Answer, Message, Task
from ragen_gym.bench.episode import play_episode
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, identity, plan_episodes
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.replay import Replayer
from ragen_gym.bench.results import BenchResults, ResultsFolder, load_results, load_several, read_records
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import SUITES, load_suite
from ragen_gym.bench.verify import EXIT_CODES, check_episode, verify
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.step import StepEnv
from tests.ragen_gym.bench.imperfect_agent import ImperfectAgent

SMOKE = load_suite("smoke")
VERIFIED, FALSE, INCOMPLETE = (EXIT_CODES[verdict] for verdict in ("verified", "false", "incomplete"))
HUGE = 10**4000
Lines = list[dict[str, Any]]


class Run:
    """The files of a run, to be read and rewritten as an attacker would."""

    def __init__(self, path: Path) -> None:
        self.path, self.episodes, self.summary = path, path / "episodes.jsonl", path / "summary.json"

    @property
    def lines(self) -> Lines:
        return [json.loads(line) for line in self.episodes.read_text(encoding="utf-8").splitlines()]

    @lines.setter
    def lines(self, records: Lines) -> None:
        self.episodes.write_text("".join(json.dumps(record) + "\n" for record in records))

    def edit_info(self, *place: Any, value: Any = None) -> None:
        """Set an entry of run.json, or remove it where there is no value."""
        info = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        table = info
        for name in place[:-1]:
            table = table[name]
        table[place[-1]] = value
        if value is None:
            del table[place[-1]]
        (self.path / "run.json").write_text(json.dumps(info))

    def score_again(self) -> None:
        assert main(["bench", "score", str(self.path), "--write"]) == 0

    def verify(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        """The exit code, and what was found."""
        capsys.readouterr()
        code = main(["bench", "verify", str(self.path), "--json"])
        return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a player that breaks the form now and then, with its summary."""
    path = tmp_path_factory.mktemp("runs") / "hasty"
    run_suite(SMOKE, ImperfectAgent("hasty", 0.7, 0.7), path, RunOptions(rollouts=2))
    ResultsFolder(path).write_summary(score_results(load_results(path)))
    return path


@pytest.fixture
def run(played: Path, tmp_path: Path) -> Run:
    shutil.copytree(played, tmp_path / "run")
    return Run(tmp_path / "run")


def changed(run: BenchResults, number: int, change: Callable[[EpisodeRecord], EpisodeRecord]) -> BenchResults:
    records = list(run.records)
    records[number] = change(records[number])
    assert records[number] != run.records[number]
    return replace(run, records=tuple(records))


def the_first(run: BenchResults, wanted: Callable[[EpisodeRecord], bool]) -> int:
    return next(number for number, record in enumerate(run.records) if wanted(record))


# As it was played


def test_a_run_holds_and_the_command_says_so(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = verify(load_results(played))
    assert (verdict.verdict, verdict.doubts) == ("verified", [])
    assert (verdict.episodes, verdict.agreed, verdict.asked, verdict.missing) == (96, 96, 96, 0)
    assert main(["bench", "verify", str(played)]) == VERIFIED
    said = [f"smoke {SMOKE.hash}: hasty", "96 of 96 episodes are as recorded.", "Verified."]
    assert capsys.readouterr().out.splitlines() == said


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
    assert check_episode(SMOKE, Replayer(split, parses=True), record) == []
    replay = Replayer(split).replay(record)
    assert [len(turn.moves) for turn in replay.turns] == [len(turn.actions) for turn in record.turns]
    assert replay.total_reward == pytest.approx(record.total_reward)


def test_a_run_that_goes_on_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, agent, read = tmp_path / "run", ImperfectAgent("hasty", 0.7, 0.7), results.read_attempts
    run_suite(SMOKE, agent, path, RunOptions(limit=1))
    ResultsFolder(path).write_summary(score_results(load_results(path)))

    def slow(file: Path) -> Any:
        monkeypatch.undo()
        run_suite(SMOKE, agent, path)
        return read(file)

    monkeypatch.setattr(results, "read_attempts", slow)
    verdict = verify(load_results(path))
    assert (verdict.verdict, verdict.episodes, verdict.differences) == ("incomplete", 48, [])
    assert not verdict.has_summary, "the summary of the first session is gone"


def test_attempts_made_again_are_a_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that raises an error where it expects to lose gets another try like this."""

    class FleesOnce(ImperfectAgent):
        flees = True

        async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
            if self.flees and len(messages) > 2:
                raise RuntimeError("this one is lost")
            return await super().reply(messages, task)

    run = Run(tmp_path / "run")
    for flees in (True, False):
        agent = FleesOnce("flees", 0.6, 0.6)
        agent.flees = flees
        run_suite(SMOKE, agent, run.path)
    run.score_again()
    code, found = run.verify(capsys)
    assert (code, found["retried"] > 0) == (VERIFIED, True)
    assert main(["bench", "verify", str(run.path)]) == VERIFIED
    assert capsys.readouterr().out.endswith(f"But ask why: attempts made again: {found['retried']}.\n")


# Leaving out


def test_deleted_failures(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.lines = [line for line in run.lines if line["success"]]
    assert run.verify(capsys)[0] == FALSE, "the summary is of all episodes"
    run.score_again()
    code, found = run.verify(capsys)
    assert (code, found["missing"]) == (INCOMPLETE, 96 - len(run.lines))
    run.edit_info("sessions", value=[])
    assert run.verify(capsys)[0] == FALSE


def test_relabelled_failures(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    relabelled = {"failure": "model_error", "detail": "HTTP 500", "turns": [], "total_reward": 0.0}
    flags = {"success": False, "terminated": False, "truncated": False}
    lines = [line if line["success"] else {**line, **relabelled, **flags} for line in run.lines]
    run.lines = lines
    assert run.verify(capsys)[0] == FALSE
    run.score_again()
    code, found = run.verify(capsys)
    assert code in (INCOMPLETE, FALSE)  # the last boards of games that were not played are not the first ones
    assert found["excluded"] == sum(not line["success"] for line in lines)


def test_nothing_is_left(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.summary.unlink()
    assert run.verify(capsys)[0] == INCOMPLETE
    run.lines = []
    assert run.verify(capsys)[0] == INCOMPLETE


# Changing


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
    "turns without a reply": lambda record: replace(
        record, turns=(*record.turns[:-1], replace(record.turns[-1], reply=None))
    ),
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
    assert (verdict.agreed, verdict.verdict) == (verdict.episodes - 1, "false")


def test_a_reply_that_says_otherwise_is_found(played: Path) -> None:
    run = load_results(played)
    number = the_first(run, lambda record: len(record.turns[0].actions) == 1 and record.split == "sokoban")
    (played_there,) = run.records[number].turns[0].actions
    other = (played_there + 1) % 4
    names = ("Up", "Down", "Left", "Right")
    better = of_turn(reply=f"<think>I know.</think><answer>{names[other]}</answer>")
    found = [each for each in verify(changed(run, number, better)).differences if "turn" in each.where]
    assert [(each.what, each.claimed, each.found) for each in found] == [("actions", (played_there,), (other,))]


def test_an_action_that_no_game_has(played: Path) -> None:
    moves = (TurnRecord("", None, (9,), 0.0),)
    verdict = verify(changed(load_results(played), 0, lambda record: replace(record, turns=moves)))
    assert "plays action 9; the game has 0 to" in str(verdict.differences[0])


def copied(lines: Lines) -> None:
    lines.append(next(line for line in lines if line["success"]))


def swapped_places(lines: Lines) -> None:
    for name in ("index", "level_id", "noise_seed", "key"):
        lines[1][name], lines[2][name] = lines[2][name], lines[1][name]


def reward(lines: Lines) -> None:
    lines[0]["turns"][0]["reward"] += 1
    lines[0]["total_reward"] += 1


@pytest.mark.parametrize("attack", [copied, swapped_places, reward])
def test_changes_that_agree_with_each_other_are_found(
    attack: Callable[[Lines], None], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run.lines
    attack(lines)
    run.lines = lines
    run.score_again()
    assert run.verify(capsys)[0] == FALSE


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "max_tokens"), 9),
        (("agent",), "a better one"),
        (("temperature",), 0.1),
        (("prompts", "bandit"), "0" * 16),
    ],
)
def test_changes_of_what_was_asked(
    place: tuple[Any, ...], value: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.edit_info(*place, value=value)
    assert run.verify(capsys)[0] == FALSE


def test_a_summary_that_the_records_do_not_give(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(run.summary.read_text())
    summary["splits"]["sokoban"]["success"]["rate"] += 0.01
    del summary["splits"]["bandit"]["turns"]
    summary["certified"] = True
    run.summary.write_text(json.dumps(summary))
    code, found = run.verify(capsys)
    assert code == FALSE
    assert {(each["where"], each["what"]) for each in found["differences"]} == {
        ("summary.splits.sokoban.success", "rate"),
        ("summary.splits.bandit", "turns"),
        ("summary", "certified"),
    }
    for text in ("[]", "3", '{"splits": {"bandit": 3}}', "{"):
        run.summary.write_text(text)
        assert run.verify(capsys)[0] == FALSE


def test_another_suite_under_the_name_of_the_packages_own(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Easier levels called smoke are not smoke, whatever hash the folder gives."""
    easier = run.path / "smoke"
    shutil.copytree(SUITES["smoke"], easier)
    level = (easier / "bandit.txt").read_text().split("\n\n")
    (easier / "bandit.txt").write_text("\n\n".join([level[0]] * len(level)))
    fake = Run(run.path / "fake")
    run_suite(load_suite(easier), ImperfectAgent("weak", 0.6, 0.6), fake.path)
    fake.edit_info("suite", value=str(easier))
    code, found = fake.verify(capsys)
    assert code == FALSE
    assert ("smoke", "hash") in {(each["where"], each["what"]) for each in found["differences"]}


def test_another_version_of_the_suite_is_refused(run: Run) -> None:
    run.edit_info("hash", value="0" * 16)
    with pytest.raises(ValueError, match=f"with hash 0000000000000000; smoke has hash {SMOKE.hash}"):
        load_results(run.path)


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


# Values that no run writes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", HUGE), ("reward", 10**400), ("reward", float("nan")), ("seconds", float("-inf")),
        ("total_reward", 1e300), ("noise_seed", HUGE), ("actions", [HUGE]), ("actions", [-1]), ("actions", ["Up"]),
        ("turns", "many"), ("turns", [1]), ("extra", 3), ("key", None), ("index", "1"), ("success", 1),
        ("failure", "tired"), ("message", None), ("reply", 1), ("problem", 1), ("prompt_tokens", 1.5),
        ("\x1b[2J", "an unknown field"),
    ],
)  # fmt: skip
def test_of_a_record(field: str, value: Any, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run.lines
    (lines[2] if field in lines[2] else lines[2]["turns"][0])[field] = value
    run.lines = lines
    for command in ("verify", "report", "score"):
        assert main(["bench", command, str(run.path)]) == 2
        said = "".join(capsys.readouterr())
        assert "episodes.jsonl, line 3, is not such a record" in said
        assert field.replace("\x1b", "\ufffd").rstrip("s") in said
        assert "\x1b" not in said
        assert len(said) < 1000


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("sessions",), "none"), (("sessions",), ["one"]), (("settings",), []), (("agent",), 3),
        (("agent",), "\x1b[2Jrandom"), (("temperature",), HUGE), (("suite",), ["smoke"]),
        (("sessions", 0, "rollouts"), HUGE), (("sessions", 0, "rollouts"), 0), (("sessions", 0, "limit"), -1),
        (("sessions", 0, "splits"), "sokoban"), (("settings",), None), (("agent",), None),
    ],
)  # fmt: skip
def test_of_a_run(place: tuple[Any, ...], value: Any, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """None removes an entry."""
    run.edit_info(*place, value=value)
    for command in ("verify", "report", "score"):
        assert main(["bench", command, str(run.path)]) == 2
        said = "".join(capsys.readouterr())
        assert "run.json: " in said
        assert place[-1].rstrip("s") in said
        assert len(said) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000, "x"])
def test_files_that_no_parser_likes(text: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.episodes.write_text(text + "\n" + run.episodes.read_text())
    assert main(["bench", "verify", str(run.path)]) == 2
    assert "line 1, is not" in capsys.readouterr().err
    (run.path / "run.json").write_text(text)
    assert main(["bench", "score", str(run.path)]) == 2


@pytest.mark.parametrize("reward", [1e17, float("nan"), 2.0**53])
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
    assert {turn.reply.count("\ufffd") for record in records for turn in record.turns if turn.reply} == {2}
    assert main(["bench", "verify", str(tmp_path / "run")]) == INCOMPLETE
