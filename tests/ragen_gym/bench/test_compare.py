"""Whether a new version of an agent is worse: the tests of a comparison, its table and its exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragen_gym.bench.agents import make_agent
from ragen_gym.bench.compare import compare, compare_results, worse
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main

SMOKE = load_suite("smoke")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs ``random`` and ``oracle``."""
    folder = tmp_path_factory.mktemp("versions")
    for name in ("random", "oracle"):
        run_suite(SMOKE, make_agent(name), folder / name)
    return folder


def without(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    path = folder / "episodes.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if keep(json.loads(line))), encoding="utf-8")
    return folder


def bench_compare(first: Path, second: Path, *options: str) -> int:
    return main(["bench", "compare", str(first), str(second), *options])


def test_two_agents_on_the_same_instances(runs: Path) -> None:
    oracle, chance = (load_results(runs / name).records for name in ("oracle", "random"))
    played = [record for record in chance if record.split != "bandit_rev"]
    result = compare(SMOKE, ("oracle", oracle), ("random", played))
    assert list(result["splits"]) == [split.name for split in SMOKE.splits[:-1]]
    sokoban = result["splits"]["sokoban"]
    assert sokoban["first"] == 1
    assert sokoban["difference"]["value"] == 1 - sokoban["second"] > 0.4
    assert result["all"]["verdict"] == "better"
    assert result["all"]["sentence"].startswith("oracle is above random by ")
    back = compare(SMOKE, ("random", chance), ("oracle", oracle))["splits"]["sokoban"]
    assert back["difference"]["value"] == -sokoban["difference"]["value"]
    assert back["sentence"].startswith("random is below oracle by ")
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_an_agent_does_not_differ_from_itself(runs: Path) -> None:
    records = load_results(runs / "random").records
    for entry in compare(SMOKE, ("one", records), ("other", records))["splits"].values():
        assert (entry["verdict"], entry["difference"]["value"]) == ("unclear", 0)
        assert entry["sentence"].startswith("one and other do not differ (-")
        assert entry["difference"]["low"] < 0 < entry["difference"]["high"]
    alone = compare(SMOKE, ("one", records[:1]), ("other", records))["all"]
    assert alone["difference"]["low"] is None
    assert "One level is too few to compare" in alone["sentence"]


def test_an_interval_leaves_0_out_exactly_where_there_is_a_verdict(runs: Path) -> None:
    rng, records = np.random.default_rng(0), load_results(runs / "oracle").records
    verdicts, result = set[str](), dict[str, Any]()
    for share in (0.0, 0.2, 0.4, 0.7, 1.0):
        other = [replace(each, success=each.success and rng.random() > share) for each in records]
        result = compare(SMOKE, ("other", other), ("same", records))
        for entry in (result["all"], *result["splits"].values()):
            low, high = entry["difference"]["low"], entry["difference"]["high"]
            assert (low > 0 or high < 0) == (entry["verdict"] != "unclear")
            assert low <= entry["difference"]["value"] <= high
            assert entry["difference"]["confidence"] >= 0.95 - 1e-9
            verdicts.add(entry["verdict"])
    assert verdicts == {"worse", "unclear"}
    assert max(entry["difference"]["confidence"] for entry in result["splits"].values()) > 0.99, "Holm's correction"


def test_the_command_prints_a_table_and_fails_where_the_first_is_worse(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, oracle = runs / "random", runs / "oracle"
    assert bench_compare(chance, oracle) == 0, "without --fail-if-worse it only says so"
    printed = capsys.readouterr().out
    assert "random (first) and oracle (second)" in printed
    assert "first:  48 of 48 episodes asked for are scored" in printed
    rows = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert rows["40 levels"].endswith("worse")
    assert all(split.name in rows for split in SMOKE.splits)
    assert bench_compare(chance, oracle, "--fail-if-worse", "5") == 1
    assert "random is worse by more than 5 points: all: random is below oracle by" in " ".join(
        capsys.readouterr().out.split()
    )
    assert bench_compare(chance, oracle, "--fail-if-worse", "99") == 0
    assert "not shown to be worse by more than 99 points" in capsys.readouterr().out
    assert bench_compare(oracle, chance, "--fail-if-worse") == 0
    capsys.readouterr()
    assert bench_compare(chance, oracle, "--fail-if-worse", "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert len(result["worse"]) >= 2
    assert result["runs"]["first"] == {"episodes": 48, "asked": 48}


def test_a_version_that_fails_where_it_would_lose_is_worse(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wins = without(shutil.copytree(runs / "random", tmp_path / "wins"), lambda record: record["success"])
    assert bench_compare(wins, runs / "random", "--fail-if-worse") == 1
    assert "has no scored episode of" in " ".join(capsys.readouterr().out.split())
    assert bench_compare(wins, runs / "random", "--fail-if-worse", "100") == 0
    none = without(shutil.copytree(runs / "random", tmp_path / "none"), lambda record: False)
    assert bench_compare(none, runs / "random", "--fail-if-worse") == 2
    assert "have no scored episode of one level" in capsys.readouterr().err
    assert bench_compare(wins, runs / "random", "--fail-if-worse", "-3") == 2
    assert "give percentage points from 0 to 100" in capsys.readouterr().err


def test_a_narrower_run_is_compared_on_what_it_was_asked(tmp_path: Path, runs: Path) -> None:
    run_suite(SMOKE, make_agent("random"), tmp_path / "few", RunOptions(limit=4))
    result = compare_results(load_results(tmp_path / "few"), load_results(runs / "random"))
    assert result["unscored"] == {"levels": 0, "of": 24}
    assert worse(result) == []


def test_runs_of_two_suites_are_not_compared(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_suite(load_suite("ragen-v1"), make_agent("random"), tmp_path / "other", RunOptions(("bandit",), limit=1))
    assert bench_compare(runs / "random", tmp_path / "other") == 2
    assert "ragen-v1" in capsys.readouterr().err
