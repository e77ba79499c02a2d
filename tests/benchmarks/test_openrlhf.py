"""The page of the two trainers says what was measured."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from benchmarks import openrlhf
from benchmarks.openrlhf import PHASES, _page

RESULTS = json.loads(Path(openrlhf.__file__).with_suffix(".json").read_text(encoding="utf-8"))


def test_a_pretrained_model_has_its_phases_and_the_share_of_this_project() -> None:
    real = copy.deepcopy(RESULTS["small"]) | {"game": "Bandit", "iterations": 15}
    real["local"]["phases"] = dict.fromkeys(PHASES, 0.0) | {"rollout": 2.0, "train": 4.0}
    real["openrlhf"]["phases"] = {"rollout": 9.0, "score": 1.5, "train": 5.0, "synchronise": 2.0, "own": 0.5}
    real["openrlhf"] |= {"seconds": 20.0, "vllm_kl": -0.0004, "vllm_kl_most": 0.0009, "vllm_gap": 0.0018}
    page = _page({**RESULTS, "real": real})
    assert "`smollm2-135m-bandit` (Bandit), 15 iterations" in page
    assert "| local | 2.00 |  | 4.00 |  |  |" in page
    assert "| OpenRLHF | 9.00 | 1.50 | 5.00 | 2.00 | 0.50 |" in page
    assert "own code takes 2.5 % of an iteration" in page
    assert (
        "differ between vLLM and the trainer by 0.0018 nats in mean absolute value and by\n4.0e-04 in the mean, 9.0e-04"
        in page
    )
    assert "On the default game (FrozenLake), 40 iterations" in page


def test_playing_ahead_is_a_third_run() -> None:
    small = copy.deepcopy(RESULTS["small"])
    small["openrlhf"]["seconds"] = 5.4
    small["ahead"] = copy.deepcopy(small["openrlhf"]) | {"seconds": 3.4, "seconds_wait": 0.25, "mismatch_kl": 0.00032}
    small["ahead"] |= {"staleness": 1, "max_vllm_kl": 1.0, "phases": dict.fromkeys(PHASES, 0.0) | {"rollout": 2.0}}
    page = _page({"small": small})
    assert "| OpenRLHF, playing ahead |" in page
    for said in (
        "(`openrlhf.staleness=1`)",
        "2.00 s, goes by",
        "3.40 s in place of 5.40",
        "waits 0.25 s",
        "3.2e-04 nats",
    ):
        assert said in page
