"""The page on agents that see: what is lost to seeing and to planning is measured by real parts, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vision
from benchmarks.vision import AGENTS, Agent, PlannedEnv, said_cells
from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import read_recipe
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import make_game_env
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import make_turn

LAKE: dict[str, Any] = {"size": 4, "success_rate": 1.0, "min_path": 3}
TINY = {
    "env_options": LAKE,
    "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"observation": "image", "grounding": True, "state_format": "symbols", "max_turns": 2},
}


@pytest.fixture(scope="module")
def config() -> Config:
    return with_settings(Config(), TINY)


@pytest.fixture(scope="module")
def policy(config: Config) -> Policy:
    return Policy.build(config)


def planned() -> PlannedEnv:
    return PlannedEnv(make_turn("FrozenLake", grounding=True, state_format="symbols", max_turns=2, **LAKE), LAKE)


def thinking(board: str, *moves: str) -> str:
    return write_reply(moves or ("Up",), f"<observation>{board}</observation>")


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_writes_the_board_in_the_same_way(name: str) -> None:
    arguments = AGENTS[name].arguments
    settings: dict[str, Any] = dict(read_recipe(arguments[arguments.index("--recipe") + 1]).settings)
    settings.pop("openrlhf", None)
    config = with_settings(Config(), settings)
    for setting in arguments[3::2]:
        where, _, value = setting.partition("=")
        table, _, field = where.partition(".")
        options = {**config.env_options, field: value}
        config = with_settings(config, {table: options if table == "env_options" else {field: value}})
    assert (config.turns.grounding, config.turns.state_format) == (True, "symbols")
    env = make_game_env(config, "test")
    env.reset(seed=0)
    assert env.state_text.write(env.env.state[0]) == env.game.formatter(env.env.vocabulary, "grid")(env.env.state[0])
    assert config.turns.sees == (name == "pixels")


def test_the_planner_plays_the_best_moves_on_what_is_said() -> None:
    env = planned()
    level = "P___\nOOO_\n____\nG___"
    env.reset(seed=0, options={"level": level})
    *_, info = env.step(thinking(level, "Up"))
    assert [env.turns.action_names[action] for action in info["actions"]] == ["Right", "Right", "Right", "Down", "Down"]
    *_, info = env.step(thinking(" " + env.turns.board.replace("\n", " \n "), "Right"))
    assert info["success"], "spaces around rows mean nothing"

    env.reset(seed=0, options={"level": level})
    *_, terminated, _, info = env.step(thinking("P___\n____\n____\nG___"))
    assert (terminated, info["success"]) == (True, False), "who sees no hole walks into it"


@pytest.mark.parametrize(
    "reply",
    [
        "Up",
        thinking("P___\nOOO_\n____\n____"),
        thinking("PG__\n____\n____\n___G"),
        thinking("P__\n___\n__G"),
        thinking("P_x_\n____\n____\n___G"),
        "<think>I see P.</think><answer>Up</answer>",
    ],
)
def test_where_nothing_can_be_planned_nothing_is_played(reply: str) -> None:
    env = planned()
    env.reset(seed=0, options={"level": "P___\nOOO_\n____\nG___"})
    *_, info = env.step(reply)
    assert info["actions"] == ()


def test_cells_are_counted_by_their_places() -> None:
    truth = "P__\n_O_\n__G"
    ground = frozenset("_")
    assert said_cells(truth, truth, ground) == (9, 9, 3, 3)
    assert said_cells(" P__ \n _O_ \n __G", truth, ground) == (9, 9, 3, 3)
    assert said_cells("P__\n___\n__G", truth, ground) == (9, 8, 3, 2)
    assert said_cells("P__\n_O", truth, ground) == (9, 5, 3, 2), "what is not said is not right"
    assert said_cells("", truth, ground) == (9, 0, 3, 0)


@pytest.mark.slow
def test_agents_are_trained_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = (
        *("training.iterations=1", "demonstrations.episodes=64", "training.groups=4", "training.minibatch=16"),
        *("warm_start.epochs=1", "small_model.hidden=32", "small_model.layers=1", "evaluation.levels=8"),
    )
    monkeypatch.setitem(AGENTS, "pixels", Agent("pictures", (*AGENTS["pixels"].settings, *tiny)))
    command = ["--levels", "8", "--only", "pixels", "--seeds", "1"]
    command += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert vision.main(command) == 0
    assert "pixels, seed 1, reinforcement: success" in capsys.readouterr().out
    page = (tmp_path / "vision.md").read_text()
    assert "| pixels | imitation | " in page
    first = json.loads((tmp_path / "vision.json").read_text())
    assert first["agents"]["pixels"]["1"]["core_s"] > 1
    assert RunFolder.reopen(tmp_path / "runs" / "pixels-seed1")[1].turns.observation == "image"
    monkeypatch.setattr(vision, "measure", lambda *_: pytest.fail("measured again"))
    assert vision.main(command) == 0
    again = json.loads((tmp_path / "vision.json").read_text())
    spent = first["agents"]["pixels"]["1"].pop("core_s")
    assert again["agents"]["pixels"]["1"].pop("core_s") == pytest.approx(spent, rel=0.05), "not trained"
    assert again["agents"] == first["agents"]


def test_rates_on_other_levels_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vision.json").write_text('{"levels": 64, "agents": {}}')
    with pytest.raises(SystemExit):
        vision.main(["--out", str(tmp_path)])
    assert "is of 64 levels: give --levels" in capsys.readouterr().err
