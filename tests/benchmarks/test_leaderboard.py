"""The leaderboard with scripted agents and a tiny language model: what is played, resumed, left out and written."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from benchmarks import leaderboard
from benchmarks.leaderboard import Row, main
from ragen_agent.config import Config
from ragen_agent.run.policy import Policy
from ragen_gym.bench.results import load_results
from ragen_gym.bench.score import score_results
from tests.ragen_gym.bench.bad_server import BadServer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, untrained, as a run of `ragen-agent` saves it."""
    policy, folder = Policy.build(Config()), tmp_path_factory.mktemp("model")
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def test_a_leaderboard_is_played_once_and_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leaderboard, "ROWS", (*leaderboard.ROWS[:3], Row("Big model", "no-such-model", model=True)))
    words = ["--suite", "smoke", "--limit", "2", "--max-tokens", "4", "--batch", "8", "--runs", str(tmp_path / "runs")]
    page = tmp_path / "new" / "page"
    words += ["--out", str(page), "--checkpoint", f"tiny={checkpoint}", "--checkpoint", f"same={checkpoint}"]
    assert main([*words, "--rows", "random", "oracle", "tiny"]) == 0
    assert main(words) == 0
    said = capsys.readouterr().err
    assert [said.count(f"{name} plays smoke") for name in ("random", "blind", "oracle", "tiny", "same")] == [1] * 5
    assert "Big model on smoke is left out: " in said

    rows = json.loads((page / "leaderboard.json").read_text())["suites"]["smoke"]["rows"]
    assert list(rows) == ["random", "blind", "oracle", "Big model", "tiny", "same"]
    assert rows["oracle"]["success"] > rows["random"]["success"]
    summary = score_results(load_results(tmp_path / "runs" / "smoke" / "blind"))
    assert rows["blind"]["above_blind"] == summary["overall"]["above_blind"]
    assert rows["oracle"]["above_blind"] == 1
    assert rows["tiny"]["episodes"] == 2 * len(rows["tiny"]["splits"]) == rows["random"]["episodes"]
    assert rows["tiny"]["tokens"]["completion"] > 0
    assert rows["tiny"]["seconds"] > 0 < rows["tiny"]["cpu_seconds"]

    text = (page / "leaderboard.md").read_text()
    assert "| normalised | above blind |" in text
    assert re.search(r"^\| oracle \| [\d.]+ % \| 1\.00 \| 1\.00 \|", text, re.MULTILINE)
    assert "| success, % | sokoban | " in text
    assert re.findall(r"^\| (\w+) \| \d+\.\d \(\d+ to \d+\) \|", text, re.MULTILINE) == [
        "random",
        "blind",
        "oracle",
        "tiny",
        "same",
    ]
    assert "Big model was not measured: " in text
    assert "same and tiny do not differ" in text
    assert text.count("the score is of a part of the suite") == 1, "what holds for all is said once"
    assert "max_tokens" not in text
    assert "{" not in text

    elsewhere = ["--runs", str(tmp_path / "elsewhere"), "--checkpoint", f"later={checkpoint}", "--rows", "later"]
    for split in ("sokoban", "bandit"):
        assert main([*words, *elsewhere, "--split", split]) == 0
    assert list(json.loads((page / "leaderboard.json").read_text())["suites"]["smoke"]["rows"]["later"]["splits"]) == [
        "sokoban",
        "bandit",
    ]
    assert "same and tiny do not differ" in (page / "leaderboard.md").read_text(), "runs that are not at hand"


def test_a_row_that_is_stopped_keeps_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--suite", "smoke", "--limit", "1", "--rows", "random", "--runs", str(tmp_path), "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(leaderboard, "run_suite", lambda *_: signal.raise_signal(signal.SIGTERM))
        (tmp_path / "smoke" / "random").mkdir(parents=True)
        assert main(words) == 130
    assert "the same command goes on" in capsys.readouterr().err
    (cost,) = (tmp_path / "smoke").glob("*.cost.json")
    stopped = json.loads(cost.read_text())["seconds"]
    assert stopped > 0
    assert main(words) == 0
    assert json.loads(cost.read_text())["seconds"] > stopped


def test_a_checkpoint_of_the_same_name_does_not_mix_with_another(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--suite", "smoke", "--max-tokens", "2", "--runs", str(tmp_path), "--out", str(tmp_path), "--rows", "tiny"]
    assert main([*words, "--limit", "1", "--checkpoint", f"tiny={checkpoint}"]) == 0
    other = tmp_path / "other"
    other.mkdir()
    for file in checkpoint.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert main([*words, "--limit", "2", "--checkpoint", f"tiny={other}"]) == 0
    assert "tiny on smoke is left out" in capsys.readouterr().err
    rows = json.loads((tmp_path / "leaderboard.json").read_text())["suites"]["smoke"]["rows"]
    assert rows["tiny"]["episodes"] == len(rows["tiny"]["splits"]), "what was measured stays"


@pytest.mark.parametrize("changed", ["agent", "max_tokens"])
def test_a_whole_run_of_something_else_is_not_taken_for_what_is_asked(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leaderboard, "machine", lambda *packages: "a machine")
    with BadServer("good") as server:
        words = ["--suite", "smoke", "--limit", "1", "--rows", "served"]
        words += ["--runs", str(tmp_path), "--out", str(tmp_path)]
        assert main([*words, "--server", f"served=m@{server.url}"]) == 0
        assert "is left out" not in capsys.readouterr().err
        model, more = ("other", []) if changed == "agent" else ("m", ["--max-tokens", "64"])
        assert main([*words, "--server", f"served={model}@{server.url}", *more]) == 0
    assert f"{changed} is now" in capsys.readouterr().err


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="write it as NAME=FOLDER"):
        main(["--checkpoint", "nowhere"])
    with pytest.raises(SystemExit, match="write it as NAME=MODEL@URL"):
        main(["--server", "vLLM=http://127.0.0.1/v1"])
    with pytest.raises(SystemExit, match="no row is called nobody: there are random, blind, oracle"):
        main(["--rows", "nobody", "--out", str(tmp_path)])
