"""A whole run of an agent that sees: warm start, reinforcement, measurements, resuming, and its page."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference.vision import vision_of
from ragen_agent.local.run import TrainingRun, train
from ragen_agent.models.checkpoint import load_checkpoint
from ragen_agent.report.episodes import EpisodeViews
from ragen_agent.report.runs import load_run
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import Interrupting, quiet

TINY: dict[str, Any] = {
    "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"observation": "image", "grounding": True, "max_tokens_per_turn": 44},
    "demonstrations": {"episodes": 40},
    "warm_start": {"epochs": 1},
    "training": {
        "iterations": 2,
        "groups": 2,
        "group_size": 4,
        "minibatch": 4,
        "algo": "ppo",
        "filter": "none",
    },
    "diagnostics": {"information_every": 1},
    "evaluation": {"levels": 4, "imitation": True},
}
CONFIG = with_settings(Config(), merged(default_settings("FrozenLake"), TINY))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder.create(tmp_path_factory.mktemp("vision") / "run", CONFIG)
    train(CONFIG, folder, quiet())
    return folder.path


def test_a_run_measures_itself(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    rates = ("before", "after", "random", "optimal", "demonstrator", "more_imitation", "clean_warm_start")
    assert set(rates) <= set(summary)
    assert summary["optimal"]["rate"] == 1
    records = read_json_lines(run / "metrics.jsonl")
    assert [record["iteration"] for record in records] == [0, 1]
    assert all(0 <= record["retrieval_accuracy"] <= 1 for record in records)


def test_a_resumed_run_is_the_unbroken_one(run: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "broken", CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, folder, Interrupting(0))
    resumed = TrainingRun(CONFIG, folder, quiet())
    resumed.warm_start()
    resumed.reinforce()
    one, two = (load_checkpoint(path / "checkpoint")[0].state_dict() for path in (run, folder.path))
    assert all(torch.equal(weight, two[name]) for name, weight in one.items())
    warm = load_checkpoint(run / "warm")[0].state_dict()
    assert any(not torch.equal(warm[name], weight) for name, weight in one.items() if "visual" in name)


def test_the_checkpoint_plays_by_the_ordinary_path(run: Path) -> None:
    policy = Policy.build(CONFIG, run / "checkpoint")
    assert vision_of(policy.model) is not None
    (played,) = policy.play(policy.processes("test", 1), [Instance(0, 0)], 1.0, seed=0)
    assert played.failure is None
    assert played.images


def test_the_page_shows_what_the_model_saw(run: Path) -> None:
    views = EpisodeViews(load_run(run), several=False)
    episodes = [Trajectory.from_dict(record) for record in read_json_lines(run / "episodes.jsonl")]
    shown = [entry.details() for group in views.groups() for entry in group]
    assert len(shown) == len(episodes)
    pixels = {image.pixels.tobytes() for episode in episodes for image in episode.images}
    for details in shown:
        for turn in details["turns"]:
            assert "<image>" in turn["message"]
            head, _, data = turn["image"].partition(",")
            assert head == "data:image/png;base64"
            assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).tobytes() in pixels
