"""Falls of long runs and the signs before them, on histories made by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.experiments.echo_trap_page import section
from benchmarks.experiments.pages import _page
from benchmarks.experiments.plan import plan
from benchmarks.experiments.spec import read
from tests.benchmarks.experiments.test_hypothesis_tests import run

UP = [0.05 + 0.01 * step for step in range(40)]


def test_falls_and_signs_of_long_runs() -> None:
    steady = run(0.4, [*UP, *[0.45] * 200], start=0.05)
    fallen = run(0.25, [*UP, *[0.25] * 200], start=0.05, entropy=[0.5] * 35 + [0.04] * 205)
    late = run(0.4, [*UP, *[0.45] * 200], start=0.05, grad_norm=[1.0] * 239 + [9.0])
    flat = run(0.1, [0.1] * 240, start=0.05)
    lines, pictures = section(Path(), {"long": {0: steady, 1: fallen, 2: late, 3: flat}, "short": {0: run(0.4, UP)}})
    text = " ".join(lines)
    assert "**3 runs of 200 iterations or more rise 20 points above their start." in text
    assert "is lost for good in 1 of them**, half of it in 0. Shares of such runs up to 86.5 %" in text
    assert "Signs of the alarm show in 1 of 2 runs without that loss, and before 1 of 1 with it. 1 more runs do" in text
    row = "| long, seed 1 | 5.0 % | 42.0 % (40) | 25.0 % | 25.0 % | 40.5 % | 0.5, 0.04, 0.04 | 0.4, 0.4, 0.4 | 1, 1, 1 "
    assert f"{row}| 41 | entropy fall (37) |" in "\n".join(lines)
    assert not pictures


def test_a_page_without_long_runs_has_no_such_part() -> None:
    assert section(Path(), {"short": {0: run(0.4, UP, start=0.05)}}) == ([], [])


def test_missing_runs_of_an_arm_that_is_only_described_change_no_conclusion(tmp_path: Path) -> None:
    experiment = read("echo-trap")
    planned = plan(experiment, tmp_path, 1)
    runs = {each.arm.name: {0: run(0.4, UP)} for each in planned if each.arm.seeds is None}
    said = f"{len(runs)} of {len(planned)} runs are complete: no comparison rests on the others (long vanilla: 1)."
    assert said in _page(experiment, runs, [], {}, planned, [], [], "")
    del runs["vanilla"]
    assert "runs are complete: the conclusions may change." in _page(experiment, runs, [], {}, planned, [], [], "")
