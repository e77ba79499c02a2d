"""Sources: no child process imports from the current folder, and no model's own code is run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragen_gym.core.child_python import child_environment, child_python
from tests.test_architecture import ROOT, modules

#: Where a child of another, perhaps older, Python sees to it itself: its program moves the current folder to the end.
MOVES_IT_ITSELF = {("ragen_gym.audit.sandbox", "-c")}
HELPER = "ragen_gym.core.child_python"
MODELS_CODE = ("from_pretrained", "from_config")


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield name, node


def constants(elements: list[ast.expr]) -> list[object]:
    return [each.value if isinstance(each, ast.Constant) else None for each in elements]


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_no_command_of_python_lacks_the_flag() -> None:
    """Words of a command stand in a list, a tuple or a call."""
    found = []
    for module, node in nodes():
        if isinstance(node, ast.List | ast.Tuple):
            words = constants(node.elts)
        elif isinstance(node, ast.Call) and name_of(node.func) not in ("child_python", "add_argument"):
            words = constants(node.args)
        else:
            continue
        for flag in ("-m", "-c"):
            if flag not in words or (module, flag) in MOVES_IT_ITSELF or "/bin/sh" in words:
                continue
            if "-P" not in words[: words.index(flag)] and words[0] != "git":
                found.append(f"{module}, line {node.lineno}: {ast.unparse(node)[:80]}")
    assert not found, "start it with ragen_gym.core.child_python, or give -P"


def test_the_own_interpreter_is_started_by_one_function() -> None:
    """Elsewhere it is only compared, or asked where it lies."""
    allowed = (f"{HELPER}", "ragen_gym.audit.sandbox", "ragen_gym.cli.audit")
    for module, node in nodes():
        if isinstance(node, ast.List | ast.Tuple) and module not in allowed:
            names = [ast.unparse(each) for each in node.elts]
            assert "sys.executable" not in names, f"{module}, line {node.lineno}: use child_python"


def test_spawned_processes_of_multiprocessing_lack_it_nowhere() -> None:
    """They run ``python -c``, whose flags are the parent's: the variable stands for the flag."""
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        if "multiprocessing" in text and ('"spawn"' in text or '"forkserver"' in text or "ProcessPool" in text):
            assert 'os.environ["PYTHONSAFEPATH"] = "1"' in text, name


def test_nothing_puts_a_folder_before_the_libraries() -> None:
    for module, node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.path.insert":
            raise AssertionError(f"{module}, line {node.lineno}: append it, so that no file takes a library's place")


def test_no_model_is_loaded_with_code_of_its_own() -> None:
    loads = 0
    for module, node in nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = name_of(node.func.value)
        if node.func.attr in MODELS_CODE and (owner.startswith("Auto") or owner == "auto"):
            given = {each.arg: ast.unparse(each.value) for each in node.keywords}
            assert given.get("trust_remote_code") == "False", f"{module}, line {node.lineno}"
            loads += 1
    assert loads > 10


@pytest.fixture
def dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files named as libraries that note that they were run."""
    for name in ("pip", "gymnasium", "numpy", "json", "importlib", "ragen_gym", "torch", "subprocess"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').close()\nraise ImportError\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ran"


@pytest.mark.parametrize("words", [("-c", "import ragen_gym, json, subprocess"), ("-m", "ragen_gym.cli", "list")])
def test_a_child_imports_nothing_from_the_current_folder(dirty: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(child_python(*words), env=child_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not dirty.exists()
    subprocess.run([sys.executable, *words], env=child_environment(), capture_output=True, check=False)
    assert dirty.exists(), "without the flag it does"


def test_each_helper_that_the_commands_start(dirty: Path) -> None:
    from ragen_agent.models.named_models import file_of_package
    from ragen_agent.preflight.doctor import imported
    from ragen_gym.audit import AuditSettings, audit
    from ragen_gym.cli import main
    from ragen_gym.core.child_python import run_in_another_process

    assert imported("import gymnasium; print(gymnasium.__version__)")
    with pytest.raises(ValueError, match="pip could not bring the package"):
        file_of_package("no/such package", "file", "0", dirty.parent)
    assert run_in_another_process("import json; print(json.dumps(1))", b"") == b"1\n"
    assert not dirty.exists()
    report = audit("ragen/Bandit-v0", AuditSettings(checks=["seed_repeats"]))
    assert report.status("seed_repeats") == "passed"
    assert main(["audit", "ragen/Bandit-v0", "--check", "seed_repeats"]) == 0
    assert not dirty.exists()


def test_numba_reads_no_settings_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could move its cache there, whose files are unpickled; it reads them again at each compilation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: theirs\n", encoding="utf-8")
    code = "from ragen_gym.games._jit import _numba; config = _numba().core.config; config.reload_config(); "
    child = child_python("-c", f"{code}print(config.CACHE_DIR)")
    environment = {name: value for name, value in child_environment().items() if name != "NUMBA_CACHE_DIR"}
    assert subprocess.run(child, env=environment, capture_output=True, text=True, check=True).stdout == "\n"


def test_a_game_of_the_current_folder_is_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent_of_mine.py").write_text("def reply(messages, task):\n    return 'up'\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    from ragen_gym.bench.agents.python import find

    assert find("agent_of_mine:reply")(None, None) == "up"
    assert sys.path[-1] == os.getcwd()
    sys.modules.pop("agent_of_mine")
    assert ROOT.is_dir()
