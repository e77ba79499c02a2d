"""A game of one's own, from the guide, through every command: it is named as ``module:Name`` and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from ragen_agent import cli as agent_cli
from ragen_agent.config import read_toml
from ragen_gym import cli as gym_cli
from ragen_gym.games import registry
from ragen_gym.serve import RemoteTurnEnv
from tests.pages import script_of
from tests.ragen_agent.cli.test_own_task import FEW, check_run_code, settings
from tests.ragen_gym.serve.test_command import started

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "your_own_game.md"
NAME = "lights_out:LightsOut"
SETTINGS = (*FEW, "turns.max_tokens_per_turn=20")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds the guide's module ``lights_out``, as yet not imported."""
    script_of(GUIDE, "python", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget()


def forget() -> None:
    """As in a new process: the game is neither imported nor registered."""
    sys.modules.pop("lights_out", None)
    registry.TABLE.pop("LightsOut", None)
    gymnasium.registry.pop("ragen/LightsOut-v0", None)


@pytest.mark.slow
def test_a_run_of_it_is_trained_measured_resumed_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agent_cli.main(["train", "--game", NAME, "--out", "run", *settings(*SETTINGS)]) == 0
    assert "Measure again: ragen-agent eval run --split test --run-code\n" in capsys.readouterr().out
    assert read_toml(folder / "run" / "config.toml")["game"] == NAME
    check_run_code(NAME, forget, capsys)


def test_demonstrations_and_mixtures_take_it(folder: Path) -> None:
    assert agent_cli.main(["sft", "data", "--game", NAME, "--episodes", "8", "--out", "demos.jsonl"]) == 0
    forget()
    mixture = f'games=[{{"game": "{NAME}", "thought": "none"}}, {{"game": "FrozenLake"}}]'
    assert agent_cli.main(["train", "--dry-run", *settings(mixture, *SETTINGS[:2])]) == 0


def test_a_suite_of_it_is_played_and_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lights").mkdir()
    assert gym_cli.main(["levels", "export", NAME, "-n", "6", "--split", "test", "--out", "lights/lights.txt"]) == 0
    table = f'name = "lights"\n[[splits]]\nname = "lights"\nenv = "{NAME}"\nlevels = "lights.txt"\n'
    (folder / "lights" / "suite.toml").write_text(table, encoding="utf-8")
    assert gym_cli.main(["bench", "run", "--suite", "lights", "--agent", "oracle", "--out", "played"]) == 0
    for command in ("score", "verify", "report"):
        forget()
        capsys.readouterr()
        assert gym_cli.main(["bench", command, "played"]) == 2
        assert "lights_out" not in sys.modules, "a run's folder made code run"
        assert "--suite" in capsys.readouterr().err
        assert gym_cli.main(["bench", command, "played", "--suite", "lights"]) == 0


def test_a_server_offers_it(folder: Path) -> None:
    with started("--port", "0", "--game", NAME) as (url, _):
        env = RemoteTurnEnv(url, "LightsOut", split="train")
        message, info = env.reset(seed=0)
        assert "Nine lamps" in f"{message}{info}"
        assert env.step("<think>The middle.</think><answer>B2</answer>")[4]["actions"] == (4,)
        env.close()
