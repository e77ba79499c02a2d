"""The speedrun as a folder for coding agents: its files, its reward, and its test on a file that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from benchmarks.speedrun_page import SEEDS, costs, records
from benchmarks.speedrun_task import ROOT, main, reward

RUNS = json.loads((ROOT / "benchmarks" / "speedrun.json").read_text(encoding="utf-8"))["runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("task")
    assert main([str(made)]) == 0
    return made


def test_the_folder_holds_a_task_of_harbor(folder: Path) -> None:
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    needed = {"task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh"}
    assert files - needed == {"environment/source.tar.gz", "tests/source.tar.gz", "solution/speedrun.py"}
    assert tomllib.loads((folder / "task.toml").read_text())["task"]["name"] == "ragen-gym/speedrun"
    with tarfile.open(folder / "tests" / "source.tar.gz") as archive:
        names = archive.getnames()
    assert {"ragen_gym/__init__.py", "benchmarks/speedrun.json", "pyproject.toml"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith("findings.md")]


def test_the_solution_is_the_record(folder: Path, tmp_path: Path) -> None:
    subprocess.run(["bash", folder / "solution" / "solve.sh"], check=True, env={**os.environ, "APP": str(tmp_path)})
    assert (tmp_path / "speedrun.py").read_bytes() == (ROOT / "examples" / "speedrun.py").read_bytes()


def test_the_reward_compares_with_the_record(tmp_path: Path) -> None:
    known = records(RUNS)
    product, loop = (min(costs(each)[kind] for each in known) for kind in (0, 1))

    def rewarded(times: float, solved: float = 0.6, loop_slowed: float = 1.0) -> float:
        figures = {"seconds": times, "solved": solved, "product": 1 / product, "loop": loop_slowed / loop}
        run = {**RUNS[0], "seeds": [{**RUNS[0]["seeds"][0], **figures}] * SEEDS}
        (tmp_path / "speedrun.json").write_text(json.dumps({"runs": [run]}))
        return reward(tmp_path)

    assert rewarded(0.5) == pytest.approx(2)
    assert rewarded(2.0) == pytest.approx(0.5)
    assert rewarded(0.5, loop_slowed=1.5) == pytest.approx(2), "by the product, which gains less"
    assert rewarded(0.5, solved=0.59) == 0


def test_a_file_that_fails_earns_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "speedrun.py").write_text("raise SystemExit('not written yet')")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    names = {"APP": str(tmp_path), "LOGS": str(tmp_path / "logs"), "PATH": path}
    command = ["bash", str(folder / "tests" / "test.sh"), "--number", "1"]
    done = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True, check=False)
    assert "not written yet" in done.stderr
    assert float((tmp_path / "logs" / "reward.txt").read_text()) == 0
