"""The state of a run: of runs in every phase, and of files that grow and are torn."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.report.watch import FILES, FINISHED, WAITING, read_status
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines, read_json_lines

RATE = {"rate": 0.5, "low": 0.4, "high": 0.6, "n": 10}


def test_an_interrupted_run(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["broken"], tmp_path / "run")
    status = read_status(run)
    assert (status.phase, len(status.metrics)) == ("reinforcement", 2)
    assert status.seconds is not None
    assert status.left == pytest.approx(2 * status.seconds)
    for name in FILES:
        os.utime(run / name, (1, 1))
    assert "it may have been stopped · 2/4 iterations" in str(read_status(run))


def test_every_state_of_a_young_run(runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert read_status(path).phase == WAITING
    path.mkdir()
    assert str(read_status(path)) == WAITING
    RunFolder.create(path, RunFolder.reopen(runs["seed0"])[1])
    assert read_status(path).phase == "warm start"
    shutil.copytree(runs["seed0"] / "warm", path / "warm")
    assert read_status(path).phase == "measuring the start"
    with (path / "metrics.jsonl").open("w") as file:
        file.write('{"iteration": 0, "success": 0.5, "return_std": 0.1, "seconds": 3.0}\n{"iter')
    status = read_status(path)
    assert (status.phase, len(status.metrics), status.left) == ("reinforcement", 1, 9.0)
    assert str(status) == "reinforcement · 1/4 iterations · 3.0 s each · 9 s left"
    (path / "metrics.jsonl").write_text('{"iteration"\n')
    with pytest.raises(ValueError, match="not JSON"):
        read_status(path)


def test_a_run_goes_on_after_its_result_if_it_is_to_be_compared(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", with_settings(Config(), {"evaluation": {"imitation": True}}))
    folder.write_summary({"after": RATE, "more_imitation": RATE})
    assert read_status(folder.path).phase == "imitation, for comparison"
    folder.write_summary({"after": RATE, "more_imitation": RATE, "clean_warm_start": RATE})
    assert read_status(folder.path).phase == FINISHED


def test_as_json(runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["watch", str(runs["seed0"]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    metrics = read_json_lines(runs["seed0"] / "metrics.jsonl")
    assert (told["phase"], told["iterations"], told["of"]) == (FINISHED, len(metrics), 4)
    assert told["last"] == metrics[-1]
    assert told["rates"] == json.loads((runs["seed0"] / "summary.json").read_text())
    file = tmp_path / "file"
    file.write_text("")
    assert main(["watch", str(file), "--json"]) == 2


def test_json_holds_no_figure_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    append_json_lines(folder.metrics, [{"iteration": 0, "entropy": float("nan"), "grad_norm": float("inf")}])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert main(["watch", str(folder.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (shown["last"]["entropy"], shown["last"]["grad_norm"]) == (None, None)


@pytest.mark.parametrize("change", [{"messages": 3}, {"turn_rewards": ["1"]}, {"turn_infos": [1]}], ids=str)
def test_a_damaged_episode_is_named_by_its_file(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    shutil.copytree(runs["seed0"], tmp_path / "run")
    path = tmp_path / "run" / "episodes.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | change)]) + "\n")
    assert main(["report", str(tmp_path / "run"), "--force"]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "line" in said
