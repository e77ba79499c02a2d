"""The tables of experiments: each can be planned whole, and a wrong one says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from benchmarks.experiments import __main__ as program
from benchmarks.experiments.__main__ import main
from benchmarks.experiments.plan import plan, warm_starts
from benchmarks.experiments.spec import MEASURES, names, read
from ragen_agent.config import Config, to_toml


def test_an_error_of_a_game_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> None:
        raise gymnasium.error.NameNotFound("no such game")

    monkeypatch.setattr(program, "_list", broken)
    assert main(["--list"]) == 2
    assert capsys.readouterr().err == f"{program.PROGRAM}: error: no such game\n"


TABLE = """
title = "T"
question = "Q"
claim = "C"
source = "S"
evidence = "E"
limits = "L"
curves = ["success"]
columns = ["after"]

[settings]
game = "Bandit"

[[arms]]
name = "one"
about = "the first"

[[arms]]
name = "two"
about = "the second"
settings = {training = {clip = "higher"}}

[[comparisons]]
asks = "Which?"
first = "one"
second = "two"
measure = "after"
"""


@pytest.mark.parametrize("name", names())
def test_every_arm_is_a_configuration_of_its_own(name: str, tmp_path: Path) -> None:
    experiment = read(name)
    planned = plan(experiment, tmp_path, 3)
    assert (
        len(planned) == sum(min(3, arm.seeds or 3) for arm in experiment.arms) == len({run.folder for run in planned})
    )
    first = planned[: len(experiment.arms)]
    assert len({to_toml(run.config) for run in first}) == len(first), "no two arms are the same"
    assert {run.config.seed for run in planned} == {0, 1, 2}
    assert all(run.warm.config.training.iterations == 0 for run in planned)
    assert not all(arm.control for arm in experiment.arms)


@pytest.mark.parametrize("name", names())
def test_every_claim_is_looked_at_with_a_margin_of_five_points(name: str) -> None:
    experiment = read(name)
    assert len(names()) <= 9, "each a question that a reader has"
    assert experiment.evaluations > 1
    claims = [comparison for comparison in experiment.comparisons if comparison.claim]
    assert claims
    for claim in claims:
        assert len(claim.looks) > 1
        assert claim.margin == 0.05
        assert MEASURES[claim.measure].rate, "a margin in points is one of shares"
    used = {arm for each in experiment.comparisons for arm in each.arms}
    compared = {arm.name for arm in experiment.arms if arm.seeds is None}
    assert compared == used, "an arm that nothing is compared with is redundant, but for one that is only described"


def test_experiments_share_the_warm_starts_of_equal_settings(tmp_path: Path) -> None:
    named = {"interventions": ["slip 0, all"], "echo-trap": []}
    warm = warm_starts([run for name, arms in named.items() for run in plan(read(name), tmp_path / name, 2, only=arms)])
    assert len(warm) == 2, "one for each seed"
    assert {each.folder.parent for each in warm} == {tmp_path / "warm"}


@pytest.mark.parametrize(("name", "games"), [("stabilisers", 2), ("uncertainty-filter", 2), ("paper-vagen", 1)])
def test_arms_of_a_game_differ_in_nothing_before_reinforcement(name: str, games: int, tmp_path: Path) -> None:
    assert len(warm_starts(plan(read(name), tmp_path, 1))) == games


def test_runs_that_differ_before_their_reinforcement_share_nothing(tmp_path: Path) -> None:
    warm = {run.arm.name: run.warm.folder for run in plan(read("thinking"), tmp_path, 1)}
    assert warm["Bandit, thinking"] != warm["Bandit, none"]


def test_quick_makes_everything_small(tmp_path: Path) -> None:
    quick = plan(read("echo-trap"), tmp_path, 1, quick=True)
    assert {run.config.training.iterations for run in quick} == {3} != {Config().training.iterations}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('measure = "after"', 'measure = "luck"'), "measure = 'luck': .*not a measure; give one of end, after"),
        (('second = "two"', 'beside = ["one", "two"]'), "and beside only with second"),
        (('first = "one"', 'first = ""'), "give first or foretold_by"),
        (('first = "one"', 'first = "one"\nwithout = ["none"]'), "compares 'none'"),
        (('second = "two"', 'second = "three"'), "compares 'three'; its arms are one, two"),
        (('name = "two"', 'name = "one"'), "several arms of the name one"),
        (('curves = ["success"]', 'curves = ["joy"]'), "curves.0 = 'joy': .*not a curve; give one of success"),
        (('title = "T"', 'titel = "T"'), "title = .*: Field required; titel = 'T': Unexpected"),
        (('limits = "L"', 'limits = "L"\nlooks = [1]'), "looks.0 = 1: Input should be greater than or equal to 2"),
        (('limits = "L"', 'limits = "L"\nlooks = [4, 2]'), "give rising numbers of seeds"),
        (('limits = "L"', 'limits = "L"\nmargin = "5"'), "not the table of an experiment: .*unsupported"),
        (('asks = "Which?"', 'asks = "Which?"\nmargin = 5'), "multiple values for keyword argument 'margin'"),
        (('asks = "Which?"', 'asks = "Which?"\nclaim = "better"'), "claim = 'better': Input should be '', 'higher'"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TABLE, encoding="utf-8")
    assert [arm.name for arm in read(str(tmp_path / "mine.toml")).arms] == ["one", "two"]
    (tmp_path / "mine.toml").write_text(TABLE.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "mine.toml"))


def test_a_table_of_ones_own_is_read_from_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, taken = tmp_path / "mine.toml", tmp_path / "thinking.toml"
    for path in (mine, taken):
        path.write_text(TABLE, encoding="utf-8")
    assert read(str(mine)).name == "mine"
    assert main([str(mine), "--dry-run", "--out", str(tmp_path / "runs")]) == 0
    assert "6 runs, without the 0 that are there" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"thinking\.toml is called like an experiment of the repository.*rename it"):
        read(str(taken))
    with pytest.raises(ValueError, match=r"no experiment '.*other\.toml': give the path of a table"):
        read(str(tmp_path / "other.toml"))


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no experiment 'echo-trip'.*Did you mean echo-trap\?"):
        read("echo-trip")
    with pytest.raises(ValueError, match=r"echo-trap has no arm 'cold'\. Its arms are 'hot vanilla'; "):
        plan(read("echo-trap"), tmp_path, 1, only=["cold"])
