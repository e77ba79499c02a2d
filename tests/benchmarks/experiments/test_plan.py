"""The tables of experiments: each can be planned whole, and a wrong one says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.plan import plan, warm_starts
from benchmarks.experiments.spec import MEASURES, TABLES, names, read
from ragen_agent.config import Config, to_toml

SMALL = [name for name in names() if not name.endswith("-smollm2")]

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
    assert len(planned) == 3 * len(experiment.arms) == len({run.folder for run in planned})
    first = planned[: len(experiment.arms)]
    assert len({to_toml(run.config) for run in first}) == len(first), "no two arms are the same"
    assert {run.config.seed for run in planned} == {0, 1, 2}
    assert all(run.warm.config.training.iterations == 0 for run in planned)
    assert not all(arm.control for arm in experiment.arms)


@pytest.mark.parametrize("name", SMALL)
def test_every_claim_is_looked_at_with_a_margin_of_five_points(name: str) -> None:
    experiment = read(name)
    assert experiment.evaluations > 1
    claims = [comparison for comparison in experiment.comparisons if comparison.claim]
    assert claims
    for claim in claims:
        assert len(claim.looks) > 1
        assert claim.margin == 0.05
        assert MEASURES[claim.measure].rate, "a margin in points is one of shares"
    used = {arm for each in experiment.comparisons for arm in (each.first, each.second)}
    assert {arm.name for arm in experiment.arms} <= used, "an arm that nothing is compared with is redundant"


def test_experiments_share_the_warm_starts_of_equal_settings(tmp_path: Path) -> None:
    named = ("uncertainty-filter", "diversity", "freshness", "echo-trap", "advantages")
    warm = warm_starts([run for name in named for run in plan(read(name), tmp_path / name, 2)])
    assert len(warm) == 2, "one for each seed"
    assert {each.folder.parent for each in warm} == {tmp_path / "warm"}


def test_arms_of_a_paper_game_differ_in_nothing_before_reinforcement(tmp_path: Path) -> None:
    for game in ("bandit", "banditrev", "frozenlake", "sokoban"):
        planned = plan(read(f"paper-{game}"), tmp_path / game, 1)
        assert len(warm_starts(planned)) == 1
        kinds = {(run.config.training.critic, run.config.training.starpo_s) for run in planned}
        assert kinds == {(critic, starpo_s) for critic in (False, True) for starpo_s in (False, True)}


def test_rewards_for_the_state_change_nothing_before_reinforcement(tmp_path: Path) -> None:
    planned = plan(read("rewards"), tmp_path, 1)
    assert len(warm_starts(planned)) == 2, "with a description of the board and without one"
    assert {run.config.turns.state_reward for run in planned} == {0.0, 1.0}
    assert {run.warm.config.turns.state_reward for run in planned} == {0.0}


def test_groups_are_compared_at_equal_numbers_of_sampled_tokens(tmp_path: Path) -> None:
    planned = plan(read("groups"), tmp_path, 1)
    assert len(warm_starts(planned)) == 2, "one for each game"
    for game in ("FrozenLake", "Sokoban"):
        configs = [run.config for run in planned if run.config.game == game]
        assert len({config.stops.sampled_tokens for config in configs}) == 1
        assert all(config.stops.sampled_tokens > 0 for config in configs)
        assert [config.training.groups_by for config in configs] == ["level", "state", "branch", "branch"]


def test_a_sweep_is_every_method_at_every_rate_in_every_game(tmp_path: Path) -> None:
    experiment = read("stabilisers")
    sweep = experiment.sweep
    assert sweep is not None
    planned = plan(experiment, tmp_path, 1)
    assert len(planned) == len(sweep.panels) * len(sweep.lines) * 3 == 3 * 11 * 3
    assert len(warm_starts(planned)) == 3, "one for each game: no method changes what comes before"
    configs = {run.arm.name: run.config for run in planned}
    rates = [configs[f"Sokoban, CISPO, x{factor}"].training.learning_rate for factor in (1, 3, 10)]
    assert rates == pytest.approx([2e-4, 6e-4, 2e-3])
    assert configs["Bandit, CISPO, x3"].training.policy_loss == "cispo"
    assert {run.arm.name for run in planned if run.arm.control} == {
        f"{panel['name']}, random half, x{factor}" for panel in sweep.panels for factor in (1, 3, 10)
    }
    asked = [each.asks for each in experiment.comparisons if each.first == "Bandit, SAPO, x10"]
    assert asked[0] == "Bandit: does SAPO end higher at ten times the usual rate?"
    assert not any(each.first == each.second for each in experiment.comparisons)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("group_size = 8, learning_rate = 5e-4", "group_size = 8"), "not the table of an .*'learning_rate'"),
        (("factors", "factor"), "not the table of an experiment: .*'factor'"),
        (('against = "PPO"', 'against = "POP"'), "compares 'FrozenLake, POP, x1'; its arms are FrozenLake, PPO, x1"),
    ],
)
def test_a_wrong_sweep_says_what_is_wrong(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    text = (TABLES / "stabilisers.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text.replace(*change, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "mine.toml"))


def test_runs_that_differ_before_their_reinforcement_share_nothing(tmp_path: Path) -> None:
    thinking = plan(read("thinking"), tmp_path, 1)
    warm = {run.arm.name: run.warm.folder for run in thinking}
    assert warm["Bandit, thinking"] != warm["Bandit, none"]
    trap = plan(read("echo-trap"), tmp_path, 2)
    assert len(warm_starts(trap)) == 2, "one for each seed"


def test_quick_makes_everything_small_and_settings_lie_over_every_arm(tmp_path: Path) -> None:
    quick = plan(read("echo-trap"), tmp_path, 1, quick=True)
    assert {run.config.training.iterations for run in quick} == {3}
    over = plan(read("echo-trap"), tmp_path, 1, overrides={"training": {"iterations": 7}})
    assert {run.config.training.iterations for run in over} == {7}
    assert Config().training.iterations not in (3, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('measure = "after"', 'measure = "luck"'), "measure = 'luck': .*not a measure; give one of end, after"),
        (('second = "two"', 'second = "three"'), "compares 'three'; its arms are one, two"),
        (('name = "two"', 'name = "one"'), "several arms of the name one"),
        (('curves = ["success"]', 'curves = ["joy"]'), "curves.0 = 'joy': .*not a curve; give one of success"),
        (('title = "T"', 'titel = "T"'), "title = .*: Field required; titel = 'T': Unexpected"),
        (('limits = "L"', 'limits = "L"\nlooks = 8'), "looks = 8: Input should be a valid tuple"),
        (('limits = "L"', 'limits = "L"\nlooks = [1]'), "looks.0 = 1: Input should be greater than or equal to 2"),
        (('limits = "L"', 'limits = "L"\nlooks = [4, 2]'), "give rising numbers of seeds"),
        (('limits = "L"', 'limits = "L"\nmargin = "5"'), "not the table of an experiment: .*unsupported"),
        (('asks = "Which?"', 'asks = "Which?"\nmargin = 5'), "multiple values for keyword argument 'margin'"),
        (('settings = {training = {clip = "higher"}}', 'settings = "higher"'), "settings = 'higher': Input should be"),
        (('limits = "L"', 'limits = "L"\nevaluations = 0'), "evaluations = 0: Input should be greater than or equal"),
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
