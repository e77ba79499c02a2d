"""Agents that would leave the score by ending what plays them: nothing that they do is without a trace."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import AgentFailure, Task
from ragen_gym.bench.episode_plan import RunOptions, Timeouts
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.report.tables import left_out
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import RunOutcome, run_suite, run_suite_async
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import load_suite, noise_seed
from ragen_gym.bench.verify import verify
from ragen_gym.cli import main
from ragen_gym.core.failures import Failure
from ragen_gym.envs.step import StepEnv

SMOKE = load_suite("smoke")


class Bandit:
    """Pulls the first arm, and does what it is made with in every odd instance."""

    name = "bandit"

    def __init__(self, instead: Callable[[], Any]) -> None:
        self.instead = instead

    async def act(self, observation: Any, info: dict[str, Any], task: Task) -> Any:
        if task.index % 2:
            done = self.instead()
            return await done if asyncio.iscoroutine(done) else done
        return 0


def play(agent: Any, out: Path, **options: Any) -> RunOutcome:
    return run_suite(SMOKE, agent, out, RunOptions(splits=("bandit",), **options))


def check(outcome: RunOutcome, out: Path, failure: Failure = Failure.AGENT_ERROR) -> list[EpisodeRecord]:
    """That all 8 episodes have a record, those of odd instances one of the failure; these."""
    records = load_results(out).records
    assert (outcome.played, outcome.missing, len(records)) == (8, 0, 8)
    failed = [record for record in records if record.failure]
    assert {record.index % 2 for record in failed} == {1}
    assert [record.failure for record in failed] == [failure] * 4
    return failed


def cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_and_wait() -> int:
    cancel()
    await asyncio.sleep(0)
    return 0


async def cancel_and_go_on() -> int:
    cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    return 0


async def cancel_later() -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(60)
    return 0


def cancel_and_answer() -> int:
    cancel()
    return 0


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("timeout", [None, 50.0])
@pytest.mark.parametrize("instead", [cancel_and_wait, cancel_and_go_on, cancel_later, cancel_and_answer])
def test_an_agent_that_cancels_its_own_task_fails_and_the_run_goes_on(
    instead: Callable[[], Any], timeout: float | None, concurrency: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = play(Bandit(instead), out, concurrency=concurrency, timeouts=Timeouts(timeout, timeout))
    assert {record.detail for record in check(outcome, out)} == {"the agent's own task was cancelled"}


def test_a_run_that_is_cancelled_ends_without_records_of_what_was_in_play(tmp_path: Path) -> None:
    async def run() -> None:
        waiting = asyncio.Event()

        async def wait() -> int:
            waiting.set()
            await asyncio.sleep(60)
            return 0

        playing = asyncio.create_task(
            run_suite_async(SMOKE, Bandit(wait), tmp_path / "run", RunOptions(splits=("bandit",), concurrency=2))
        )
        await waiting.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of an event loop does
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(run())
    assert [record.failure for record in load_results(tmp_path / "run").records if record.failure] == []


def test_a_run_of_which_episodes_are_missing_says_so_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quitter.py").write_text(
        "from ragen_gym.bench.agent import StopRun\n\n\n"
        "async def policy(observation, info, task):\n"
        "    if task.index == 3:\n"
        "        raise StopRun('enough\\x1b[2J')\n"
        "    return 0\n"
    )
    arguments = ["--agent", "python:quitter:policy", "--split", "bandit", "--concurrency", "1", "--out", "run"]
    assert main(["bench", "run", "--suite", "smoke", *arguments]) == 1
    said = capsys.readouterr().err
    assert "5 of 8 episodes have no record" in said
    assert "\x1b[2J" not in said


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Rude(BaseException):
    pass


class Nothing:
    def __repr__(self) -> str:
        raise ValueError("no text")

    def __index__(self) -> int:
        raise ZeroDivisionError


def raising(error: BaseException) -> Callable[[], Any]:
    def instead() -> None:
        raise error

    return instead


class Unfinished(AgentFailure):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("instead", "failure", "detail"),
    [
        (raising(AgentFailure("my_error", "x")), Failure.AGENT_ERROR, "'my_error': x"),  # type: ignore[arg-type]
        (raising(AgentFailure("timeout", "x")), Failure.TIMEOUT, "x"),  # type: ignore[arg-type]
        (raising(AgentFailure(["timeout"], MuteError())), Failure.AGENT_ERROR, "['timeout']: <MuteError whose"),  # type: ignore[arg-type]
        (raising(Unfinished()), Failure.AGENT_ERROR, "''"),
        (raising(MuteError()), Failure.AGENT_ERROR, "MuteError: <MuteError whose text raises ValueError>"),
        (raising(GeneratorExit()), Failure.AGENT_ERROR, "GeneratorExit"),
        (raising(Rude("\x1b[2J")), Failure.AGENT_ERROR, "Rude: \N{REPLACEMENT CHARACTER}[2J"),
        (Nothing, Failure.AGENT_ERROR, "an action is an integer, not <Nothing whose text raises ValueError>"),
    ],
)
def test_whatever_an_agent_raises_is_a_record(
    instead: Callable[[], Any], failure: Failure, detail: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for record in check(play(Bandit(instead), out), out, failure):
        assert record.detail.startswith(detail)


def test_failed_attempts_are_kept_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    check(play(Bandit(raising(ValueError())), out), out)
    assert play(Bandit(lambda: 0), out).played == 4
    run = load_results(out)
    assert len(run.retried) == 4


def test_play_begins_with_the_first_question_and_not_with_the_first_answer(tmp_path: Path) -> None:
    """An episode of a bandit is one move long."""
    out = tmp_path / "run"
    failed = check(play(Bandit(raising(ValueError())), out), out)
    assert [(record.turns, record.in_play) for record in failed] == [((), True)] * 4


def test_of_an_agent_that_cannot_begin_nothing_is_said_of_how_it_plays(tmp_path: Path) -> None:
    class Beginner(Bandit):
        def begin(self, task: Any) -> None:
            raise ValueError("no key")

    play(Beginner(lambda: 0), tmp_path / "run")
    summary = score_results(load_results(tmp_path / "run"))
    said = " ".join(left_out(summary))
    assert "8 of the excluded episodes failed after the agent was first asked" in said
    assert "about to" not in said
    said = " ".join(left_out({"overall": {**summary["overall"], "retried": 3, "retried_in_play": 0}}))
    assert "3 attempts failed for reasons of infrastructure and were made again, 0 of them after the agent" in said
    assert "another try" not in said


def test_an_episode_whose_game_cannot_begin_was_not_in_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StepEnv, **options: Any) -> Any:
        if (options.get("options") or {}).get("noise_seed"):  # not for the hash of the prompts
            raise ValueError("no board")
        return reset(self, **options)

    reset = StepEnv.reset
    monkeypatch.setattr(StepEnv, "reset", broken)
    play(Bandit(lambda: 0), tmp_path / "run")
    records = load_results(tmp_path / "run").records
    assert {(record.failure, record.in_play) for record in records} == {(Failure.ENVIRONMENT_ERROR, False)}


def test_an_agent_that_cannot_be_closed_costs_no_episode(tmp_path: Path) -> None:
    class Stuck(Bandit):
        def close(self) -> None:
            raise RuntimeError("the socket is gone")

    outcome = play(Stuck(lambda: 0), tmp_path)
    assert (outcome.played, outcome.missing, outcome.failures) == (8, 0, {})
    assert outcome.stopped.startswith("the agent's close() failed: RuntimeError: the socket is gone")


def test_what_is_raised_at_the_end_of_an_episode_changes_no_outcome(tmp_path: Path) -> None:
    """An agent that sees there that it has lost would else leave the score."""

    class Loser(Bandit):
        def end(self, task: Task, record: EpisodeRecord) -> None:
            if not record.success:
                raise RuntimeError("the log is gone")

    assert play(Loser(lambda: 0), tmp_path).failures == {}
    run = load_results(tmp_path)
    lost = [record for record in run.records if not record.success]
    assert lost
    assert all(record.detail.startswith("the agent's end() failed: RuntimeError: the log is gone") for record in lost)
    assert (len(run.records), verify(run).differences) == (8, [])


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("left", "kept", "detail"),
    [
        ({"note": [1, "x"]}, {"note": [1, "x"], "session": 0}, ""),
        (
            {"note": object()},
            {"session": 0},
            "the agent's end() failed: ValueError: the agent's extra are {'session': 0",
        ),
        ({"note": float("nan")}, {"session": 0}, "the agent's end() failed: ValueError: the agent's extra are"),
        ({"note": Mute()}, {"session": 0}, "the agent's end() failed: RuntimeError: no text"),
        ({"session": 7}, {"session": 0}, ""),
    ],
)
def test_what_is_left_in_a_record_at_its_end_is_kept_if_a_record_can_hold_it(
    left: dict[str, Any], kept: dict[str, Any], detail: str, tmp_path: Path
) -> None:
    class Notes(Bandit):
        def end(self, task: Task, record: EpisodeRecord) -> None:
            record.extra.update(left)

    assert play(Notes(lambda: 0), tmp_path).failures == {}
    run = load_results(tmp_path)
    assert [record.extra for record in run.records] == [kept] * 8
    assert all(record.detail.startswith(detail) and bool(record.detail) == bool(detail) for record in run.records)
    assert verify(run).differences == []


class Meddler:
    """Replies as asked, and in every odd instance plays on the environment that it is shown."""

    name = "meddler"

    def __init__(self, meddle: Callable[[Any], object]) -> None:
        self.meddle = meddle

    async def reply(self, messages: Any, task: Task) -> str:
        if task.index % 2:
            self.meddle(task.env)
        return f"<answer>{task.env.env.action_names[0]}</answer>"


@pytest.mark.parametrize(
    "meddle",
    [
        lambda env: env.reset(seed=1),
        lambda env: env.step("<answer>x</answer>"),
        lambda env: env.env.step(0),
    ],
)
def test_an_agent_that_plays_on_the_environment_fails(meddle: Callable[[Any], object], tmp_path: Path) -> None:
    for record in check(play(Meddler(meddle), tmp_path), tmp_path):
        assert record.detail == "the agent changed task.env, which it may only look at"


LAKE = next(split for split in SMOKE.splits if split.name == "frozen_lake")


def plan(env: StepEnv, moves: int, copied: Callable[[Any], Any]) -> list[int]:
    """Actions that reach the goal on copies of an environment, breadth first; [0] where none do."""
    here: dict[Any, tuple[Any, list[int]]] = {env.state: (env, [])}
    for _ in range(moves):
        there: dict[Any, tuple[Any, list[int]]] = {}
        for now, path in here.values():
            for action in range(4):
                after = copied(now)
                _, _, over, _, info = after.step(action)
                if info["success"]:
                    return [*path, action]
                if not over:
                    there.setdefault(after.state, (after, [*path, action]))
        here = there
    return [0]


class LooksAhead:
    """Tries moves on copies of what it is shown, and plays the first of the best."""

    name = "looks ahead"

    def __init__(self, find: Callable[[Task], StepEnv], copied: Callable[[Any], Any] = deepcopy) -> None:
        self.find, self.copied = find, copied

    def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
        return plan(self.find(task), info["actions_left"], self.copied)[0]


def from_the_suite(task: Task) -> StepEnv:
    """The episode played from its start with the noise that anyone can compute; an agent could note its moves."""
    env = LAKE.make_game().env
    LAKE.begin(env, task.index, noise_seed(SMOKE, LAKE, task.index, task.rollout))
    for action in MOVES.setdefault((task.index, task.rollout), []):
        env.step(action)
    return env


MOVES: dict[tuple[int, int], list[int]] = {}


@pytest.mark.parametrize(
    ("find", "copied"),
    [
        (lambda task: task.env.env, deepcopy),
        (lambda task: task.env.unwrapped.env.unwrapped, lambda env: pickle.loads(pickle.dumps(env))),
        (lambda task: deepcopy(task).env.env, deepcopy),
    ],
    ids=["deepcopy", "pickle", "task"],
)
def test_an_agent_that_looks_ahead_on_copies_gains_nothing(
    find: Callable[[Task], StepEnv], copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    options = RunOptions(splits=("frozen_lake",), rollouts=2)
    run_suite(SMOKE, LooksAhead(find, copied), tmp_path, options)
    run = load_results(tmp_path)
    split = score_results(run)["splits"]["frozen_lake"]
    assert (split["success"]["n"], split["excluded"]) == (16, 0)
    assert split["success"]["rate"] <= 0.75, "seeing the noise to come it would always succeed"
    assert split["optimal_as_good"] > 0.025
    assert verify(run).doubts == []


def test_what_an_agent_is_shown_stands_where_the_episode_does_with_other_noise(tmp_path: Path) -> None:
    shown: list[Any] = []

    class Watcher:
        name = "watcher"

        def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
            env = task.env.env
            assert (env.text, env.level.id) == (observation, info["level_id"])
            shown.append((task.index, env._noise_key, env))
            return 0

    run_suite(SMOKE, Watcher(), tmp_path, RunOptions(splits=("frozen_lake",), concurrency=1))
    for record in load_results(tmp_path).records:
        env = LAKE.make_game().env
        LAKE.begin(env, record.index, record.noise_seed)
        keys = {key for index, key, _ in shown if index == record.index}
        assert len(keys) == 1
        assert env._noise_key not in keys


def test_success_above_the_interval_of_optimal_play_is_a_doubt_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Knows(LooksAhead):
        name = "knows"

        def act(self, observation: Any, info: dict[str, Any], task: Task) -> int:
            action = super().act(observation, info, task)
            MOVES[task.index, task.rollout].append(action)
            return action

    out = tmp_path / "knows"
    MOVES.clear()
    run_suite(SMOKE, Knows(from_the_suite), out, RunOptions(splits=("frozen_lake",)))
    run = load_results(out)
    split = score_results(run)["splits"]["frozen_lake"]
    assert split["success"]["rate"] > 0.9
    assert split["optimal_as_good"] < 0.025
    [doubt] = verify(run).doubts
    assert doubt.startswith("success above the interval of optimal play: frozen_lake (")
    assert main(["bench", "score", str(out), "--write"]) == 0
    assert "Success above the 95 % interval of optimal play: frozen_lake" in " ".join(capsys.readouterr().out.split())
    assert main(["bench", "verify", str(out)]) == 0
    assert "Verified, but ask why. Success above the interval of optimal play: frozen_lake" in capsys.readouterr().out
    (out / "submission.toml").write_text('who = "a"\nmodel = "b"\nsettings = "c"\n')
    page = tmp_path / "page.md"
    assert main(["bench", "leaderboard", str(out), "--out", str(page)]) == 0
    assert "| success above the interval of optimal play: frozen_lake (" in page.read_text()
