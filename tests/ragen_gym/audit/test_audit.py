"""Audits in child processes, with their time limits, and the command around them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ragen_gym.audit.worker
from ragen_gym.audit import CHECKS, AuditSettings, audit
from ragen_gym.cli import main
from ragen_gym.games.registry import TABLE

HERE = str(Path(__file__).parent)
Run = Callable[..., tuple[int, str, str]]


def settings(*checks: str, seconds: float = 20) -> AuditSettings:
    return AuditSettings(checks=checks, seeds=8, steps=12, seconds=seconds, path=[HERE])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["audit", "--path", HERE, "--seeds", "8", *words])
        return code, *capsys.readouterr()

    return call


def test_the_worker_imports_the_standard_library_alone() -> None:
    for path in Path(ragen_gym.audit.worker.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names, path
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert str(node.module).split(".")[0] in sys.stdlib_module_names, path


def test_two_processes_are_compared() -> None:
    bad = audit("audited_envs:HashesSeed", settings("seed_process", "seed_repeats"))
    assert (bad.status("seed_process"), bad.status("seed_repeats")) == ("finding", "passed")
    assert "PYTHONHASHSEED" in bad.findings()[0].detail
    assert audit("audited_envs:Maze", settings("seed_process")).status("seed_process") == "passed"
    evidence = audit("audited_envs:HashesSeed", settings("seed_process")).findings()[0].evidence
    for program, code in ((evidence, 1), (evidence.replace("HashesSeed", "Maze"), 0)):
        done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr


def test_the_evidence_awaits_coroutines_in_every_thread() -> None:
    evidence = audit("audited_envs:AwaitedSeedsGlobal", settings("seed_threads")).findings()[0].evidence
    for program, last in ((evidence, "AssertionError"), (evidence.replace("AwaitedSeedsGlobal", "AwaitedMaze"), "")):
        done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
        assert done.stderr.strip().endswith(last) if last else not done.returncode, done.stderr


def test_a_process_that_ends_costs_one_check_and_is_a_finding() -> None:
    report = audit("audited_envs:EndsProcess", settings("plays", "group_level", "process_survives"))
    assert report.status("plays") == "not applicable"
    assert report.status("group_level") == "passed"
    found = report.findings()
    assert [result.check.id for result in found] == ["process_survives"]
    assert "exit code 3" in found[0].detail


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended() -> None:
    report = audit("audited_envs:Hangs", settings("plays", "group_level", "process_survives", seconds=2))
    assert report.status("group_level") == "passed"
    assert "time limit of 6 s" in report.findings()[0].detail


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "is not a target"),
        ("nowhere:Nothing", "No module named 'nowhere'"),
        ("audited_envs:MOVES", "is no callable"),
        ("audited_envs:Nothing", "has no attribute 'Nothing'"),
        ("NoSuchGame-v0", "NoSuchGame"),
        ("audited_envs:many", "makes 2 environments in one"),
    ],
)
def test_what_cannot_be_opened_says_why(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(target, settings("plays"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"checks": ["beauty"]}, "beauty: no such check"),
        ({"seeds": 1}, "seeds=1 is too small"),
        ({"seconds": float("nan")}, "seconds=nan is too small"),
        ({"train": "0:10"}, "both sides of a split"),
    ],
)
def test_settings_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AuditSettings(**given)  # type: ignore[arg-type]


def test_a_finding_is_shown_with_its_evidence_and_its_fix(run: Run) -> None:
    code, text, _ = run("audited_envs:PaysAfterEnd", "--check", "reward_after_end", "--check", "plays")
    assert code == 1
    assert "assert max(a) <= 0" in text
    assert CHECKS["reward_after_end"].fix[:30] in " ".join(text.split())
    assert "1 finding, 1 passed" in text
    code, _, error = run("nowhere")
    assert code == 2
    assert "give a Gymnasium id" in error


def test_the_report_as_json(run: Run) -> None:
    _, text, _ = run("audited_envs:Maze", "audited_envs:PaysAfterEnd", "--check", "reward_after_end", "--json")
    sound, faulty = json.loads(text)
    assert sound["counts"] == {"passed": 1, "finding": 0, "not applicable": 0}
    assert faulty["checks"][0]["status"] == "finding"
    assert {"why", "fix", "evidence", "detail"} <= set(faulty["checks"][0])


def test_splits_may_be_given(run: Run) -> None:
    words = ("audited_envs:UnsplitMaze", "--check", "split_exact")
    assert run(*words, "--train", "0:50", "--test", "40:60")[0] == 1
    assert run(*words, "--train", "0:50", "--test", "50:60")[0] == 0
    code, _, errors = run(*words, "--train", "0:50", "--test", "50:45")
    assert (code, "50:45 is no side of a split" in errors) == (2, True)


def test_a_split_that_is_none_is_named(run: Run) -> None:
    words = "ragen/FrozenLake-v0", "--check", "split_exact", "--train", "split=train"
    for side, said in (("split=tset", "choose one of train, validation, test"), ("spilt=test", "spilt")):
        code, _, errors = run(*words, "--test", side)
        assert code == 2
        assert f"cannot be audited: ValueError: --test {side}: " in errors
        assert said in errors


def test_options_and_actions_reach_the_environment(run: Run) -> None:
    code, text, _ = run("audited_envs:Sum", "--check", "reward_idle", "--action", '"3"', "--action", '"4"', "--json")
    assert code == 0
    assert json.loads(text)[0]["checks"][0]["status"] == "passed"
    assert run("audited_envs:Maze", "--option", "split=train", "--check", "plays")[0] == 0
    assert run("audited_envs:Maze", "--option", "nonsense=1", "--check", "plays")[0] == 2


def test_random_characters_are_said_to_be_played(run: Run) -> None:
    words = "audited_envs:Parser", "--check", "plays"
    assert 'Give real actions, such as --action "go north"' in " ".join(run(*words)[1].split())
    assert json.loads(run(*words, "--json")[1])[0]["random_text"] is True
    for others in ((*words, "--action", "look"), ("audited_envs:Maze", *words[1:])):
        assert "--action" not in run(*others)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [spec.id for spec in TABLE.values()])
def test_our_own_games_are_clean(name: str) -> None:
    report = audit(name, AuditSettings(seconds=5))
    assert [(found.check.id, found.detail) for found in report.findings()] == []
