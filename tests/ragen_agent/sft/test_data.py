"""Demonstrations as conversations: those of a warm start, train split alone, the same file however it was made."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, merged, to_toml, with_settings
from ragen_agent.config.game_defaults import RECIPES
from ragen_agent.sft import warm_start as imitation
from ragen_agent.sft.data import part_file, write_data
from ragen_agent.sft.warm_start import show
from ragen_agent.training.console import Display
from ragen_agent.training.policy import Policy
from ragen_gym import make_turn

LAKE = with_settings(
    Config(),
    merged({**RECIPES["FrozenLake"], "game": "FrozenLake"}, {"demonstrations": {"episodes": 40, "mistakes": 0.2}}),
)
MIXED = replace(LAKE, games=[{"game": "FrozenLake"}, {"game": "Bandit", "thought": "choose"}])


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("config", [LAKE, MIXED], ids=["one game", "two games"])
def test_the_data_are_what_the_warm_start_shows(config: Config, tmp_path: Path) -> None:
    write_data(config, tmp_path / "demos.jsonl", quiet())
    shown = show(config, Policy.build(config), config.demonstrations, quiet())
    lines = lines_of(tmp_path / "demos.jsonl")
    assert [line["messages"] for line in lines] == [list(t.messages[:-1]) for t in shown]
    for line, episode in zip(lines, shown, strict=True):
        assert (line["level_id"], line["success"]) == (episode.level_id, episode.success)
        assert line["return"] == pytest.approx(episode.total_reward)
        assert line["messages"][-1]["role"] == "assistant"
    assert {line["env"] for line in lines} == {row.get("game") for row in config.games} or {"FrozenLake"}


def test_a_line_says_how_to_play_it_again(tmp_path: Path) -> None:
    write_data(LAKE, tmp_path / "demos.jsonl", quiet())
    for line in lines_of(tmp_path / "demos.jsonl")[:10]:
        known = signature(make_turn).parameters
        turns = {k: v for k, v in line["turns"].items() if k in known}
        turns.pop("max_tokens_per_turn")  # stated to pretrained models only
        env = make_turn(line["env"], split=line["split"], **turns, **line["knobs"])
        _, info = env.reset(seed=line["seed"], options={"noise_seed": line["noise_seed"]})
        assert info["level_id"] == line["level_id"]
        assert env.env.game.split_of(env.env.state[0]) == "train"
        for message in line["messages"]:
            if message["role"] == "assistant":
                info = env.step(message["content"])[-1]
        assert env.over
        assert list(info["messages"][:-1]) == line["messages"]
        assert info["success"] == line["success"]


def test_data_that_were_stopped_go_on_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "PART", 15)
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert write_data(LAKE, whole, quiet())["resumed"] == 0

    class Impatient(Display):
        def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_data(LAKE, broken, Impatient(Console(file=io.StringIO())))
    assert not broken.exists(), "a file is whole, or not there"
    other = replace(LAKE, demonstrations=replace(LAKE.demonstrations, quality=0.5))
    with pytest.raises(ValueError, match="holds other demonstrations"):
        write_data(other, broken, quiet())
    text = part_file(broken).read_text()
    part_file(broken).write_text(text + "".join(whole.read_text().splitlines(keepends=True)[15:20]) + '{"messages": [')
    assert write_data(LAKE, broken, quiet())["resumed"] == 15
    assert broken.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsonl", "whole.jsonl"]
    with pytest.raises(ValueError, match="exists already"):
        write_data(LAKE, whole, quiet())


def test_the_command_has_a_faultless_demonstrator_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["sft", "data", "--game", "FrozenLake", "--episodes", "30", "--json", "--set", "turns.max_turns=3"]
    assert main([*base, "--out", str(tmp_path / "best.jsonl")]) == 0
    best = json.loads(capsys.readouterr().out)
    assert (best["episodes"], best["successes"]) == (30, 30)
    assert lines_of(tmp_path / "best.jsonl")[0]["demonstrator"]["thought"] == "plan"
    assert main([*base, "--quality", "0", "--out", str(tmp_path / "worst.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["successes"] < 20
    options = ["--moves", "1", "--noise", "0.1", "--thought", "none", "--model", "elsewhere/model"]
    assert main([*base, *options, "--out", str(tmp_path / "other.jsonl")]) == 0
    first = lines_of(tmp_path / "other.jsonl")[0]
    assert first["demonstrator"] == {"moves": [1.0], "mistakes": 0.1, "quality": 1.0, "thought": "none"}
    assert "in at most 256 tokens" in first["messages"][1]["content"]
    (tmp_path / "run.toml").write_text(to_toml(LAKE))
    assert main(["sft", "data", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run.jsonl")]) == 0
    write_data(LAKE, tmp_path / "same.jsonl", quiet())
    assert (tmp_path / "run.jsonl").read_bytes() == (tmp_path / "same.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quality", "2"], "demonstrations.quality is 2.0; it must be from 0 to 1"),
        (["--thought", "deep"], "choose one of none, direction, choose, plan"),
        (["--set", "turns.history=0"], "a conversation shows every turn"),
        (["--knob", "sise=4"], "Did you mean size"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demos.jsonl"
    assert main(["sft", "data", "--game", "FrozenLake", "--episodes", "2", *arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not out.exists()
