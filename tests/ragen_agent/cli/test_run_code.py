"""What a file or folder of somebody else names is imported, started or sent a key with ``--run-code`` alone."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.experiments.__main__ import main as experiments
from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.run.console import run_code_flag
from ragen_agent.run.run_folder import RunFolder
from tests.ragen_agent.cli.test_own_task import SOURCE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that is not imported and a file of settings that names it."""
    (tmp_path / "theirs.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "game.toml").write_text('game = "theirs:Sum"\n', encoding="utf-8")
    (tmp_path / "mixture.toml").write_text('[[games]]\ngame = "theirs:Sum"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize("file", ["game.toml", "mixture.toml"])
@pytest.mark.parametrize(
    "words",
    [
        "train --dry-run",
        "tokens",
        "sft data --episodes 1 --out demos.jsonl",
        "eval nowhere",
    ],
)
def test_the_module_of_a_file_of_settings(
    folder: Path, words: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--config", file]) == 2
    error = capsys.readouterr().err
    assert f"{file} plays theirs:Sum" in error
    assert "--run-code" in error
    assert "theirs" not in sys.modules, "a file of settings made code run"


def test_what_the_user_names_or_allows_is_imported(folder: Path) -> None:
    for number, words in enumerate((["--run-code"], ["--game", "theirs:Sum"], ["--set", "game=theirs:Sum"])):
        sys.modules.pop("theirs", None)
        out = f"{number}.jsonl"
        assert main(["sft", "data", "--config", "game.toml", "--episodes", "2", "--out", out, *words]) == 0
        assert Path(out).is_file()


def test_the_program_of_a_run_or_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = folder / "started"
    config = with_settings(Config(), {"program": {"command": f"touch {shlex.quote(str(started))}"}})
    RunFolder.create(folder / "run", config)
    for words in (["train", "--resume", "run"], ["eval", "run"], ["train", "--config", "run/config.toml"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "program.command" in error
        assert "--run-code" in error
    assert not started.exists()
    assert not (folder / "runs").exists()
    own = ["--set", "program.command=true", "--dry-run", "--set", "warm_start.epochs=1"]
    assert main(["train", "--config", "run/config.toml", *own]) == 0
    assert main(["train", "--config", "run/config.toml", "--run-code", "--dry-run"]) == 0
    assert main(["report", "run"]) == 0, "which starts no program"


@pytest.mark.parametrize("arm", ['game = "theirs:Sum"', 'games = [{game = "theirs:Sum"}]', 'program.command = "true"'])
def test_what_the_table_of_an_experiment_names(folder: Path, arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f'{name} = "?"' for name in ("title", "question", "claim", "source", "evidence", "limits")]
    arms = ["[settings]", "warm_start.epochs = 1", "[[arms]]", 'name = "one"', 'about = "?"', f"settings.{arm}"]
    lists = ["curves = []", "columns = []", "comparisons = []"]
    (folder / "table.toml").write_text("\n".join([*texts, *lists, *arms, ""]), encoding="utf-8")
    words = ["table.toml", "--dry-run", "--seeds", "1"]
    assert experiments(words) == 2
    error = capsys.readouterr().err
    assert "table.toml plays theirs:Sum" in error or "table.toml starts the program 'true'" in error
    assert "--run-code" in error
    assert "theirs" not in sys.modules
    assert experiments([*words, "--run-code"]) == 0
    assert "1 runs" in capsys.readouterr().out


DISTRIBUTED = {
    'ray_address = "ray://elsewhere:10001"': "connects to ray://elsewhere:10001 (openrlhf.ray_address)",
    'attention = "somebody/attention"': "runs code of the Hub's repository 'somebody/attention' (openrlhf.attention)",
    'flags = "--ds.overlap_comm"': "passes the flags '--ds.overlap_comm' to another program (openrlhf.flags)",
}


@pytest.mark.parametrize("line", DISTRIBUTED)
@pytest.mark.parametrize("words", ["train --resume run", "train --resume run --dry-run"])
def test_the_address_and_the_code_of_a_distributed_run(
    folder: Path, words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(folder / "run", Config())
    (folder / "run" / "openrlhf.toml").write_text(f"{line}\n", encoding="utf-8")
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert f"run {DISTRIBUTED[line]}" in error
    assert "--run-code" in error
    settings = with_settings(OpenRLHF(), tomllib.loads(line))
    assert (run_code_flag(Config(), settings), run_code_flag(Config(), OpenRLHF())) == (" --run-code", "")
    assert not (folder / "run" / "openrlhf.json").exists()


@pytest.mark.parametrize("line", DISTRIBUTED)
def test_the_address_and_the_code_of_a_file_of_settings(
    folder: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file.toml").write_text(f"[openrlhf]\n{line}\n[warm_start]\nepochs = 1\n", encoding="utf-8")
    words = ["train", "--config", "file.toml", "--backend", "openrlhf", "--dry-run"]
    assert main(words) == 2
    assert f"file.toml {DISTRIBUTED[line]}" in capsys.readouterr().err
    name, value = (part.strip().strip('"') for part in line.split(" = "))
    assert main([*words, "--set", f"openrlhf.{name}={value}"]) == 0, "the user named it"
    assert main([*words, "--run-code"]) == 0
    assert main(["train", "--config", "file.toml", "--dry-run"]) == 0, "the local trainer reads none of it"
