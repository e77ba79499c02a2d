"""A real run of the small model that sees: pictures through vLLM, DeepSpeed and back.

A start takes minutes, so it shows several things; what a frozen encoder changes is in ``test_pictures``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ragen_agent.config import Config, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.inference.vision import vision_of
from ragen_agent.models.checkpoint import load_checkpoint
from ragen_agent.run.policy import Policy
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.openrlhf.small_runs import begin, lines

if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed here: make test-openrlhf has it", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

SETTINGS: dict[str, Any] = {
    "small_model": {"kind": "vision"},
    "turns": {"observation": "image"},
    "demonstrations": {"episodes": 1500},
    "warm_start": {"epochs": 1},
    "training": {"algo": "grpo", "groups": 4, "group_size": 8, "keep": 0.5, "minibatch": 8, "iterations": 3},
    "evaluation": {"levels": 4},
    "diagnostics": {"information_every": 2},
}
CONFIG = with_settings(Config(), merged(default_settings("FrozenLake"), SETTINGS))


def test_a_visual_model_learns(tmp_path: Path) -> None:
    folder, summary = begin(tmp_path / "run", CONFIG, {})
    assert {"before", "after", "random", "optimal"} <= set(summary)
    records = lines(folder.path)
    trained = [record for record in records if record["train_tokens"]]
    assert len(records) == CONFIG.training.iterations
    assert trained
    assert abs(np.mean([record["vllm_kl"] for record in trained])) < 3e-3, "the weights arrive at vLLM"
    assert max(record["vllm_gap"] for record in trained) < 0.02
    assert all(record["grad_norm"] > 0 for record in trained)
    assert all(record["entropy_sampled"] > 0 for record in trained)
    assert "retrieval_accuracy" in records[0]
    assert any("mutual_information" in record for record in records)
    episodes = [Trajectory.from_dict(record) for record in read_json_lines(folder.episodes)]
    played = [t for t in episodes if t.failure is None]
    assert len(played) == len(episodes)
    assert all(len(t.images) == len(t.turn_ends) for t in played)
    before, _ = load_checkpoint(folder.warm)
    after, _ = load_checkpoint(folder.checkpoint)
    vision = vision_of(after)
    assert vision is not None
    assert not any(int(token) in vision.reserved_ids for t in played for token in t.ids[t.sampled])
    old, new = (model.state_dict() for model in (before, after))
    moved = {name for name, weight in old.items() if not torch.equal(weight.bfloat16(), new[name].bfloat16())}
    assert any("language_model" in name for name in moved)
    assert any("visual" in name for name in moved)
    policy = Policy.build(CONFIG, folder.checkpoint)
    (again,) = policy.play(policy.processes("test", 1), [Instance(0, 0)], 1.0, seed=0)
    assert again.failure is None
    assert again.images
