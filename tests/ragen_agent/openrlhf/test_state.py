"""Where a run stands after an interruption, and what the distributed trainer refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.openrlhf import OpenRLHF, Workers
from ragen_agent.openrlhf.state import State, check_possible, mend, planned_updates
from ragen_agent.training.run_folder import RunFolder


def workers(settings: dict[str, Any]) -> Workers:
    return Workers(with_settings(Config(), settings), OpenRLHF(), "", (), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training": {"replay": 2}}, "training.replay is 2, which the distributed trainer does not have; use 0"),
        ({"training": {"aggregation": "constant"}}, "'constant', which .*; use token_mean or sequence_mean, or the lo"),
        (
            {"turns": {"history": 0}, "training": {"algo": "ppo"}},
            "turns.history is 0, which .*; use -1, or the local trainer",
        ),
        (
            {
                "games": [{"game": "FrozenLake"}, {"game": "Bandit", "turns": {"history": 2}}],
                "training": {"algo": "ppo"},
            },
            "turns.history is 2, which",
        ),
        (
            {"stops": {"return_std_patience": 3}},
            "stops.return_std_patience is 3, which the distributed trainer does not have",
        ),
        ({"diagnostics": {"information_every": 5}}, "diagnostics.information_every is 5, which the distributed"),
        ({"training": {"minibatch": 12}}, "training.minibatch is 12; it must be a multiple of openrlhf.micro_batch=8"),
    ],
)
def test_what_the_distributed_trainer_does_not_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_possible(workers(settings))


def test_the_default_run_is_possible_and_counts_its_updates_after_the_filter() -> None:
    check_possible(workers({}))
    training = {"iterations": 10, "groups": 8, "group_size": 16, "keep": 0.25, "minibatch": 32, "updates": 3}
    assert planned_updates(workers({"training": training})) == 10 * 3 * (2 * 16 // 32)
    assert planned_updates(workers({"training": {**training, "filter": "none"}})) == 10 * 3 * (8 * 16 // 32)
    assert planned_updates(workers({"training": {**training, "minibatch": 24}})) == 10 * 3 * 2


def test_what_was_not_saved_whole_is_dropped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.append(folder.metrics, [{"iteration": i} for i in range(5)])
    folder.append(folder.episodes, [{"phase": "before"}, *({"phase": "train", "iteration": i} for i in range(5))])
    folder.append(folder.episodes, [{"phase": "after"}])
    folder.write_summary({"before": {}, "after": {}})
    for part in ("_actor", "_critic"):
        for iteration in (2, 4):
            (folder.path / "deepspeed" / part / f"iteration{iteration}").mkdir(parents=True)
        (folder.path / "deepspeed" / part / "latest").write_text("iteration4")
    (folder.path / "checkpoint.new").mkdir()
    State(2, "iteration2", 1).write(folder.path)
    assert mend(folder) == State(2, "iteration2", 1)
    assert [json.loads(line)["iteration"] for line in folder.metrics.read_text().splitlines()] == [0, 1]
    episodes = [json.loads(line) for line in folder.episodes.read_text().splitlines()]
    assert episodes == [{"phase": "before"}, *({"phase": "train", "iteration": i} for i in range(2))]
    assert set(folder.read_summary()) == {"before"}, (
        "what was measured after is measured again: its model was not saved"
    )
    assert not (folder.path / "checkpoint.new").exists()
    for part in ("_actor", "_critic"):
        assert (folder.path / "deepspeed" / part / "latest").read_text() == "iteration2"
        assert not (folder.path / "deepspeed" / part / "iteration4").exists()


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.checkpoint.mkdir()
    folder.append(folder.episodes, [{"phase": "after"}])
    folder.write_summary({"after": {}})
    mend(folder)
    assert set(folder.read_summary()) == {"after"}
    assert len(folder.episodes.read_text().splitlines()) == 1
