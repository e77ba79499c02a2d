"""What a run will do, in numbers, and what the distributed trainer refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.algorithms import AGGREGATIONS
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.supported import check_supported
from ragen_agent.preflight.plan import BatchPlan, describe, rows_of_step


def check(config: dict[str, Any], settings: dict[str, Any] | None = None) -> None:
    check_supported(with_settings(Config(), config), with_settings(OpenRLHF(), settings or {}, "openrlhf."))


def updates(settings: dict[str, Any]) -> int:
    config = with_settings(Config(), settings)
    return config.training.iterations * BatchPlan.of(config, distributed=True).updates


def test_stale_episodes_need_a_correction_and_gpus_of_their_own() -> None:
    ahead = {"staleness": 1, "colocate": False}
    check({}, ahead)
    check({"training": {"policy_loss": "gspo", "aggregation": "sequence_mean"}}, ahead)
    uncorrected = {"training": {"correction": "none"}}
    check(uncorrected)
    with pytest.raises(ValueError, match=r"staleness is 1, .* training.correction is 'none': .* use openrlhf.stale"):
        check(uncorrected, ahead)
    check({}, {"colocate": True})
    with pytest.raises(ValueError, match=r"staleness is 1, so vLLM plays while .* use openrlhf.colocate=false"):
        check({}, ahead | {"colocate": True})
    with pytest.raises(ValueError, match=r"openrlhf.staleness is -1; it must be at least 0"):
        check({}, {"staleness": -1})
    said = " ".join(describe(Config(), with_settings(OpenRLHF(), ahead | {"staleness": 2})))
    assert "by weights that are 2 updates behind (openrlhf.staleness)" in said
    assert "updates behind" not in " ".join(describe(Config(), OpenRLHF()))


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({"policy_loss": "gspo", "aggregation": "sequence_mean"}, "policy_loss=gspo"),
        ({"entropy_smoothing": 2.0}, "entropy_smoothing=2"),
    ],
)
def test_a_loss_of_whole_episodes_needs_them_in_one_row(training: dict[str, Any], named: str) -> None:
    check({"training": training})
    with pytest.raises(ValueError, match=rf"training\.{named} is about whole episodes, but prompts that leave out"):
        check({"training": training, "turns": {"history": 0}})


def test_the_plan_says_how_much_more_dynamic_sampling_may_play() -> None:
    config = with_settings(Config(), {"training": {"groups": 8, "group_size": 4, "refills": 2}})
    assert "it plays others, in at most 2 further rounds of 32 episodes (training.refills)" in " ".join(
        describe(config, None)
    )
    assert "training.refills" not in " ".join(describe(Config(), None))


def test_each_gpu_has_something_to_score() -> None:
    few = {"training": {"groups": 2, "group_size": 4, "minibatch": 16}}
    check(few)
    check(few, {"micro_batch": 4, "actor_gpus": 2, "colocate": False})
    with pytest.raises(
        ValueError, match=r"is 8; OpenRLHF needs .* openrlhf\.micro_batch=8 times 2: play more, or lower"
    ):
        check(few, {"actor_gpus": 2, "colocate": False})


def test_a_run_without_iterations_is_of_the_local_trainer_alone() -> None:
    with pytest.raises(ValueError, match=r"training\.iterations is 0, .* use at least 1, or --backend local"):
        check({"training": {"iterations": 0}})


def test_a_program_may_make_a_row_of_every_turn() -> None:
    program = {"program": {"command": "python my_agent.py"}, "turns": {"max_turns": 3}}
    training = {"iterations": 4, "groups": 8, "group_size": 8, "keep": 0.5, "minibatch": 16}
    assert updates({"training": training, **program}) == 3 * updates({"training": training})
    with pytest.raises(ValueError, match=r"training\.entropy_smoothing=2 is about whole episodes"):
        check({"training": {"entropy_smoothing": 2.0}, **program})


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_what_the_local_trainer_has_is_possible(aggregation: str) -> None:
    """Everything that is measured, every aggregation, and a critic whose prompts leave out turns."""
    check(
        {
            "turns": {"history": 0},
            "training": {"algo": "ppo", "aggregation": aggregation},
            "stops": {"validate_every": 2, "return_std_patience": 2},
            "diagnostics": {"information_every": 1},
        }
    )


def test_the_default_run_is_possible_and_counts_its_updates_after_the_filter() -> None:
    check({})
    training = {"iterations": 10, "groups": 8, "group_size": 16, "keep": 0.25, "minibatch": 32, "updates": 3}
    assert updates({"training": training}) == 10 * 3 * (2 * 16 // 32)
    assert updates({"training": {**training, "filter": "none"}}) == 10 * 3 * (8 * 16 // 32)
    assert updates({"training": {**training, "minibatch": 24}}) == 10 * 3 * 2
    assert updates({"training": {**training, "filter": "top_p", "keep": 0.9}}) == 10 * 3 * (8 * 16 // 32)
    assert updates({"training": training, "turns": {"history": 0, "max_turns": 3}}) == 10 * 3 * (3 * 2 * 16 // 32)


def test_a_step_has_no_more_rows_than_an_iteration_keeps() -> None:
    def rows(training: dict[str, Any], settings: dict[str, Any] | None = None) -> int:
        config = with_settings(Config(), {"training": {"groups": 8, "group_size": 8, "minibatch": 64, **training}})
        return rows_of_step(config, with_settings(OpenRLHF(), settings or {}, "openrlhf."))

    assert rows({"keep": 0.5}) == 32
    assert rows({"keep": 0.5, "minibatch": 16}) == 16
    assert rows({"keep": 0.5}, {"micro_batch": 64}) == 64
    assert rows({"keep": 0.25, "group_size": 5}) == 16, "10 rows, of which the GPU reads 8 at a time"
    assert rows({"keep": 0.5, "algo": "ppo", "minibatch": 96}, {"actor_gpus": 2, "critic_gpus": 3}) == 48
    assert rows({"filter": "none"}) == 64


def test_models_that_share_gpus_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="the actor's 2 and vLLM's 1 must be equal"):
        check({}, {"colocate": True, "actor_gpus": 2})
    with pytest.raises(ValueError, match="the actor's 1 and the critic's 2 must be equal"):
        check({"training": {"algo": "ppo"}}, {"colocate": True, "critic_gpus": 2})
    check({}, {"colocate": True, "critic_gpus": 2})
    check({}, {"actor_gpus": 2, "colocate": False})


def test_gpus_must_be_able_to_share_a_minibatch() -> None:
    with pytest.raises(ValueError, match=r"minibatch is 12; it must be a multiple of openrlhf.micro_batch=8"):
        check({"training": {"minibatch": 12}})
    with pytest.raises(ValueError, match=r"must be a multiple of openrlhf.micro_batch=8 times the 3 GPUs of the actor"):
        check({"training": {"minibatch": 64}}, {"actor_gpus": 3})


def test_adapters_must_be_ones_that_openrlhf_takes() -> None:
    lora = {"rank": 4, "alpha": 8.0}
    check({"lora": lora})
    with pytest.raises(ValueError, match=r"needs openrlhf.zero_stage 2"):
        check({"lora": lora}, {"zero_stage": 3})
    with pytest.raises(ValueError, match=r"lora.alpha is 8.5"):
        check({"lora": {**lora, "alpha": 8.5}})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accelerator": "tpu"}, "openrlhf.accelerator is 'tpu'; choose one of auto, cuda, cpu"),
        ({"failure_budget": 1.5}, "openrlhf.failure_budget is 1.5; it must be from 0 to 1"),
        ({"correction": [0.0, 2.0]}, "unknown setting 'openrlhf.correction'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_settings(OpenRLHF(), settings, "openrlhf.")
