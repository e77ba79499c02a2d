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
    assert "the rollouts alone lose it" not in text
    assert "in 1 of 2 runs without that loss, all three of the paper's in 0, and before 1 of 1 with it. 1 more" in text
    assert "50 iterations minus success in the 50 before is on average +0.0 points (+0.0 to +0.0)." in text
    row = "| long, seed 1 | 5.0 % | 42.0 % (40) | 25.0 % | 25.0 % | 40.5 % | 0.5, 0.04, 0.04 | 0.4, 0.4, 0.4 | 1, 1, 1 "
    assert f"{row}| 41 | entropy fall (37) |" in "\n".join(lines)
    assert not pictures


def test_a_loss_in_the_rollouts_alone_is_said() -> None:
    """A third below their best for 200 iterations, where the last policy is not as low on the fixed levels."""
    entropy, return_std, grad_norm = [0.5] * 35 + [0.04] * 205, [0.4] * 35 + [0.01] * 205, [1.0] * 239 + [99.0]
    near = run(0.3, [*UP, *[0.25] * 200], start=0.05, entropy=entropy, return_std=return_std, grad_norm=grad_norm)
    falling = run(0.4, [*UP, *[0.45] * 150, *[0.35] * 50], start=0.05)
    text = " ".join(section(Path(), {"long": {0: near, 1: falling}})[0])
    assert "is lost for good in 0 of them**" in text
    assert (
        "In 1 more the rollouts alone lose it (long, seed 0: its last policy solves 30.0 % of the fixed levels, two "
        "thirds of its best are 28.0 %). With it shares up to 97.5 % are not excluded." in text
    )
    assert "show in 1 of 2 runs without that loss, all three of the paper's in 1." in text
    assert "in the 50 before is on average \N{MINUS SIGN}5.0 points (\N{MINUS SIGN}68.5 to +58.5)." in text


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
