"""``check_task`` passes what keeps its promises, and says which one a task breaks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ragen_gym.cli import main
from ragen_gym.tasks import Calculator, Countdown
from ragen_gym.testing import check_task


class Drifting(Countdown):
    """Draws from its generator without seeding it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=None)


class Shared(Countdown):
    """Lets the noise choose the problem."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        noise = (options or {}).get("noise_seed", 0)
        return super().reset(seed=None if seed is None else seed + noise)


class Global(Countdown):
    """Moves numpy's global generator."""

    def _ask(self) -> str:
        np.random.random()  # noqa: NPY002
        return super()._ask()


class Fragile(Countdown):
    """Raises on what it does not understand."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return super().step(f"<answer>{action.split('<answer>')[1]}")


class Poor(Countdown):
    """Calls a bad reply the best one."""

    def optimal_reply(self) -> str:
        return "<answer>0</answer>"


class Old(Countdown):
    """Its reset is that of old gym."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class Hidden(Countdown):
    """Says nothing of the problem at first."""

    def _ask(self) -> str:
        return "Which numbers?"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "broken_tasks", sys.modules[__name__])


def test_the_tasks_of_the_package_keep_their_promises(capsys: pytest.CaptureFixture[str]) -> None:
    check_task("ragen_gym.tasks:Countdown", count=2)
    assert main(["check", "ragen_gym.tasks:Calculator", "--option", "goods=1"]) == 0
    assert "ok      the task" in capsys.readouterr().out


@pytest.mark.parametrize("task", [Countdown, Calculator])
def test_messages_and_replies_of_a_task_lie_in_its_spaces(task: type[Countdown | Calculator]) -> None:
    env = task()
    check_env(env, skip_render_check=True)
    message, _ = env.reset(seed=1)
    assert message in env.observation_space
    assert env.optimal_reply() in env.action_space


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Drifting", "must follow from the seed alone"),
        ("Shared", "must follow from the seed alone"),
        ("Global", "moves the global random state"),
        ("Fragile", "raised IndexError.*any text may come from a model"),
        ("Old", r"reset\(seed=0\) raised TypeError.*unexpected keyword argument 'options'"),
        ("Hidden", "40 seeds give one problem.*level_id"),
        ("Poor", r"optimal replies succeed in 0%.*is not a best reply"),
    ],
)
def test_broken_promises_are_named(name: str, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        check_task(f"broken_tasks:{name}", levels=40, processes=False, count=2)


def test_no_levels_are_no_check() -> None:
    with pytest.raises(ValueError, match="check_task: levels=0 must be an integer from 1 on"):
        check_task("ragen_gym.tasks:Countdown", levels=0)


def test_the_command_refuses_what_only_games_have(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in (["--preset", "easy"], ["--levels", "x.txt"], ["--vocabulary", "ragen"], ["--text-format", "coord"]):
        assert main(["check", "ragen_gym.tasks:Countdown", *flag]) == 2
        assert f"{flag[0]} is for games: leave it out for a text task" in capsys.readouterr().err


FROM_FILES = {
    "Hashed": (
        "class Hashed(Countdown):\n    def _ask(self):\n        return f'{super()._ask()} {hash(\"Countdown\")}'\n"
    ),
    "ChecksItself": (
        "from ragen_gym.testing import check_task\n"
        "class ChecksItself(Countdown): pass\n"
        "check_task('task_from_a_file:ChecksItself', levels=2)\n"
    ),
}


@pytest.mark.parametrize(
    ("name", "error"),
    [("Hashed", "other problems in another process"), ("ChecksItself", "Move the call into a test")],
)
def test_what_another_process_shows(name: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"from ragen_gym.tasks import Countdown\n{FROM_FILES[name]}"
    (tmp_path / "task_from_a_file.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "task_from_a_file", raising=False)
    with pytest.raises(AssertionError, match=error):
        check_task(f"task_from_a_file:{name}", levels=2)
