"""The prompt dataset: which levels a run plays, and with which luck."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local.backend import RolloutWorker
from ragen_agent.openrlhf.prompt_dataset import (
    PromptRow,
    env_of,
    evaluation_rows,
    families_of_rows,
    rows_of_iteration,
    train_rows,
    write_rows,
)
from ragen_agent.run.evaluation import fixed_instances
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_env
from ragen_gym.core.storage import read_json_lines

CONFIG = with_settings(
    Config(),
    merged(
        default_settings("FrozenLake"),
        {
            "game": "FrozenLake",
            "small_model": {"hidden": 32, "layers": 1, "feed_forward": 32},
            "training": {"iterations": 5, "groups": 6, "group_size": 2},
            "evaluation": {"levels": 12},
        },
    ),
)


def test_rows_survive_the_file_and_say_what_they_are(tmp_path: Path) -> None:
    rows = list(train_rows(CONFIG))
    write_rows(tmp_path / "prompts.jsonl", iter(rows))
    assert [PromptRow.from_label(line["label"]) for line in read_json_lines(tmp_path / "prompts.jsonl")] == rows
    assert [(row.iteration, row.prompt) for row in rows] == [(i, p) for i in range(5) for p in range(6)]
    with pytest.raises(ValueError, match="is not a row of a prompt dataset"):
        PromptRow.from_label('{"seed": 3}')


def test_the_rows_of_further_rounds_are_the_levels_of_the_local_trainer() -> None:
    """Dynamic sampling: each round has levels, noise and sampling of its own, and both trainers the same levels."""
    rows = list(train_rows(CONFIG))[6:12]
    worker = RolloutWorker(CONFIG, Policy.build(CONFIG))
    for refill in (0, 1, 2):
        more = list(rows_of_iteration(CONFIG, 1, 4, refill))
        assert [row.seed for row in more] == [i.seed for i in worker.instances(1, 4, refill)][::2]
        if refill:
            rows += more
        else:
            assert more == rows[:4]
    assert len({row.seed for row in rows}) == len({row.prompt for row in rows}) == len(rows) == 14
    assert len({row.noise(0, 1) for row in rows}) == len({row.request(0, 1, 0) for row in rows}) == 14


def test_levels_are_fresh_and_of_the_training_split_only() -> None:
    rows = list(train_rows(CONFIG))
    assert {row.split for row in rows} == {"train"}
    assert len({row.seed for row in rows}) == len(rows)
    held_out = {env_of(row, CONFIG).reset(seed=row.seed)[1]["level_id"] for row in evaluation_rows(CONFIG)}
    trained = {env_of(row, CONFIG).reset(seed=row.seed)[1]["level_id"] for row in rows}
    assert len(held_out) == 12
    assert not trained & held_out
    assert not families_of_rows(rows, CONFIG) & families_of_rows(evaluation_rows(CONFIG), CONFIG)


def test_both_trainers_meet_the_same_levels() -> None:
    worker = RolloutWorker(CONFIG, Policy.build(CONFIG))
    local = worker.play(2, worker.instances(2))
    rows = [row for row in train_rows(CONFIG) if row.iteration == 2]
    assert [t.seed for t in local.trajectories[::2]] == [row.seed for row in rows]
    assert families_of_rows(rows, CONFIG) == local.families
    assert len(local.families) == 6
    fixed = fixed_instances(make_env(CONFIG, "test"), 12)
    assert [(row.seed, row.noise(9, 0)) for row in evaluation_rows(CONFIG)] == [(i.seed, i.noise_seed) for i in fixed]


def test_every_member_has_its_own_luck_and_every_reply_its_own_seed() -> None:
    rows = list(train_rows(CONFIG))
    luck = {row.noise(seed, member) for seed in (0, 1) for row in rows for member in range(4)}
    assert len(luck) == 2 * len(rows) * 4
    assert {row.noise(seed, member, True) for seed in (0, 1) for row in rows[:1] for member in range(4)} == {
        rows[0].seed
    }
    asked = {row.request(0, member, turn) for row in rows for member in range(4) for turn in range(3)}
    assert len(asked) == len(rows) * 12
    assert luck.isdisjoint(asked)
    again = list(train_rows(CONFIG))
    assert [row.noise(0, 1) for row in again] == [row.noise(0, 1) for row in rows]
    fixed = evaluation_rows(CONFIG)[3]
    assert fixed.request(0, 0, 1) == fixed.request(7, 0, 1), "evaluation is sampled alike for every run"


def test_games_are_drawn_by_weight_and_options_follow_the_curriculum() -> None:
    games = [{"game": "FrozenLake", "weight": 3.0}, {"game": "Bandit", "turns": {"max_turns": 1}}]
    mixed = list(train_rows(with_settings(CONFIG, {"games": games, "training": {"iterations": 40}})))
    share = sum(row.game == "Bandit" for row in mixed) / len(mixed)
    assert 0.15 < share < 0.35
    bandit = next(row for row in mixed if row.game == "Bandit")
    assert bandit.env_options == {}
    assert env_of(bandit, CONFIG).max_turns == 1
    stages = [{"iteration": 3, "env_options": {"size": 5}}]
    grown = list(train_rows(with_settings(CONFIG, {"curriculum": stages})))
    assert [row.env_options["size"] for row in grown[::6]] == [4, 4, 4, 5, 5]


def test_a_row_imports_no_module_that_the_settings_do_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    row = replace(next(train_rows(CONFIG)), game="theirs:Game")
    with pytest.raises(ValueError, match="plays theirs:Game, a game of a module that the run's settings do not name"):
        env_of(row, CONFIG)
    assert "theirs" not in sys.modules
