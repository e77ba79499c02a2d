"""A run in numbers: updates, rows of a step, and the sentences about them."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.plan import BatchPlan, check_devices, describe, rows_of_step

FOUR = {"iterations": 4, "groups": 8, "group_size": 8, "keep": 0.5, "minibatch": 16}
TEN = {"iterations": 10, "groups": 8, "group_size": 16, "keep": 0.25, "minibatch": 32, "updates": 3}
PROGRAM = {"program": {"command": "python my_agent.py"}, "turns": {"max_turns": 3}}


@pytest.mark.parametrize(
    ("training", "others", "updates"),
    [
        (FOUR, {}, 4 * 2),
        (FOUR, PROGRAM, 3 * 4 * 2),  # which may make a row of every turn
        (TEN, {}, 10 * 3 * (2 * 16 // 32)),
        ({**TEN, "filter": "none"}, {}, 10 * 3 * (8 * 16 // 32)),
        ({**TEN, "minibatch": 24}, {}, 10 * 3 * 2),
        ({**TEN, "filter": "top_p", "keep": 0.9}, {}, 10 * 3 * (8 * 16 // 32)),
        (TEN, {"turns": {"history": 0, "max_turns": 3}}, 10 * 3 * (3 * 2 * 16 // 32)),
    ],
)
def test_updates_are_counted_after_the_filter(training: dict[str, Any], others: dict[str, Any], updates: int) -> None:
    config = with_settings(Config(), {"training": training, **others})
    assert config.training.iterations * BatchPlan.of(config, distributed=True).updates == updates


@pytest.mark.parametrize(
    ("training", "settings", "rows"),
    [
        ({"keep": 0.5}, {}, 32),
        ({"keep": 0.5, "minibatch": 16}, {}, 16),
        ({"keep": 0.5}, {"micro_batch": 64}, 64),
        ({"keep": 0.25, "group_size": 5}, {}, 16),  # 10 rows, of which the GPU reads 8 at a time
        ({"keep": 0.5, "algo": "ppo", "minibatch": 96}, {"actor_gpus": 2, "critic_gpus": 3}, 48),
        ({"filter": "none"}, {}, 64),
    ],
)
def test_a_step_has_no_more_rows_than_an_iteration_keeps(
    training: dict[str, Any], settings: dict[str, Any], rows: int
) -> None:
    config = with_settings(Config(), {"training": {"groups": 8, "group_size": 8, "minibatch": 64, **training}})
    assert rows_of_step(config, with_settings(OpenRLHF(), settings, "openrlhf.")) == rows


@pytest.mark.parametrize(
    ("config", "settings", "part"),
    [
        ({"training": {**FOUR, "minibatch": 96}}, {}, "minibatches of 32: 1 of them, 1 pass over them, so 1 update"),
        (
            {"training": {"groups": 8, "group_size": 4, "refills": 2}},
            {},
            "it plays others, in at most 2 further rounds of 32 episodes (training.refills)",
        ),
        ({}, {"staleness": 2, "colocate": False}, "by weights that are 2 updates behind (openrlhf.staleness)"),
    ],
)
def test_the_plan_says_what_is_special(config: dict[str, Any], settings: dict[str, Any], part: str) -> None:
    assert part in " ".join(describe(with_settings(Config(), config), with_settings(OpenRLHF(), settings)))
    assert part not in " ".join(describe(Config(), OpenRLHF()))


def test_missing_gpus_are_named_with_what_to_do() -> None:
    """Ray would wait for them forever."""
    apart = with_settings(OpenRLHF(), {"colocate": False})
    check_devices(Config(), OpenRLHF(), 1)
    check_devices(Config(), apart, 2.0, "the cluster")
    with pytest.raises(ValueError, match=r"needs 1 GPU, and this machine has 0: .* Lower openrlhf.actor_gpus"):
        check_devices(Config(), OpenRLHF(), 0)
    with pytest.raises(
        ValueError, match=r"needs 2 GPUs, and the cluster has 1: .* Use openrlhf.colocate=true, or join"
    ):
        check_devices(Config(), apart, 1.0, "the cluster")
