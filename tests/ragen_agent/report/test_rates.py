"""Rates and figures in words: no zero has a sign."""

from __future__ import annotations

from pathlib import Path

from ragen_agent.config import Config, merged, to_toml, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.report.rates import rates_table, sentences
from ragen_agent.report.runs import RecordedRun, SeedGroup, changed_settings, group_by_settings, load_runs
from ragen_agent.run.run_folder import RunFolder


def test_the_settings_of_the_distributed_trainer_are_listed_where_they_are_changed(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", with_settings(Config(), default_settings("FrozenLake")))
    (tmp_path / "run" / "openrlhf.toml").write_text(to_toml(OpenRLHF(zero_stage=3)))
    changed = changed_settings(group_by_settings(load_runs([tmp_path / "run"])))
    assert changed == [("backend", "openrlhf", "local"), ("openrlhf.zero_stage", "3", "2")]


def test_settings_are_compared_with_the_defaults_of_their_game(tmp_path: Path) -> None:
    settings = merged(default_settings("Bandit"), {"game": "Bandit", "training": {"iterations": 6}})
    RunFolder.create(tmp_path / "run", with_settings(Config(), settings))
    changed = changed_settings(group_by_settings(load_runs([tmp_path / "run"])))
    assert changed == [("game", "Bandit", "FrozenLake"), ("training.iterations", "6", "20")]


def test_every_game_of_a_mixture_has_its_rates() -> None:
    def rate(value: float) -> dict[str, float]:
        return {"rate": value, "low": value - 0.1, "high": value + 0.1, "n": 10}

    def run(name: str) -> RecordedRun:
        other = {"before": rate(0.3), "after": rate(0.4), "random": rate(0.2), "optimal": rate(0.8)}
        summary = {"before": rate(0.5), "after": rate(0.6), "games": {"Sokoban": other}}
        config = with_settings(Config(), {"games": [{"game": "FrozenLake"}, {"game": "Sokoban"}]})
        return RecordedRun(name, RunFolder(Path()), config, summary, [])

    alone = [SeedGroup("FrozenLake", 0, [run("run")])]
    shown = [(table["name"], [(row["name"], row["rate"]) for row in table["rows"]]) for table in rates_table(alone)]
    bounds = [("random", "20.0 %"), ("optimal", "80.0 %")]
    assert shown == [
        ("FrozenLake", [("before", "50.0 %"), ("after", "60.0 %")]),
        ("Sokoban", [("before", "30.0 %"), ("after", "40.0 %"), *bounds]),
    ]
    two = [SeedGroup(name, place, [run(name)]) for place, name in enumerate(("one", "two"))]
    names = ["one, FrozenLake", "one, Sokoban", "two, FrozenLake", "two, Sokoban"]
    assert [table["name"] for table in rates_table(two)] == names


def test_configurations_are_compared_by_the_seeds_that_both_have() -> None:
    def group(name: str, rates: dict[int, float]) -> SeedGroup:
        summaries = {s: {"after": {"rate": r, "low": r - 0.1, "high": r + 0.1, "n": 10}} for s, r in rates.items()}
        runs = [RecordedRun(name, RunFolder(Path()), Config(seed=s), each, []) for s, each in summaries.items()]
        return SeedGroup(name, 0, runs)

    first = group("first", {0: 0.25, 1: 0.5, 2: 0.75})
    one = sentences([first, group("other", {0: 0.75})])[-1]
    assert "+50.0 points, and the intervals over levels do not overlap; one seed says nothing of" in one
    none = sentences([first, group("other", {3: 0.5, 4: 0.75})])[-1]
    assert "+12.5 points, and the intervals overlap; no seed is in both, so it has no interval." in none
    equal = sentences([group("first", {0: 0.25, 1: 0.25}), group("other", {2: 0.75, 3: 0.75})])[-1]
    assert "+50.0 points, and the intervals do not overlap; no seed is in both, so it has no interval." in equal
