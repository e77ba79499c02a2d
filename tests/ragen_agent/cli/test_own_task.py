"""A text task of one's own through every command: it is named as ``module:Name`` and registered nowhere."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ragen_agent import cli as agent_cli
from ragen_agent.config import Config, read_toml, with_settings
from ragen_agent.openrlhf.prompt_dataset import env_of, evaluation_rows, families_of_rows, train_rows
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.demonstrations import families_of
from ragen_agent.tasks.tasks import make_env, make_game_env

NAME = "guessing:Sum"
SOURCE = '''
"""Two numbers, whose sum is asked for, in two attempts."""

import gymnasium
from gymnasium import spaces


class Bare(gymnasium.Env[str, str]):
    instructions = "Add the numbers. Reply with the sum alone."
    observation_space = action_space = spaces.Text(100, min_length=0)

    def __init__(self, highest=20):
        self.highest = highest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.numbers = [int(n) for n in self.np_random.integers(self.highest, size=2)]
        self.left = 2
        return f"Numbers: {self.numbers[0]} {self.numbers[1]}", {}

    def step(self, reply):
        self.left -= 1
        right = reply.strip() == str(sum(self.numbers))
        return "Right." if right else "Wrong: again.", float(right), right or not self.left, False, {"success": right}


class Sum(Bare):
    def optimal_reply(self):
        return str(sum(self.numbers))

    def random_reply(self, rng):
        return str(rng.integers(2 * self.highest))
'''
FEW = (
    "training.iterations=1", "training.groups=2", "training.group_size=2", "demonstrations.episodes=64",
    "evaluation.levels=4",
)  # fmt: skip
SETTINGS = (*FEW, "turns.max_tokens_per_turn=8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds the module ``guessing``, as yet not imported."""
    (tmp_path / "guessing.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process."""
    sys.modules.pop("guessing", None)


def settings(*names: str) -> list[str]:
    return [word for name in names for word in ("--set", name)]


def check_run_code(name: str, forget: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The folder ``run`` is of the game or task ``name``, whose module is imported with ``--run-code`` alone."""
    for command in (["eval", "run"], ["report", "run"], ["train", "--resume", "run"]):
        forget()
        capsys.readouterr()
        assert agent_cli.main(command) == 2
        assert name.partition(":")[0] not in sys.modules, "a folder's settings made its code run"
        error = capsys.readouterr().err
        assert name in error
        assert "--run-code" in error
        assert agent_cli.main([*command, "--run-code"]) == 0
    assert Path("run", "report.html").is_file()


def config(game: str = NAME) -> Config:
    given = {"game": game, "training": {"iterations": 2, "groups": 3}, "evaluation": {"levels": 5}}
    return with_settings(Config(), given)


@pytest.mark.slow
def test_a_run_of_it_is_trained_measured_resumed_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "settings.toml").write_text(f'game = "{NAME}"\n[env_options]\nhighest = 9\n', encoding="utf-8")
    assert (
        agent_cli.main(["train", "--config", "settings.toml", "--run-code", "--out", "run", *settings(*SETTINGS)]) == 0
    )
    assert "the oracle" in capsys.readouterr().out
    run = folder / "run"
    assert read_toml(run / "config.toml")["game"] == NAME
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["optimal"]["rate"] == 1.0
    assert 0 <= summary["random"]["rate"] < 1
    check_run_code(NAME, forget, capsys)


@pytest.mark.slow
def test_without_an_oracle_the_lines_that_are_missing_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--game", "guessing:Bare", "--out", "run", *settings(*SETTINGS)]
    assert agent_cli.main(words) == 2
    error = capsys.readouterr().err
    assert "guessing:Bare has no optimal_reply()" in error
    assert "warm_start.epochs=0" in error
    assert not (folder / "run").exists()
    assert agent_cli.main([*words, "--set", "warm_start.epochs=0"]) == 0
    missing = "No rate of random and optimal replies: the task Bare has no random_reply(rng) and optimal_reply()."
    assert missing in capsys.readouterr().out
    assert agent_cli.main(["eval", "run", "--run-code", "--json", "rates.json"]) == 0
    assert missing in capsys.readouterr().out
    assert "random" not in json.loads((folder / "rates.json").read_text(encoding="utf-8"))["splits"]["guessing:Bare"]
    assert agent_cli.main(["report", "run", "--run-code"]) == 0


def test_no_function_is_called_that_only_a_file_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder / "made"
    options = {"command": f"touch {shlex.quote(str(made))}"}
    line = {"env": "os:system", "env_options": options, "split": None, "seed": 1, "level_id": "x"}
    assert families_of([line]) is None
    run = config("os:system")
    RunFolder.create(folder / "run", replace(run, env_options=options))
    make_env(config("os:FrozenLake"), None)  # a game of this package, which makes no other name of the module known
    for command in ("eval", "report"):
        assert agent_cli.main([command, "run"]) == 2
        assert "--run-code" in capsys.readouterr().err
    assert not made.exists()


def test_mixtures_and_dry_runs_take_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixture = f'games=[{{"game": "{NAME}"}}, {{"game": "FrozenLake"}}]'
    assert agent_cli.main(["train", "--dry-run", *settings(mixture, *SETTINGS[:2])]) == 0
    assert agent_cli.main(["train", "--game", NAME, "--dry-run"]) == 0
    assert "Numbers:" in capsys.readouterr().out
    assert agent_cli.main(["tokens", "--game", NAME]) == 2
    assert "is a text task: it has no boards" in capsys.readouterr().err


def test_the_distributed_trainers_rows_name_its_problems(folder: Path) -> None:
    rows = [*train_rows(config()), *evaluation_rows(config())]
    assert {row.game for row in rows} == {NAME}
    assert families_of_rows(rows[:6], config()).isdisjoint(families_of_rows(rows[6:], config()))
    first, again = (env_of(rows[0], config()).reset(seed=rows[0].seed) for _ in range(2))
    assert first == again


def test_what_only_games_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"guessing:Sum is a text task: it has no boards"):
        make_game_env(config(), "train")
    shaped = with_settings(config(), {"training": {"algo": "ppo", "credit": "regret"}})
    with pytest.raises(ValueError, match=r"training.credit is 'regret'.*is a text task"):
        make_env(shaped, "train")
    by_state = with_settings(config(), {"training": {"groups_by": "state"}})
    with pytest.raises(ValueError, match=r"training.groups_by is 'state'.*use training.groups_by=level"):
        make_env(by_state, "train")
