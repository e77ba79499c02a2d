"""The runner: nothing is lost, nothing is played twice, and no agent ends a run."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.agent import AgentFailure, Answer, Task
from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.agents.python import PythonAgent
from ragen_gym.bench.episode_plan import RunOptions, Timeouts, episode_key, identity, plan_episodes
from ragen_gym.bench.records import EpisodeRecord, TurnRecord
from ragen_gym.bench.results import EpisodeLog, ResultsFolder, load_results, read_records
from ragen_gym.bench.runner import RunOutcome, run_suite
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.core.seen import read_seen, write_seen
from ragen_gym.core.storage import DiskFullError, locked_folder
from ragen_gym.core.turn_config import TurnConfig
from tests.ragen_gym.core.test_storage import limited_files

SMOKE = load_suite("smoke")
REPLY = "<think>On we go.</think><answer>Up || Left</answer>"
HERE = Path(__file__).parent


class Scripted:
    """Replies as a function of the messages and the task says."""

    name = "scripted"

    def __init__(self, say: Callable[[Sequence[Any], Task], Any] = lambda messages, task: REPLY) -> None:
        self.say = say
        self.open = self.most = 0
        self.asked: Counter[tuple[str, int, int]] = Counter()
        self.closed = False

    async def reply(self, messages: Sequence[Any], task: Task) -> Any:
        self.asked[task.split, task.index, task.rollout] += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            said = self.say(messages, task)
            return await said if asyncio.iscoroutine(said) else said
        finally:
            self.open -= 1

    def close(self) -> None:
        self.closed = True


def play(agent: Any, out: Path, suite: Suite = SMOKE, **request: Any) -> RunOutcome:
    return run_suite(suite, agent, out, RunOptions(**request))


def records_in(out: Path) -> list[EpisodeRecord]:
    return ResultsFolder(out).records()


def timeless(records: Sequence[EpisodeRecord]) -> dict[str, EpisodeRecord]:
    """Records without how long anything took, by key."""
    return {
        record.key: replace(record, seconds=0, turns=tuple(replace(turn, seconds=0) for turn in record.turns), extra={})
        for record in records
    }


def lines_of(out: Path) -> list[str]:
    return (out / "episodes.jsonl").read_text().splitlines()


@pytest.mark.parametrize("agent", ["random", "oracle", "replies"])
def test_what_is_recorded_can_be_replayed_and_does_not_depend_on_the_order(agent: str, tmp_path: Path) -> None:
    one, many = (Scripted() if agent == "replies" else make_agent(agent) for _ in range(2))
    assert play(one, tmp_path / "one", rollouts=2, concurrency=1).played == 96
    assert play(many, tmp_path / "many", rollouts=2, concurrency=13).played == 96
    records = records_in(tmp_path / "one")
    assert timeless(records) == timeless(records_in(tmp_path / "many"))
    assert verify(load_results(tmp_path / "one")).differences == []
    assert {(r.split, r.index, r.rollout) for r in records} == {
        (split.name, index, rollout) for split in SMOKE.splits for index in range(8) for rollout in range(2)
    }
    assert len({record.noise_seed for record in records}) == 96
    assert all(record.terminated != record.truncated for record in records)
    assert all((record.system == "") == (agent != "replies") for record in records)


def test_the_moves_of_random_play_are_the_same_on_every_machine(tmp_path: Path) -> None:
    play(make_agent("random"), tmp_path)
    rows = sorted([r.split, r.index, [list(turn.actions) for turn in r.turns]] for r in records_in(tmp_path))
    assert sha256(json.dumps(rows).encode()).hexdigest()[:16] == "d0b7a706932728f8"


def test_an_agent_that_moves_gets_as_many_moves_as_replies_could_play(tmp_path: Path) -> None:
    split = replace(SMOKE.splits[3], turn_config=TurnConfig(max_turns=3, max_actions_per_turn=2, max_actions=10))

    class Still:
        name = "still"

        def act(self, observation: str, info: dict[str, Any], task: Task) -> int:
            assert observation == task.env.board
            left.append(info["actions_left"])
            return int(info["action_names"].index("Left"))

    left: list[int] = []
    play(Still(), tmp_path / "run", Suite("short", (split,)), limit=1)
    assert left == [6, 5, 4, 3, 2, 1]


def test_a_second_session_plays_what_is_missing(tmp_path: Path) -> None:
    play(Scripted(), tmp_path / "whole")
    play(Scripted(), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    (tmp_path / "run" / "episodes.jsonl").write_text("\n".join(lines[:20]) + "\n")
    agent = Scripted()
    outcome = play(agent, tmp_path / "run")
    assert (outcome.wanted, outcome.kept, outcome.played) == (48, 20, 28)
    assert len(agent.asked) == 28
    assert lines_of(tmp_path / "run")[:20] == lines[:20]
    assert timeless(records_in(tmp_path / "run")) == timeless(records_in(tmp_path / "whole"))
    third = Scripted()
    assert play(third, tmp_path / "run").played == 0
    assert not third.asked
    sessions = ResultsFolder(tmp_path / "run").info["sessions"]
    assert [session["concurrency"] for session in sessions] == [32, 32]  # a session that plays nothing is none
    assert [record.extra["session"] for record in records_in(tmp_path / "run")] == [0] * 20 + [1] * 28


def test_a_run_grows(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert play(Scripted(), out, limit=2, splits=("bandit",)).played == 2
    assert play(Scripted(), out, limit=3, splits=("bandit", "sokoban")).played == 4
    assert play(Scripted(), out, limit=3, splits=("bandit", "sokoban"), rollouts=2).played == 6
    assert len({record.key for record in records_in(out)}) == 12


def test_equal_settings_written_otherwise_go_on_with_the_same_episodes(tmp_path: Path) -> None:
    agent: Any = Scripted()
    for agent.settings in ({}, {"top_k": None}):
        play(agent, tmp_path / "none", splits=("bandit",), limit=2)
    assert len(records_in(tmp_path / "none")) == 2
    ways: list[Any] = [(1, {"top_p": 1}), (1.0, {"top_p": 1.0}), (1, {"top_p": 1, "top_k": None})]
    for temperature, agent.settings in ways:
        play(agent, tmp_path / "run", splits=("bandit",), limit=2, temperature=temperature)
    assert len(records_in(tmp_path / "run")) == 2
    assert verify(load_results(tmp_path / "run")).differences == []
    agent.settings = {"top_p": 1, "template": {}}
    with pytest.raises(ValueError, match=r"settings.template is now \{\} and was None"):
        play(agent, tmp_path / "run", splits=("bandit",), limit=2, temperature=1)


def test_another_suite_agent_setting_or_temperature_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    play(make_agent("random"), out, limit=1)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    refused: list[tuple[Any, Suite, dict[str, Any], str]] = [
        (make_agent("random", seed=1), SMOKE, {}, "settings.seed is now 1 and was 0"),
        (make_agent("blind"), SMOKE, {}, "agent is now 'blind' and was 'random'"),
        (make_agent("random"), SMOKE, {"temperature": 1.0}, "temperature is now 1.0 and was 0.5"),
        (make_agent("random"), replace(SMOKE, splits=SMOKE.splits[:2]), {}, "hash is now"),
    ]
    for agent, suite, request, said in refused:
        with pytest.raises(ValueError, match=said):
            play(agent, out, suite, **request)
    with pytest.raises(ValueError, match=r"of something else: suite is now 'other' and was 'smoke'\. Episodes"):
        play(make_agent("random"), out, replace(SMOKE, name="other", splits=SMOKE.splits[:2]))
    info = json.loads(before["run.json"])
    (out / "run.json").write_text(json.dumps({**info, "prompts": {**info["prompts"], "sokoban": "other"}}))
    with pytest.raises(ValueError, match=r"prompts\.sokoban is now"):
        play(make_agent("random"), out)
    (out / "run.json").write_bytes(before["run.json"])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("42")
    with pytest.raises(ValueError, match="neither a run nor an empty folder"):
        play(Scripted(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match=r"holds no run \(no run.json\)"):
        _ = ResultsFolder(tmp_path).info
    with pytest.raises(ValueError, match="neither a run nor an empty folder"):
        play(Scripted(), tmp_path / "thesis.tex")


def test_what_names_an_episode() -> None:
    """A change of this value makes every run of before play again."""
    same = {"hash": "h", "agent": "a", "settings": {"b": 1, "a": None}, "temperature": 0.5, "prompts": {"s": "p"}}
    assert episode_key(same, "s", 3, 1) == "4ef04022b9ba9b27"
    agent = make_agent("random")
    jobs = plan_episodes(SMOKE, identity(SMOKE, agent, RunOptions()), RunOptions(rollouts=3))
    assert len({job.key for job in jobs}) == len({job.seed for job in jobs}) == len(jobs) == 144
    assert all(job.seed != job.noise_seed for job in jobs)


def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"rollouts": 0},
        {"limit": 0},
        {"concurrency": 0},
        {"temperature": -1},
        {"timeouts": Timeouts(0)},
        # What no run.json may say: the run could not be read.
        {"rollouts": 2**54},
        {"temperature": 1e300},
    ):
        with pytest.raises(ValueError, match=r"must be"):
            RunOptions(**wrong)
    with pytest.raises(ValueError, match=r"smoke has no split 'chess': choose one of sokoban, new_vocab"):
        play(Scripted(), tmp_path / "run", splits=("chess",))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "said"), [("", "has no `name`"), (5, "has no `name`"), ("\x1b[2J", "which no terminal should print")]
)
def test_what_is_no_agent_is_refused(name: Any, said: str, tmp_path: Path) -> None:
    agent = Scripted()
    agent.name = name
    with pytest.raises(ValueError, match=said):
        play(agent, tmp_path / "run")
    with pytest.raises(ValueError, match="has neither a method `reply` nor `act`"):
        play(Nobody(), tmp_path / "run")


@pytest.mark.parametrize("value", [{"weights": Path("a")}, {"top_p": math.nan}, ["a"]])
@pytest.mark.parametrize("name", ["settings", "circumstances"])
def test_what_an_agent_says_of_itself_is_plain_json(name: str, value: Any, tmp_path: Path) -> None:
    agent = Scripted()
    setattr(agent, name, value)
    for make in (lambda: agent, lambda: PythonAgent(agent, "python:mine:agent", {})):
        with pytest.raises(ValueError, match=f"the agent's {name} are .*: make them a dictionary of plain JSON"):
            play(make(), tmp_path / "run", splits=("bandit",), limit=1)
    assert not (tmp_path / "run").exists()


class Nobody:
    name = "nobody"


async def hang() -> str:
    await asyncio.sleep(60)
    return REPLY


def raising(error: BaseException) -> Callable[[Sequence[Any], Task], Any]:
    def say(messages: Sequence[Any], task: Task) -> Any:
        raise error

    return say


@pytest.mark.parametrize(
    ("say", "failure", "detail"),
    [
        (
            raising(ZeroDivisionError("by zero")),
            Failure.AGENT_ERROR,
            r"ZeroDivisionError: by zero \(test_runner.py:\d+",
        ),
        (raising(SystemExit(3)), Failure.AGENT_ERROR, "SystemExit: 3"),
        (raising(SystemExit("\x1b[2J")), Failure.AGENT_ERROR, "^SystemExit: \N{REPLACEMENT CHARACTER}.2J"),
        (raising(asyncio.CancelledError()), Failure.AGENT_ERROR, "^the agent raised CancelledError"),
        (raising(TimeoutError("the model sleeps")), Failure.TIMEOUT, "^the model sleeps$"),
        (raising(AgentFailure("my_error", "x")), Failure.AGENT_ERROR, "x"),  # type: ignore[arg-type]
        (raising(AgentFailure(Failure.TIMEOUT, "x")), Failure.TIMEOUT, "^x$"),
        (raising(AgentFailure(Failure.CONTEXT_OVERFLOW, "full")), Failure.CONTEXT_OVERFLOW, "^full$"),
        (lambda messages, task: hang(), Failure.TIMEOUT, "no answer within 0.05 s"),
        (lambda messages, task: None, Failure.AGENT_ERROR, "a reply is a text or an Answer, not None"),
        (lambda messages, task: Answer(b"Up"), Failure.AGENT_ERROR, "no record can hold the answer: message is b'Up'"),  # type: ignore[arg-type]
        (lambda messages, task: 7, Failure.AGENT_ERROR, "not 7"),
        # What no record can hold.
        (lambda messages, task: Answer("Up", prompt_tokens=np.int64(3)), Failure.AGENT_ERROR, "no record can hold"),  # type: ignore[arg-type]
        (lambda messages, task: Answer("Up", retries=10**400), Failure.AGENT_ERROR, "it must be within 2..53"),
    ],
)
def test_whatever_an_agent_does_ends_its_episode_and_not_the_run(
    say: Any, failure: Failure, detail: str, tmp_path: Path
) -> None:
    """In the second turn of every other instance."""

    def sometimes(messages: Sequence[Any], task: Task) -> Any:
        return say(messages, task) if task.index % 2 and len(messages) > 2 else REPLY

    agent = Scripted(sometimes)
    outcome = play(agent, tmp_path / "run", splits=("sokoban", "frozen_lake"), timeouts=Timeouts(request=0.05))
    records = records_in(tmp_path / "run")
    failed = [record for record in records if record.failure]
    assert outcome.failures == {failure: len(failed)}
    assert {record.index % 2 for record in failed} == {1}
    assert len(records) == outcome.played == 16
    assert len(failed) >= 4
    for record in failed:
        assert record.failure is failure
        assert len(record.turns) == 1
        assert not record.success
        assert not record.terminated
        assert not record.truncated
        assert re.search(detail, record.detail)
    assert agent.closed
    again = Scripted()
    expected = 0 if failure is Failure.CONTEXT_OVERFLOW else len(failed)  # the model's own limit counts
    assert play(again, tmp_path / "run", splits=("sokoban", "frozen_lake")).played == expected
    assert sum(not record.counted for record in records_in(tmp_path / "run")) == 0


def test_an_episode_has_a_limit_of_its_own(tmp_path: Path) -> None:
    async def slowly() -> str:
        await asyncio.sleep(0.4)
        return REPLY

    def at_once() -> str:
        time.sleep(0.4)
        return REPLY

    for name, say in (("waits", lambda messages, task: slowly()), ("blocks", lambda messages, task: at_once())):
        timeouts = Timeouts(request=5.0, episode=1.0)
        assert play(Scripted(say), tmp_path / name, limit=1, splits=("sokoban",), timeouts=timeouts).failures == {
            Failure.TIMEOUT: 1
        }
        (record,) = records_in(tmp_path / name)
        assert record.detail == "the episode took longer than 1 s"
        assert len(record.turns) in (1, 2)


def test_an_agent_that_keeps_time_by_itself_is_not_interrupted(tmp_path: Path) -> None:
    async def slowly() -> str:
        await asyncio.sleep(0.1)
        return REPLY

    agent = Scripted(lambda messages, task: slowly())
    agent.keeps_time = True  # type: ignore[attr-defined]
    assert not play(agent, tmp_path / "run", limit=1, splits=("bandit",), timeouts=Timeouts(request=0.01)).failures


@pytest.mark.parametrize(("own", "asked", "most"), [(None, 5, 5), (3, 5, 3), (9, 5, 5)])
def test_no_more_episodes_are_in_play_than_asked_for(own: int | None, asked: int, most: int, tmp_path: Path) -> None:
    async def wait() -> str:
        await asyncio.sleep(0.002)
        return REPLY

    agent = Scripted(lambda messages, task: wait())
    agent.concurrency = own  # type: ignore[attr-defined]
    play(agent, tmp_path / "run", concurrency=asked, limit=3)
    assert agent.most == most


def test_an_agent_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    class Asleep(Scripted):
        async def start(self) -> None:
            raise ValueError("no model today")

    agent = Asleep()
    with pytest.raises(ValueError, match="no model today"):
        play(agent, tmp_path / "run")
    assert agent.closed
    assert not (tmp_path / "run").exists()


# The folder


def begun(path: Path) -> ResultsFolder:
    """A folder with a run in which nothing has been played yet."""
    folder = ResultsFolder(path)
    asked = {"settings": {}, "temperature": 0.5, "prompts": {}}
    folder.begin({"suite": "s", "hash": "0", "agent": "a", **asked}, {})
    return folder


def record(key: str, text: str = "é", failure: Failure | None = None) -> EpisodeRecord:
    turn = TurnRecord(message=text, reply=text, actions=(1, 2), reward=-0.1, problem="no_answer")
    return EpisodeRecord(key, "s", 0, 0, "id", 7, (turn,), False, -0.1, False, True, text, failure=failure)


def test_no_summary_outlives_the_episodes_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is cut short leaves no score of other episodes behind, and the run holds."""
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "run", "--suite", "smoke", "--split", "bandit", "--agent", "random", "--out", "run"]
    assert main(arguments) == 0
    assert Path("run/summary.json").is_file()
    assert main(arguments) == 0  # there was nothing to play
    assert Path("run/summary.json").is_file()
    outcome = run_suite(SMOKE, make_agent("random"), "run", RunOptions(splits=("bandit",), rollouts=2))
    assert outcome.played == 8
    assert not Path("run/summary.json").exists()
    assert main(["bench", "verify", "run"]) == 3
    assert main(["bench", "score", "run", "--write"]) == 0
    assert main(["bench", "verify", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["splits"]["bandit"]["success"]["n"] == 16


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_the_run_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(make_agent("random"), tmp_path / "run", limit=1)
    (tmp_path / "run" / "episodes.jsonl").unlink()
    (tmp_path / "run" / "episodes.jsonl").symlink_to("/dev/full")
    arguments = ["bench", "run", "--suite", "smoke", "--agent", "random", "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 'run' / 'episodes.jsonl'} cannot be written: no space left on device" in said
    assert re.search(r"[0-9.]+ MiB are free in .*\. Make room there.* Then the same command resumes the run\.$", said)


def test_no_line_follows_one_that_found_no_room(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with EpisodeLog(folder) as log:
        log.append(record("a"))
        with limited_files(folder.episodes.stat().st_size + 100), pytest.raises(DiskFullError):
            log.append(record("b"))
        with pytest.raises(DiskFullError, match="file too large"):
            log.append(record("c"))
    with EpisodeLog(folder) as log:
        log.append(record("e"))
    assert [each.key for each in read_records(folder.episodes)] == ["a", "e"]


def test_a_run_that_found_no_room_for_a_record_goes_on(tmp_path: Path) -> None:
    with limited_files(9000), pytest.raises(DiskFullError, match=r"episodes.jsonl cannot be written"):
        play(make_agent("random"), tmp_path)
    kept = len(records_in(tmp_path))
    assert kept
    assert play(make_agent("random"), tmp_path).kept == kept
    verdict = verify(load_results(tmp_path))
    assert (verdict.episodes, verdict.missing, verdict.differences) == (48, 0, [])


# The process


AGENT = """
import asyncio, os


class Witness:
    # Writes down each episode that it sees the end of, before the runner does.
    name = "witness"

    async def reply(self, messages, task):
        await asyncio.sleep(float(os.environ["SECONDS_A_REPLY"]))
        return "<think>On we go.</think><answer>Up || Left</answer>"

    def end(self, task, record):
        with open("witness.txt", "a") as file:
            file.write(record.key + "\\n")
"""


def command(out: Path) -> list[str]:
    arguments = ["--suite", "smoke", "--agent", "python:my_agent:Witness", "--rollouts", "4", "--concurrency", "8"]
    return [sys.executable, "-m", "ragen_gym.cli", "bench", "run", *arguments, "--json", "--out", str(out)]


def wait_for_lines(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    path = out / "episodes.jsonl"
    until = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_loses_only_what_is_in_play(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    out = tmp_path / "run"
    environments = [{**os.environ, "SECONDS_A_REPLY": seconds} for seconds in ("0.03", "0")]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(out), cwd=tmp_path, stderr=pipe, stdout=pipe, text=True, env=environments[0]
    ) as process:
        try:
            wait_for_lines(out, 20, process)
            if number is not signal.SIGKILL:
                with pytest.raises(ValueError, match="another process is working in"), locked_folder(out):
                    pass
        finally:
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    if number is not signal.SIGKILL:
        assert process.returncode == 130
        assert said.endswith("ragen-gym: stopped; episodes so far are kept, and the same command resumes the run.\n")
    seen = (tmp_path / "witness.txt").read_text().split()
    kept = {record.key for record in records_in(out)}
    assert 20 <= len(kept) < 192
    assert kept <= set(seen)
    assert len(set(seen) - kept) <= 8
    done = subprocess.run(command(out), cwd=tmp_path, capture_output=True, text=True, check=False, env=environments[1])
    assert done.returncode == 0, done.stderr
    assert f"{len(kept)} of 192 episodes are there already" in done.stderr
    records = records_in(out)
    assert len({record.key for record in records}) == len(records) == len(lines_of(out)) == 192
    summary = json.loads(done.stdout)
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["splits"]["sokoban"]["success"]["n"] == 32
    assert verify(load_results(out)).verdict == "verified"


def test_the_record_of_what_an_agent_was_trained_on_stays_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    met = {split.name: split.families[:3] for split in SMOKE.splits[:2]}
    write_seen(tmp_path / "seen.npy", [family for families in met.values() for family in families])

    class Trained(Scripted):
        seen = tmp_path / "seen.npy"

    play(Trained(), tmp_path / "trained", limit=1)
    assert load_results(tmp_path / "trained").seen == read_seen(tmp_path / "seen.npy")
    ResultsFolder(tmp_path / "trained").add_seen([1])  # as --seen adds
    play(Trained(), tmp_path / "trained", limit=2)
    assert load_results(tmp_path / "trained").seen == read_seen(tmp_path / "seen.npy") | {1}, "nor by a later session"
    play(Scripted(), tmp_path / "new", limit=1)
    assert load_results(tmp_path / "new").seen is None
    command = ["bench", "run", "--suite", "smoke", "--agent", "random", "--out", str(tmp_path / "run")]
    assert main([*command, "--limit", "4", "--seen", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for name, split in summary["splits"].items():
        families = next(split.families for split in SMOKE.splits if split.name == name)
        assert split["seen"] == sum(family in read_seen(tmp_path) for family in families[:4])
    assert summary["splits"]["sokoban"]["seen"] == 3
    assert "3 of 4 of sokoban" in printed
    (tmp_path / "more").mkdir()
    write_seen(tmp_path / "more" / "seen.npy", [1])
    assert main([*command, "--limit", "4", "--seen", str(tmp_path / "more")]) == 0
    assert load_results(tmp_path / "run").seen == read_seen(tmp_path) | {1}, "nothing that is known is hidden"
    assert main([*command, "--seen", str(tmp_path / "run.npy")]) == 2
    assert "run.npy is not a record of the levels seen in training" in capsys.readouterr().err
    assert main(["bench", "report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert f"0 of {len(SMOKE.splits)} splits scored" in capsys.readouterr().err
    assert "3 of 4 levels seen in training" in (tmp_path / "page.html").read_text()
    assert verify(load_results(tmp_path / "run")).verdict == "verified"


def test_the_exit_code_says_that_something_is_left_to_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moody.py").write_text(
        "from pathlib import Path\n\n\n"
        "def reply(messages, task):\n"
        "    if task.index == 1 and not Path('fine').exists():\n"
        "        raise RuntimeError('not today')\n"
        "    return 'Up'\n"
    )
    arguments = ["bench", "run", "--suite", "smoke", "--agent", "python:moody:reply", "--out", "run"]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert "6 episodes failed and are out of the score; the same command plays them again" in said.err
    assert "6 agent_error: " in said.err
    assert "42 episodes" in said.out or "48 episodes" in said.out
    Path("fine").touch()
    assert main(arguments) == 0
    assert "6 episodes played now, 42 kept" in capsys.readouterr().out
