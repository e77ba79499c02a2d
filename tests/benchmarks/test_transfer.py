"""The transfer benchmark: what is measured on, resuming, and that the page is made of the results."""

from __future__ import annotations

import json
import shutil
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks import transfer
from benchmarks.transfer import AGENTS, TARGETS, Target, settings_for
from ragen_agent.config import Config, with_settings
from ragen_agent.config.presets import default_settings, read_recipe
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import make_game_env


def trained(agent: str) -> Config:
    """The settings of an agent's run."""
    settings = default_settings(agent)
    if AGENTS[agent][0] == "--recipe":
        settings = dict(read_recipe(AGENTS[agent][1]).settings)
        settings.pop("openrlhf", None)
    return with_settings(Config(), {**settings, "game": agent})


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.agent}: {target.axis}: {target.title}")
def test_every_target_is_another_environment_of_the_agents_turns(target: Target) -> None:
    own = trained(target.agent)
    config = settings_for(own, target, 8)
    env = make_game_env(config, target.split)
    env.reset(seed=0)
    assert env.config == make_game_env(own, "train").config
    assert env.env.text_format == target.options.get("text_format", own.env_options.get("text_format", "grid"))
    measured, own_levels = ((each.game, each.env_options, each.evaluation.split) for each in (config, own))
    assert ("as trained on" in target.title) == (measured == own_levels)


def test_every_axis_begins_with_what_the_agent_was_trained_on() -> None:
    for _, axis in groupby(TARGETS, key=lambda target: (target.agent, target.axis)):
        assert "as trained on" in next(axis).title
    assert {target.agent for target in TARGETS} == AGENTS.keys()
    keys = {(target.key, target.title) for target in TARGETS if "as trained on" not in target.title}
    assert len({key for key, _ in keys}) == len(keys), "two rows measure the same"


@pytest.mark.slow
def test_a_run_is_trained_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    command = ["--quick", "--only", "Bandit", "--seeds", "3", *places]
    assert transfer.main(command) == 0
    first = json.loads((tmp_path / "transfer.json").read_text())
    assert "Bandit, seed 3: names, BanditRev, names never met" in capsys.readouterr().out
    assert "| names | Bandit, as trained on |" in (tmp_path / "transfer.md").read_text()
    assert (tmp_path / "transfer.svg").read_text().count("BanditRev") >= 2
    monkeypatch.setattr(transfer, "play_fixed", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(transfer, "baselines", lambda *_: pytest.fail("measured again"))
    assert transfer.main(command) == 0
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(transfer, "train", lambda *_: pytest.fail("trained again on another machine"))
    assert transfer.main(command) == 0
    assert json.loads((tmp_path / "transfer.json").read_text()) == first


def test_a_machine_that_measures_nothing_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(transfer.HERE / "transfer.json", tmp_path)
    RunFolder.create(tmp_path / "runs" / "Bandit-seed0", trained("Bandit"))
    monkeypatch.setattr(transfer, "train", lambda *_, **__: {})
    monkeypatch.setattr(transfer, "machine", lambda *_: "another machine")
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert transfer.main(["--only", "Bandit", "--seeds", "0", *places]) == 0
    assert (tmp_path / "transfer.json").read_text() == (transfer.HERE / "transfer.json").read_text()


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "transfer.json").write_text('{"levels": 256}')
    for arguments, message in (
        (["--quick"], "give --out another folder"),
        (["--levels", "64", "--out", str(tmp_path)], "holds rates on 256 levels: give --levels 256"),
        (["--only", "Tetris"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            transfer.main(arguments)
        assert message in capsys.readouterr().err


def test_the_page_has_a_section_for_each_agent() -> None:
    results = json.loads((transfer.HERE / "transfer.json").read_text(encoding="utf-8"))
    for agent in results["rates"]:
        assert f"## Trained on {agent}" in transfer._page(results)
