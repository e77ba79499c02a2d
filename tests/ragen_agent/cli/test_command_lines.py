"""Both command lines as a newcomer meets them: in a small terminal, and where only the base package is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen_agent import cli as agent_cli
from ragen_gym import cli as gym_cli
from ragen_gym.core.command_line import parsers

MAINS = {"ragen-gym": gym_cli.main, "ragen-agent": agent_cli.main}
PARSERS: dict[str, Any] = {"ragen-gym": gym_cli.build_parser, "ragen-agent": agent_cli.build_parser}
#: Every command of both programs; the words are also what a wheel's test calls.
COMMANDS = [(name, *at.split()) for name, build in PARSERS.items() for at, _ in parsers(build())]

#: In a process of its own: no module is found but the standard library, this project and what it requires.
BASE_ONLY = """
import contextlib, io, json, sys

BASE = {"numpy", "gymnasium", "numba", "llvmlite", "cloudpickle", "farama_notifications", "typing_extensions"}

class Finder:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in BASE | {"ragen_gym", "ragen_agent"} | sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
import ragen_agent.cli, ragen_gym.cli

mains = {"ragen-gym": ragen_gym.cli.main, "ragen-agent": ragen_agent.cli.main}
results = []
for program, *words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = mains[program](words)
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            code = repr(error)
    results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.__stdout__)
"""


def base_only(calls: list[tuple[str, ...]], folder: Path) -> list[list[Any]]:
    """Exit code, output and errors of each call without any optional library."""
    done = subprocess.run(
        [sys.executable, "-c", BASE_ONLY],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[list[Any]] = json.loads(done.stdout)
    return results


def test_every_command_has_help_without_the_extras(tmp_path: Path) -> None:
    calls = [(*words, "--help") for words in COMMANDS if words[0] == "ragen-gym"]
    for words, (code, out, err) in zip(calls, base_only(calls, tmp_path), strict=True):
        assert code == 0, (words, code, err)
        assert out.startswith(f"usage: {' '.join(words[:-1])}"), words
        assert not err, words


def test_a_command_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    needs = {
        ("ragen-agent", "--help"): "agent",
        ("ragen-agent", "train"): "agent",
        ("ragen-gym", "render", "Bandit", "--out", "bandit.png"): "render",
        ("ragen-gym", "check", "Bandit"): "test",
        ("ragen-gym", "bench", "run", "--suite", "smoke", "--agent", "random", "--out", "bench"): "bench",
        ("ragen-gym", "bench", "report", "run"): "bench",
        ("ragen-gym", "serve"): "serve",
    }
    for (words, extra), (code, out, err) in zip(needs.items(), base_only([*needs], tmp_path), strict=True):
        assert code == 2, (words, code, err)
        assert f"pip install 'ragen-gym[{extra}]'" in err, (words, err)
        assert not out, words


def test_what_needs_no_extra_works_without(tmp_path: Path) -> None:
    calls = [
        ("ragen-gym", "list"),
        ("ragen-gym", "bench", "suites"),
        ("ragen-gym", "bench", "run", "--help"),
    ]
    for words, (code, out, err) in zip(calls, base_only(calls, tmp_path), strict=True):
        assert (code, err) == (0, ""), words
        assert out, words


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_small_terminal(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name, *rest = words
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(MAINS[name]([*rest, "--help"]))
    assert stopped.value.code in (0, None)
    long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert all(len(line.split()) == 1 for line in long), long  # what cannot be broken
