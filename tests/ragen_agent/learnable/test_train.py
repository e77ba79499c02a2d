"""Training on audited environments from end to end, for seconds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.planted import NUMBERS, Planted
from ragen_agent.learnable import LearnSettings, learn
from ragen_agent.learnable.answers import BLIND, SIGNAL
from ragen_agent.learnable.task import AuditedTask, opened
from ragen_gym.audit import AuditSettings
from ragen_gym.cli import main
from ragen_gym.envs.task import TaskEnv

PLANTED = "benchmarks.planted:Planted"
ROOT = Path(__file__).parents[3]
AUDITED = str(ROOT / "tests" / "ragen_gym" / "audit")
LEARNT = next(n for n in NUMBERS if Planted(n).fault == "always")  # which takes the fewest iterations
SIDE = next(n for n in NUMBERS if Planted(n).kind == "fine" and Planted(n).question == "side")


def settings(number: int) -> AuditSettings:
    return AuditSettings(options={"number": number}, path=[str(ROOT)])


def test_a_small_model_learns_a_planted_environment() -> None:
    phases: list[str] = []
    how = LearnSettings(iterations=20, levels=16, seconds=600)
    report = learn(PLANTED, settings(LEARNT), how, lambda phase, place: phases.append(phase))
    assert phases == ["trained", "shuffled", "blind"]
    assert 0 < report.train_episodes <= 128 * 20
    signal = next(each for each in report.answers if each.question == SIGNAL)
    assert signal.answer == "yes", signal
    assert report.verdict == "pays without reading"
    json.dumps(asdict(report))


class Ticks:
    """A clock of which a reading is a second: each request to an environment reads it once, and little else does."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_the_time_ends_during_the_warm_start() -> None:
    report = learn("Blackjack-v1", how=LearnSettings(seconds=600, clock=Ticks()))
    assert report.seconds <= 602
    assert report.verdict == "not applicable"
    assert report.reason.startswith("the warm start did not end within 600 s")
    assert not report.answers


def test_training_that_the_time_ends_early_gives_no_verdict_of_no_signal() -> None:
    report = learn("Blackjack-v1", how=LearnSettings(seconds=6000, levels=8, clock=Ticks()))
    assert report.seconds <= 6002
    assert 0 < report.train_episodes < 128 * 20
    iterations = report.train_episodes // 128
    assert report.reason == f"the time ended training after {iterations} of 400 iterations; give more minutes"
    assert report.verdict == "not applicable"


def test_an_interrupt_of_the_user_ends_everything() -> None:
    clock, at = Ticks(), list[float]()

    def interrupted() -> float:
        if clock() in at:
            raise KeyboardInterrupt
        return clock.now

    def progress(phase: str, place: int) -> None:
        at.append(clock.now + 20)  # in the midst of its first episodes

    with pytest.raises(KeyboardInterrupt):
        learn(
            PLANTED, settings(LEARNT), LearnSettings(seconds=1e6, iterations=2, levels=8, clock=interrupted), progress
        )
    assert len(at) == 1


def test_an_environment_that_hangs_is_named_and_ends_with_the_time() -> None:
    report = learn("audited_envs:Hangs", AuditSettings(path=[AUDITED]), LearnSettings(seconds=2))
    assert report.seconds < 20  # not the 60 s of a request
    assert report.verdict == "not applicable"
    assert report.reason.startswith("the time limit of ")


def test_a_control_that_is_cut_leaves_no_verdict() -> None:
    clock = Ticks()

    def progress(phase: str, place: int) -> None:
        clock.now += 1e6 * (phase == "shuffled")

    how = LearnSettings(seconds=1e6, iterations=10, levels=16, clock=clock)
    report = learn(PLANTED, settings(LEARNT), how, progress)
    assert report.reason.startswith("shuffled did not end within")
    assert report.verdict == "not applicable"
    answers = {each.question: each for each in report.answers}
    for question in (SIGNAL, BLIND):
        assert answers[question].answer == "cut"
        assert "was cut" in answers[question].detail
    assert (answers[SIGNAL].low or 0) > 0


def test_what_cannot_be_trained_on_says_why() -> None:
    with pytest.raises(ValueError, match=r"cannot be played: .*is not a target"):
        learn("nowhere")
    report = learn("Pendulum-v1")
    assert report.verdict == "not applicable"
    assert "neither a text nor one of a list" in report.reason
    report = learn("ragen/FrozenLake-v0", AuditSettings(options={"size": 20}))
    assert report.verdict == "not applicable"
    assert "trains on up to 1024: give shorter actions by --action" in report.reason


def test_the_session_plays_what_the_environment_plays() -> None:
    with opened("here", PLANTED, settings(SIDE)):
        env = TaskEnv(f"{AuditedTask.__module__}:AuditedTask", split="test", session="here")
        env.reset(seed=3)
        rng = np.random.default_rng(0)
        assert {env.random_reply(rng) for _ in range(20)} == set(Planted(SIDE).get_all_actions())
        plain = Planted(SIDE)
        task, blind = AuditedTask("here", split="test"), AuditedTask("here", blind=True, split="test")
        for seed in range(5):
            shown, _ = plain.reset(seed=2 * seed + 1)
            assert task.reset(seed=seed)[0] == shown
            assert blind.reset(seed=seed)[0] == Planted(SIDE).reset(seed=0)[0]
            right = plain.answer
            assert task.step(f" {right}\n")[1] == blind.step(right)[1] == plain.step(right)[1] > 0
        assert AuditedTask("here", split="train").reset(seed=3)[0] == plain.reset(seed=6)[0]


def test_listed_actions_are_replies_by_name() -> None:
    with opened("maze", "audited_envs:Maze", AuditSettings(path=[AUDITED])) as session:
        task = AuditedTask("maze")
        first, _ = task.reset(seed=1)
        assert task.step("north")[:4] == (first, 0.0, False, False)
        assert task.random_reply(np.random.default_rng(0)) in "0123"
        assert any(task.step(reply)[0] != first for reply in "0123")
        session.ask(0, "drop")
        with pytest.raises(ValueError, match="AttributeError"):  # it is made anew, and was not reset
            task.step("0")


@pytest.mark.parametrize(
    ("env", "reason"), [("EndsProcess", "ended by itself with exit code 3"), ("Hangs", "the time limit of 3 s")]
)
def test_an_environment_that_ends_its_process_is_named(env: str, reason: str) -> None:
    with opened("ends", f"audited_envs:{env}", AuditSettings(path=[AUDITED], seconds=1)) as session:
        number = session.new()
        session.ask(number, "reset", seed=4, noise=0)
        for _ in range(3):
            session.ask(number, "step", reply="0")
        with pytest.raises(ValueError, match=reason):
            session.ask(number, "step", reply="0")
        with pytest.raises(ValueError, match=reason):
            session.ask(session.new(), "reset", seed=4, noise=0)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--learnable", "Pendulum-v1"]) == 0
    assert "not applicable" in capsys.readouterr().out
    assert main(["audit", "--learnable", "nowhere"]) == 2
    for wrong in (["--minutes", "0"], ["--check", "plays"]):
        assert main(["audit", "--learnable", "Pendulum-v1", *wrong]) == 2
