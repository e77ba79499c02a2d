"""The packages that ``ragen-gym export-env`` writes; the real libraries test them in ``tests/integrations``."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

from ragen_gym import integrations
from ragen_gym.cli import main
from ragen_gym.games.registry import TABLE
from ragen_gym.integrations.export import TARGETS, export_env

FOLDER = Path(integrations.__file__).parent


def test_an_adapter_has_at_most_a_hundred_lines() -> None:
    adapters = [path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "rollout", "export")]
    assert adapters
    for path in adapters:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 100, path.name
        assert f"``{path.stem}``" in str(integrations.__doc__), path.name


def test_the_guide_names_the_versions_that_each_target_is_tested_with() -> None:
    root = Path(__file__).parents[3]
    guide = (root / "docs/guides/with_other_libraries.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", guide.partition("| TARGET |")[2].partition("\n\n")[0], re.M))
    assert list(named) == list(TARGETS)
    for target, versions in named.items():
        pins = (root / "tests/integrations/constraints" / f"{target}.txt").read_text(encoding="utf-8")
        pinned = dict(line.split("==") for line in pins.splitlines() if "==" in line)
        found = {each[0]: each[1] for each in re.findall(r"([a-z][a-z_-]*) ([\d.]*\d)", versions) if each[0] in pinned}
        assert found, f"{target}: {versions}"
        assert found == {name: pinned[name] for name in found}
    for target, library in (("harbor", "harbor"), ("inspect", "inspect-ai")):
        pins = (root / "tests/integrations/constraints" / f"{target}.txt").read_text(encoding="utf-8")
        (version,) = re.findall(rf"^{library}==(.*)$", pins.replace("_", "-"), re.M)
        assert re.search(rf"{library} {re.escape(version)}\b", guide), (library, version)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_written_with_the_games_facts(target: str, tmp_path: Path) -> None:
    files = export_env(target, tmp_path / "out", "LargeSokoban", max_turns=3)
    assert {"README.md", "LICENSE"} <= {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\{\{\w+\}\}|__[a-z]+__(?=/)", f"{path} {text}"), path
        if path.suffix == ".py":
            ast.parse(text)
        if path.suffix == ".toml":
            project = tomllib.loads(text)["project"]
            assert project["name"] == "ragen-large-sokoban"
            assert any(each.startswith("ragen-gym") for each in project["dependencies"])
        if path.suffix == ".json":
            json.loads(text)
        if path.suffix == ".jsonl":
            assert [json.loads(line) for line in text.splitlines()]
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "LargeSokoban" in readme


def test_the_same_export_twice_is_the_same(tmp_path: Path) -> None:
    written = [export_env("openenv", tmp_path / name, "FrozenLake") for name in ("a", "b")]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]


@pytest.mark.parametrize("game", TABLE)
def test_the_command_exports_every_game(game: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-env", "verifiers", str(tmp_path / "out"), "--game", game, "--option", "max_turns=2"]) == 0
    assert "nothing was uploaded" in capsys.readouterr().out
    (module,) = (tmp_path / "out").glob("ragen_*/__init__.py")
    assert "'max_turns': 2" in module.read_text(encoding="utf-8")
    assert not re.search(r"\b1 (replies|moves)\b", (tmp_path / "out" / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", ["verifiers", "openenv", "skyrl", "nemo", "verl", "molt", "ors"])
def test_a_text_task_is_exported_as_a_game_is(target: str, tmp_path: Path) -> None:
    task = ["--game", "ragen_gym.tasks:Countdown", "--option", "max_turns=1", "--option", "count=3"]
    assert main(["export-env", target, str(tmp_path / "out"), *task]) == 0
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Countdown" in readme
    assert "Countdown of ragen-gym: Write an expression that uses each of the given numbers once" in readme
    assert any("ragen_gym.tasks:Countdown" in path.read_text("utf-8") for path in (tmp_path / "out").rglob("*.py"))


def test_options_are_read_as_the_game_and_the_turn_declare_them(tmp_path: Path) -> None:
    arguments = ["--option", "success_rate=1/2", "--option", "think=false", "--preset", "easy"]
    command = ["export-env", "trl", str(tmp_path / "out"), *arguments, "--requires", "ragen-gym @ file:///x.whl"]
    assert main(command) == 0
    script = (tmp_path / "out" / "train.py").read_text(encoding="utf-8")
    assert "OPTIONS = {'success_rate': 0.5, 'think': False, 'preset': 'easy'}" in script
    assert "ragen-gym @ file:///x.whl" in (tmp_path / "out" / "requirements.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gem", "out"], "verifiers"),
        (["verifiers", "taken"], "exists"),
        (["verifiers", "no/folder/out"], "there is no folder"),
        (["verifiers", "out", "--game", "Chess"], "choose one of"),
        (["verifiers", "out", "--option", "speed=3"], "speed"),
        (["verifiers", "out", "--option", "max_turns=0"], "max_turns"),
        (["verifiers", "out", "--option", "max_turns"], "name=value"),
        (["verifiers", "out", "--option", "max_turns=2", "--option", "max_turns=3"], "max_turns"),
    ],
)
def test_errors_say_what_is_allowed(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert main(["export-env", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_game_of_ones_own_goes_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thin_ice.py").write_text(
        "import ragen_gym\n"
        "from ragen_gym.games.registry import GameSpec\n\n"
        "spec = GameSpec('ThinIce', 'ragen_gym.games.frozen_lake:FrozenLake', 6, 'a \"thin\" lake', "
        "{'success_rate': 1.0})\n"
        "ragen_gym.register(spec)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["export-env", "verifiers", "out", "--game", "thin_ice:ThinIce"]) == 0
    assert (tmp_path / "out" / "thin_ice.py").read_bytes() == (tmp_path / "thin_ice.py").read_bytes()
    pyproject = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["description"] == 'ThinIce, made with ragen-gym: a "thin" lake'
    assert pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {"thin_ice.py": "thin_ice.py"}
    assert "(c) the authors of thin_ice.py and ragen-gym" in (tmp_path / "out" / "LICENSE").read_text(encoding="utf-8")
    assert "LICENSE puts your module under the MIT license" in capsys.readouterr().out
    assert "thin_ice:ThinIce" in (tmp_path / "out" / "ragen_thin_ice" / "__init__.py").read_text(encoding="utf-8")
    TABLE.pop("ThinIce")
