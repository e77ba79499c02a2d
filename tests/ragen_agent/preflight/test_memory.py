"""The memory that a run needs."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.memory import estimate, model_shape


def test_shared_gpus_hold_what_does_not_sleep_and_sdpa_scores_sampled_tokens_alone() -> None:
    run = {
        "model": "models/Qwen2.5-0.5B-Instruct",
        "training": {"algo": "ppo"},
        "turns": {"max_tokens_per_episode": 2560},
    }

    def found(**settings: Any) -> tuple[dict[str, float], float]:
        estimated = estimate(with_settings(Config(), run), with_settings(OpenRLHF(), settings), 80.0)
        assert estimated is not None
        return {part.name: part.gib for part in estimated.parts}, estimated.peak[0]

    sampled, gib = 8 * 5 * 40, 494_032_768 / 2**30  # tokens of five turns of eight rows; the model's parameters
    parts, peak = found()
    assert parts["critic: weights"] == pytest.approx(2 * gib)
    assert parts["actor: gradients and optimiser"] == pytest.approx(14 * gib)
    assert found(zero_stage=3)[0]["actor: logits"] > 10 * parts["actor: logits"]
    assert found(micro_batch=32)[0]["actor: layers"] == pytest.approx(parts["actor: layers"]), "2,560 distinct tokens"
    assert parts["actor: logits"] == pytest.approx(sampled * 151_936 * 4 / 2**30)
    packed, more = found(attention="flash_attention_2")
    assert packed["actor: logits"] == pytest.approx(8 * 2560 * 151_936 * 14 / 2**30), "every token's, three times"
    assert more > peak
    state = 14 * 494_032_768 / 2**30
    assert found(sleep="vllm")[1] >= peak
    assert found(sleep="none")[1] == pytest.approx(found(sleep="vllm", vllm_memory=0.01)[1] + 0.6 * 80)
    assert found(sleep="vllm", vllm_memory=0.9)[1] == pytest.approx(found(vllm_memory=0.9)[1] + 2 * state, abs=0.01)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen2.5-VL-3B-Instruct", 3_754_622_976),
    ],
)
def test_a_recipes_model_has_the_parameters_that_its_authors_count(name: str, parameters: int) -> None:
    shape = model_shape(with_settings(Config(), {"model": f"models/{name}"}))
    assert shape is not None
    assert shape.parameters == parameters
    assert bool(shape.vision) == ("VL" in name)


def test_adapters_are_as_many_as_peft_makes() -> None:
    from peft import LoraConfig, get_peft_model

    from ragen_agent.models.small_model import build_model, build_tokenizer

    shape = model_shape(Config())
    assert shape is not None
    model = get_peft_model(
        build_model(Config().small_model, build_tokenizer(), 0), LoraConfig(r=4, target_modules="all-linear")
    )
    assert model.get_nb_trainable_parameters()[0] == 4 * shape.adapted
