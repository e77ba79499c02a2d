"""``ragen-gym new-game``: what it writes works as it stands, and it replaces nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragen_gym import cli
from ragen_gym.cli.new_game import new_game

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--text"]], ids=["grid", "text"])
def test_what_it_writes_passes_its_own_tests(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-game", "TreasureHunt", "--folder", "hunt/game", *words]) == 0
    out = capsys.readouterr().out
    assert "treasure_hunt:TreasureHunt" in out
    assert "cd hunt/game" in out
    assert "ragen-gym export-env verifiers DIR --game treasure_hunt:TreasureHunt" in out
    folder = tmp_path / "hunt" / "game"
    page = (folder / "treasure_hunt.md").read_text(encoding="utf-8")
    every = "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert page.startswith("# TreasureHunt\n")
    assert "NewGame" not in every
    assert "new_game" not in every
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    tested, exported = (
        subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        for command in (
            ("pytest", "-q", "-p", "no:cacheprovider", "-W", "error"),
            ("ragen_gym.cli", "export-env", "verifiers", "package", "--game", "treasure_hunt:TreasureHunt"),
        )
    )
    assert tested.returncode == 0, tested.stdout
    assert "passed" in tested.stdout
    assert exported.returncode == 0, exported.stderr
    assert (folder / "package" / "treasure_hunt.py").read_bytes() == (folder / "treasure_hunt.py").read_bytes()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("treasure_hunt", "is not the name of a class"),
        ("FrozenLake", "FrozenLake is a game of the suite"),
        ("Json", "the module json, and Python has one of that name"),
        ("None", "None is a word of Python or a name that the module or its test uses: choose another"),
        ("Action", "Action is a word of Python or a name that the module or its test uses"),
    ],
)
def test_bad_names_are_refused(name: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=error):
        new_game(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "treasure_hunt.md").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"treasure_hunt\.md exists: choose another name"):
        new_game("TreasureHunt", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["treasure_hunt.md"]


def test_modules_are_named_by_their_words(tmp_path: Path) -> None:
    for name, module in (("TreasureHunt2", "treasure_hunt2"), ("HTTPQuiz", "http_quiz"), ("MyABCGame", "my_abc_game")):
        assert new_game(name, tmp_path, text=True)[0].name == f"{module}.py"
