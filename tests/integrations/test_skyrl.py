"""The exported environment in the real SkyRL-gym: made by its name, one episode, many at once."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS
from tests.integrations import library
from tests.integrations.library import REPLIES, export, install, needs, options

needs("skyrl", "skyrl_gym")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(tmp_path_factory.mktemp("skyrl") / "package", "skyrl", *options(OPTIONS))
    variables = install(folder, folder.parent / "site")
    sys.path.insert(0, variables["PYTHONPATH"].partition(os.pathsep)[0])
    import_module("ragen_frozen_lake")  # registers it
    return folder


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    lines = (folder / "data" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def play(row: dict[str, Any], **extras: Any) -> tuple[float, dict[str, Any], dict[str, Any]]:
    import skyrl_gym

    extras = {**{name: value for name, value in row.items() if name != "prompt"}, **extras}
    env = skyrl_gym.make(row["env_class"], env_config={}, extras=extras)
    conversation, info = env.init(row["prompt"])
    assert conversation == row["prompt"]
    total, done, turn = 0.0, False, 0
    while not done:
        step = env.step(REPLIES[turn])
        total, done, turn = total + step["reward"], step["done"], turn + 1
        assert [message["role"] for message in step["observations"]] == ([] if done else ["user"])
    metrics = env.get_metrics()
    env.close()
    return total, info, metrics


def test_an_episode_of_a_row_is_the_games(folder: Path) -> None:
    row = rows_of(folder, "test")[2]
    total, info, metrics = play(row)
    rollout = library.played(row["seed"], info["noise_seed"], split="test", **OPTIONS)
    assert total == pytest.approx(rollout.total)
    assert metrics == rollout.metrics()
    assert set(metrics) == set(METRICS)
    assert play(row, noise_seed=info["noise_seed"])[0] == pytest.approx(total)


def test_a_group_meets_one_level_with_other_noise_many_at_once(folder: Path) -> None:
    row = rows_of(folder, "train")[0]
    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, [row] * 64))
    assert {info["level_id"] for _, info, _ in played} == {row["level_id"]}
    assert len({info["noise_seed"] for _, info, _ in played}) == 64


def test_splits_share_no_level_and_other_options_are_refused(folder: Path) -> None:
    import skyrl_gym

    train, test = ({row["level_id"] for row in rows_of(folder, split)} for split in ("train", "test"))
    assert not train & test
    row = rows_of(folder, "test")[0]
    with pytest.raises(ValueError, match="seed"):
        skyrl_gym.make(row["env_class"], extras={**row, "seed": 9999}).init(row["prompt"])
