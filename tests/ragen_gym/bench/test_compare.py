"""Whether a new version of an agent is worse: the tests of a comparison, its table, its exit code and JUnit XML."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from ragen_gym.bench.agent import Task
from ragen_gym.bench.compare import compare, compare_results, junit, worse
from ragen_gym.bench.episode_plan import RunOptions
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import load_results
from ragen_gym.bench.runner import run_suite
from ragen_gym.bench.suites import load_suite
from ragen_gym.cli import main

SMOKE = load_suite("smoke")


class Version:
    """Random moves in replies of which this share is malformed."""

    def __init__(self, name: str, malformed: float, moves: int = 5) -> None:
        self.name, self.malformed, self.moves = name, malformed, moves

    async def reply(self, messages: Any, task: Task) -> str:
        rng = np.random.default_rng([task.seed, len(messages)])
        bad = rng.random() < self.malformed
        moves = " || ".join(rng.choice(task.env.action_names, self.moves))
        return moves if bad else f"<think>?</think><answer>{moves}</answer>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs ``old`` and ``new``, of 11 and 73 % malformed replies."""
    folder = tmp_path_factory.mktemp("versions")
    for name, share in (("old", 0.11), ("new", 0.73)):
        run_suite(SMOKE, Version(name, share), folder / name)
    return folder


def without(folder: Path, keep: Callable[[dict[str, Any]], bool]) -> Path:
    path = folder / "episodes.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if keep(json.loads(line))), encoding="utf-8")
    return folder


def test_many_more_malformed_replies_are_clearly_worse(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare_results(load_results(runs / "new"), load_results(runs / "old"))
    malformed = result["all"]["malformed"]
    assert malformed["first"] > 0.6
    assert malformed["second"] < 0.2
    assert (malformed["verdict"], malformed["difference"]["p"] < 1e-3) == ("worse", True)
    assert malformed["difference"]["low"] > 0.3
    assert result["tests"] == {"all": 3, "success": 6, "return": 6, "malformed": 6}
    arguments = ["bench", "compare", str(runs / "new"), str(runs / "old")]
    assert main(arguments) == 0, "without --fail-if-worse it only says so"
    printed = capsys.readouterr().out
    [row] = re.findall("^  malformed replies .*", printed, re.MULTILINE)
    assert re.fullmatch(r"  malformed replies( +\d\d\.\d){2}  \+\d\d\.\d \(\+\d\d\.\d to \+\d\d\.\d\) +worse", row)
    stated = (
        "3 tests of all levels, and of single splits 6 of success, 6 of return, 6 of malformed replies, each paired"
    )
    assert stated in " ".join(printed.split())
    assert main([*arguments, "--fail-if-worse"]) == 1
    assert "new is above old in malformed replies by " in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--fail-if-worse", "5"]) == 1
    assert main([*arguments, "--fail-if-worse", "99"]) == 0
    assert "not shown to be worse by more than 99 points" in capsys.readouterr().out
    assert main(["bench", "compare", str(runs / "old"), str(runs / "new"), "--fail-if-worse"]) == 0, "old is better"


def test_the_table_fits_80_columns(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "compare", str(runs / "new"), str(runs / "old")])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "bounds" not in printed
    for name in ("sokoban", "large_sokoban", "bandit_rev"):
        assert re.search(rf"^  {name} ", printed, re.MULTILINE)
    assert "return by split" not in printed, "of splits, what is not shown to differ is left out, but for success"


def test_an_interval_leaves_0_out_exactly_where_there_is_a_verdict(runs: Path) -> None:
    rng, records = np.random.default_rng(0), load_results(runs / "old").records
    verdicts = set[str]()
    for share in (0.0, 0.2, 0.4, 0.7, 1.0):
        other = [replace(each, success=each.success and rng.random() > share) for each in records]
        result = compare(SMOKE, ("other", other), ("same", records))
        for entries in (result["all"], *result["splits"].values()):
            for metric, entry in entries.items():
                low, high = entry["difference"]["low"], entry["difference"]["high"]
                if low is None:
                    assert entry["verdict"] == "unclear", "too few levels for any verdict"
                    continue
                assert (low > 0 or high < 0) == (entry["verdict"] != "unclear")
                assert low <= entry["difference"]["value"] <= high
                assert entry["difference"]["confidence"] >= 0.95 - 1e-9
                verdicts.add(f"{metric} {entry['verdict']}")
    assert {"success worse", "success unclear", "malformed unclear"} <= verdicts
    assert "malformed worse" not in verdicts


def test_returns_are_compared_on_their_own_scale(runs: Path) -> None:
    records = load_results(runs / "old").records

    def shifted(by: float, scale: float = 1.0) -> list[EpisodeRecord]:
        return [replace(each, total_reward=scale * each.total_reward + by) for each in records]

    def of(one: list[EpisodeRecord], other: list[EpisodeRecord]) -> dict[str, Any]:
        entry: dict[str, Any] = compare(SMOKE, ("one", one), ("other", other))["all"]["return"]
        return entry

    rng = np.random.default_rng(1)
    noisy = [replace(each, total_reward=each.total_reward - rng.random()) for each in records]
    small, large = (
        of(noisy, shifted(0.0)),
        of([replace(each, total_reward=1000 * each.total_reward) for each in noisy], shifted(0.0, 1000.0)),
    )
    assert small["verdict"] == large["verdict"] == "worse"
    assert large["difference"]["low"] == pytest.approx(1000 * small["difference"]["low"])
    assert of(shifted(0.0), shifted(0.0))["difference"]["value"] == 0
    alike = [replace(each, total_reward=1.0) for each in records]
    assert of(alike, alike)["verdict"] == "unclear"


def test_a_version_that_fails_where_it_would_lose_is_worse(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wins = without(shutil.copytree(runs / "old", tmp_path / "wins"), lambda record: record["success"])
    arguments = ["bench", "compare", str(wins), str(runs / "old"), "--fail-if-worse"]
    assert main(arguments) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "has no scored episode of" in printed
    assert "lacks scored episodes: " in printed
    assert main([*arguments, "100"]) == 0
    none = without(shutil.copytree(runs / "old", tmp_path / "none"), lambda record: False)
    assert main(["bench", "compare", str(none), str(runs / "old"), "--fail-if-worse"]) == 2
    assert "have no scored episode of one level" in capsys.readouterr().err
    assert main([*arguments, "-3"]) == 2
    assert "give percentage points from 0 to 100" in capsys.readouterr().err


def test_a_narrower_run_is_compared_on_what_it_was_asked(tmp_path: Path, runs: Path) -> None:
    run_suite(SMOKE, Version("old", 0.11), tmp_path / "few", RunOptions(limit=4))
    result = compare_results(load_results(tmp_path / "few"), load_results(runs / "old"))
    assert result["unscored"] == {}
    assert worse(result) == {}


def test_junit_xml(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "compare.xml"
    arguments = ["bench", "compare", str(runs / "new"), str(runs / "old"), "--json", "--junit", str(path)]
    assert main([*arguments, "--fail-if-worse", "5"]) == 1
    result = json.loads(capsys.readouterr().out)
    [suite] = ElementTree.parse(path).getroot()
    cases = suite.findall("testcase")
    failed = {(case.get("classname"), case.get("name")): case.find("failure") for case in cases}
    assert int(suite.get("tests", "")) == len(cases) == 3 * 7 + 6
    wrong = {place: failure for place, failure in failed.items() if failure is not None}
    assert len(wrong) == int(suite.get("failures", "")) == len(result["worse"])
    assert wrong["smoke.all", "malformed"].get("message") in result["worse"]
    assert b"<failure" not in junit(compare_results(load_results(runs / "old"), load_results(runs / "new")))
    escaped = {**compare_results(load_results(runs / "new"), load_results(runs / "old")), "first": "new\x1b\x00"}
    [suite] = ElementTree.fromstring(junit(escaped))
    assert "new\N{REPLACEMENT CHARACTER}" in suite.get("name", "")
    assert main([*arguments[:-1], str(tmp_path / "no" / "folder.xml")]) == 2
