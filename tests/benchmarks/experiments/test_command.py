"""An experiment as a user runs it: for real on tiny runs, killed on the way, gone on with, and written up."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments import __main__ as program
from benchmarks.experiments.__main__ import main
from benchmarks.experiments.hypothesis_tests import compare
from benchmarks.experiments.plan import plan
from benchmarks.experiments.records import RECORDS, complete_runs, missing_runs, write_records
from benchmarks.experiments.spec import Comparison, Experiment, measure, read
from ragen_agent.config import merged, to_toml
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

pytestmark = pytest.mark.slow  # a real experiment, with processes of its own

ARMS = ["--only", "Bandit, none", "--only", "BanditRev, none"]
CLOCKS = ("seconds", "seconds_rollout", "tokens_per_s", "diagnostics_s")


def command(out: Path, *more: str) -> list[str]:
    return ["thinking", "--quick", "--seeds", "2", *ARMS, "--out", str(out), *more]


def curves(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.parent.name: [{k: v for k, v in record.items() if k not in CLOCKS} for record in read_json_lines(path)]
        for path in sorted((out / "thinking" / "runs").glob("*/metrics.jsonl"))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment, run without a break."""
    out = tmp_path_factory.mktemp("whole")
    assert main(command(out, "--jobs", "2")) == 0
    return out


def test_it_leaves_a_page_figures_and_records(whole: Path) -> None:
    folder = whole / "thinking"
    assert main(command(whole, "--write")) == 0
    planned = plan(read("thinking"), folder, 2, only=[ARMS[1], ARMS[3]], quick=True)
    runs = complete_runs(planned, folder)
    assert {arm: list(seeds) for arm, seeds in runs.items()} == {ARMS[1]: [0, 1], ARMS[3]: [0, 1]}
    summary = json.loads((folder / "runs" / "Bandit-none-seed0" / "summary.json").read_text(encoding="utf-8"))
    last = [summary[name]["rate"] for name in ("after", "end_1", "end_2")]
    assert measure(runs[ARMS[1]][0], "end") == pytest.approx(sum(last) / 3), "all three policies are measured"
    page = (folder / "thinking.md").read_text(encoding="utf-8")
    assert "evidence of nothing" in page
    assert "4 of 12 runs are complete" in page, "a page is of all arms"
    for picture in ("end.png", "curves.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in page


def test_a_killed_experiment_goes_on_to_the_same_curves(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.experiments", *command(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("thinking/runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    planned = plan(read("thinking"), out / "thinking", 2, only=[ARMS[1], ARMS[3]], quick=True)
    assert 0 < len(missing_runs(planned, tmp_path)) <= 4
    time.sleep(1)  # its workers see that it is gone
    assert main(command(out)) == 0
    assert missing_runs(planned, tmp_path) == []
    assert curves(out) == curves(whole)


def test_runs_of_other_settings_are_not_taken_for_those_asked_for(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = read("thinking")
    other = replace(table, settings=merged(table.settings, {"training": {"learning_rate": 7e-3}}))
    monkeypatch.setattr(program, "read", lambda name: other)
    assert main(command(whole)) == 2
    assert "runs.jsonl.gz holds Bandit-none-seed0 with other settings than are asked for now" in capsys.readouterr().err
    assert main(command(whole, "--pages", str(tmp_path))) == 2
    assert "was made with other settings than are asked for now" in capsys.readouterr().err


def test_a_page_is_of_all_seeds_that_are_there(whole: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    one = ["--quick", "--seeds", "1", "--only", ARMS[1], "--out", str(whole), "--pages", str(pages)]
    assert main(["thinking", *one]) == 0
    written = [gzip.decompress((folder / "thinking" / RECORDS).read_bytes()) for folder in (whole, pages)]
    assert written[0] == written[1]


def test_recorded_runs_are_not_played_again(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On another machine there is the page's folder alone."""
    pages, out = tmp_path / "pages", tmp_path / "out"
    shutil.copytree(whole / "thinking", pages / "thinking", ignore=shutil.ignore_patterns("runs"))
    (pages / "thinking" / "end.png").unlink()
    written = {path.name: path.read_bytes() for path in (whole / "thinking").iterdir() if path.is_file()}
    capsys.readouterr()
    assert main([*command(out), "--pages", str(pages)]) == 0
    assert "4 runs, 4 complete, 0 to play" in capsys.readouterr().err
    assert not out.exists()
    found = {path.name: path.read_bytes() for path in (pages / "thinking").iterdir()}
    assert found == written, "a page follows from the records alone"


def test_a_dry_run_is_of_what_is_left(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither whole runs nor recorded ones are played again."""
    for out in (whole, tmp_path):
        assert main(command(out, "--dry-run", "--pages", str(whole))) == 0
        assert "0 runs, without the 4 that are there." in capsys.readouterr().out
    more = ["thinking", "--quick", "--seeds", "3", *ARMS, "--out", str(tmp_path), "--pages", str(whole)]
    assert main([*more, "--dry-run"]) == 0
    assert re.search(r"Bandit, none .* 1 +\d+\.\d", capsys.readouterr().out), "with what its other seeds took"
    assert list(tmp_path.iterdir()) == [], "nothing was run"


def test_a_record_counts_for_its_settings_alone(whole: Path, tmp_path: Path) -> None:
    def left(*lines: str) -> int:
        (tmp_path / RECORDS).write_bytes(gzip.compress("".join(lines).encode()))
        planned = plan(read("thinking"), tmp_path / "none", 2, only=[ARMS[1], ARMS[3]], quick=True)
        return len(missing_runs(planned, tmp_path))

    first, *runs = gzip.decompress((whole / "thinking" / RECORDS).read_bytes()).decode().splitlines(keepends=True)
    assert left(first, *runs) == 0
    assert left(first, *runs[1:]) == 1
    common = json.loads(first)["settings"]

    def changed(**settings: Any) -> str:
        return json.dumps({"settings": {**common, **settings}}) + "\n"

    assert left(changed(gone=1), *runs) == 0, "a setting that is gone and equal in all runs"
    without = {name: value for name, value in common.items() if name != "training.overlong_buffer"}
    assert left(json.dumps({"settings": without}) + "\n", *runs) == 0, "it came later, and has its default"
    del without["training.iterations"]
    own = json.loads(runs[1])
    own["settings"]["gone"] = 1
    for wrong in (
        [changed(**{"training.learning_rate": 7e-3}), *runs],
        [json.dumps({"settings": without}) + "\n", *runs],
        [first, runs[0], json.dumps(own) + "\n", *runs[2:]],
    ):
        with pytest.raises(ValueError, match="with other settings than are asked for now"):
            left(*wrong)


def test_mistakes_are_told_before_anything_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for words, said in (
        (["--pages", str(file)], "is a file; give a folder"),
        (["--only", "Bandt, none"], "Did you mean Bandit, none?"),
        (["--write"], "there are no complete runs of thinking"),
        (["--jobs", "0"], "--jobs is 0; it must be at least 1."),
        (["--seeds", "0"], "--seeds is 0; it must be at least 1."),
    ):
        assert main(["thinking", "--quick", "--out", str(tmp_path / "out"), *words]) == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [broken, _] = plan(read("thinking"), tmp_path / "thinking", 2, only=[ARMS[1]], quick=True)
    broken.folder.mkdir(parents=True)
    (broken.folder / "config.toml").write_text(to_toml(broken.config), encoding="utf-8")
    (broken.folder / "metrics.jsonl").write_text("not JSON\n\n", encoding="utf-8")
    arguments = ["thinking", "--quick", "--seeds", "2", "--only", ARMS[1], "--out", str(tmp_path)]
    assert main(arguments) == 1
    page = (tmp_path / "thinking" / "thinking.md").read_text(encoding="utf-8")
    assert "1 of 12 runs are complete" in page
    assert "is not JSON" in page
    assert "Bandit-none-seed0" in capsys.readouterr().err


def tiny(comparison: Comparison) -> Experiment:
    """Two arms with the smallest runs, and the looks of their comparison."""
    table = read("thinking")
    small = {
        "training": {"iterations": 1, "groups": 2, "group_size": 2, "minibatch": 4},
        "demonstrations": {"episodes": 4},
        "evaluation": {"levels": 4},
    }
    arms = tuple(arm for arm in table.arms if arm.name in (ARMS[1], ARMS[3]))
    settings = merged(table.settings, small)
    return replace(table, arms=arms, comparisons=(comparison,), looks=comparison.looks, settings=settings)


def test_arms_with_an_open_claim_get_more_seeds_look_by_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    never = Comparison(ARMS[1], "after", "Is it higher than itself?", ARMS[1], "higher", looks=(2, 3))
    looked_at = tiny(never)
    monkeypatch.setattr(program, "read", lambda name: looked_at)
    asked = ["thinking", "--out", str(tmp_path)]
    assert main(asked) == 0
    assert "after 2 seeds 1 arms get more: Bandit, none" in capsys.readouterr().err
    names = sorted(path.name for path in (tmp_path / "thinking" / "runs").iterdir())
    assert names == [*(f"Bandit-none-seed{n}" for n in range(3)), *(f"BanditRev-none-seed{n}" for n in range(2))]
    page = (tmp_path / "thinking" / "thinking.md").read_text(encoding="utf-8")
    assert "All 5 runs are complete" in page
    assert "| 3 | 1.000 | **open**: an interval without width, from which nothing is concluded |" in page
    assert "CPUs" not in page
    file = tmp_path / "thinking" / "runs" / "Bandit-none-seed1" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"gpu": "NVIDIA H100"}))
    assert main([*asked, "--write"]) == 0
    page = (tmp_path / "thinking" / "thinking.md").read_text(encoding="utf-8")
    assert "All 5 runs are complete. Runs on CPUs: 4, on NVIDIA H100: 1." in page


def test_a_claim_that_the_correction_leaves_open_gets_more_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arms differ at the first look, but not after the correction for the tests of ``claims.md``."""
    claim = Comparison(ARMS[1], "after", "Is it higher?", ARMS[3], "higher", looks=(4, 5))
    looked_at = tiny(claim)
    ends = {ARMS[1]: (0.5, 0.7, 0.7, 0.9), ARMS[3]: (0.2, 0.3, 0.45, 0.2)}
    runs = {arm: dict[int, RecordedRun]() for arm in ends}
    planned = plan(looked_at, tmp_path / "thinking", 4)
    for run in planned:
        rates = {"before": 0.3, "random": 0.25, "optimal": 1.0, "after": ends[run.arm.name][run.config.seed]}
        summary = {name: {"rate": rate, "n": 4} for name, rate in rates.items()} | {"finished": True}
        runs[run.arm.name][run.config.seed] = RecordedRun(run.name, RunFolder(run.folder), run.config, summary, [])
    (tmp_path / "thinking").mkdir()
    write_records(planned, runs, (), tmp_path / "thinking")
    assert compare(runs, claim).verdict == "supported"
    monkeypatch.setattr(program, "read", lambda name: looked_at)
    assert main(["thinking", "--out", str(tmp_path)]) == 0
    assert "after 4 seeds 2 arms get more" in capsys.readouterr().err
    page = (tmp_path / "thinking" / "thinking.md").read_text(encoding="utf-8")
    assert "All 10 runs are complete" in page


def test_the_list_names_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "echo-trap" in capsys.readouterr().out


def test_the_page_over_all_experiments(whole: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    written = ["--quick", "--seeds", "2", "--write", "--out", str(whole), "--pages", str(pages)]
    assert main(["all", *written]) == 0
    page = (pages / "README.md").read_text(encoding="utf-8")
    assert "](thinking/thinking.md)" in page
    assert re.match(r"# .*\n\n1\. \*\*\d of \d+ claims are decided\*\*.*\n2\. .*\n3\. .*\n4\. .*\n5\. .*\n\n", page)
    assert (pages / "thinking" / "end.png").is_file()
    assert "evidence of nothing" in (pages / "thinking" / "thinking.md").read_text(encoding="utf-8")
