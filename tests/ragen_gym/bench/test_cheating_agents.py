"""Agents that would leave the score, or look ahead: nothing that they do is without a trace."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.bench.agent import Task
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.records import EpisodeRecord
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


class Nothing:
    def __repr__(self) -> str:
        raise ValueError("no text")

    def __index__(self) -> int:
        raise ZeroDivisionError


def test_an_action_that_is_no_integer_is_a_record(tmp_path: Path) -> None:
    play(Bandit(Nothing), tmp_path)
    failed = [record for record in load_results(tmp_path).records if record.failure]
    assert [(record.index % 2, record.failure) for record in failed] == [(1, Failure.AGENT_ERROR)] * 4
    said = "an action is an integer, not <Nothing whose text raises ValueError>"
    assert all(record.detail.startswith(said) for record in failed)


def test_an_agent_that_cannot_be_closed_costs_no_episode(tmp_path: Path) -> None:
    class Stuck(Bandit):
        def close(self) -> None:
            raise RuntimeError("the socket is gone")

    outcome = play(Stuck(lambda: 0), tmp_path)
    assert (outcome.played, outcome.failures) == (8, {})


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
    assert "But ask why: success above the interval of optimal play: frozen_lake (" in capsys.readouterr().out
