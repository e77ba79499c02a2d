"""The memory and the hours that a run needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.estimates import (
    BANDWIDTH,
    FAST,
    PEAK,
    SIZES,
    SLOW,
    Hours,
    Pace,
    estimate,
    estimate_hours,
    hours_in_words,
    model_shape,
)

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "from_laptop_to_cluster.md"


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


RUN = {
    "model": "models/Qwen2.5-0.5B-Instruct",
    "turns": {"max_turns": 5, "max_tokens_per_turn": 256, "max_tokens_per_episode": 2560},
    "training": {"groups": 8, "group_size": 16, "keep": 0.25, "minibatch": 32, "iterations": 10},
    "evaluation": {"levels": 128},
}
WHOLE = Pace(compute=1.0, memory=1.0, step=0.0, between=0.0, length=1.0)
PARAMETERS = 494_032_768


def hours(pace: Pace = WHOLE, training: dict[str, Any] | None = None, **settings: Any) -> Hours:
    config = with_settings(Config(), {**RUN, "training": {**RUN["training"], **(training or {})}})  # type: ignore[dict-item]
    found = estimate_hours(config, with_settings(OpenRLHF(), settings), 80.0, pace)
    assert found is not None
    return found


def test_an_iteration_reads_the_weights_and_the_cache_for_each_token_and_trains_on_what_is_kept() -> None:
    cache = 128 * 2560 * 4 * 24 * 2 * 64  # bytes: 128 rows, keys and values of 24 layers and two heads of 64
    found = hours()
    assert found.playing == pytest.approx(1280 * (2 * PARAMETERS + cache) / BANDWIDTH)
    assert found.training == pytest.approx(32 * 2560 * 8 * PARAMETERS / PEAK), "2 N to score, 6 N to learn"
    assert found.run == pytest.approx((10 * (found.playing + found.training) + 2 * found.playing) / 3600)


def test_a_step_has_a_floor_and_shares_of_the_hardware_divide() -> None:
    slow = hours(Pace(compute=0.5, memory=1.0, step=0.02, between=7.0, length=1.0))
    assert slow.playing == pytest.approx(1280 * 0.02)
    assert slow.training == pytest.approx(2 * hours().training)
    assert hours(Pace(1.0, 1.0, 0.02, 0.0, 0.5)).playing == pytest.approx(640 * 0.02), "replies half as long"
    eight = hours(actor_gpus=8, vllm_engines=8, micro_batch=1)
    assert eight.training == pytest.approx(hours().training / 8)
    assert eight.playing > hours().playing / 8, "each engine reads all weights"


def test_models_with_gpus_of_their_own_train_at_once_and_those_that_share_them_in_turn() -> None:
    ppo = {"algo": "ppo"}
    assert hours(training=ppo).training == pytest.approx(2 * hours(training=ppo, colocate=False).training)
    ahead = hours(colocate=False, staleness=1)
    assert ahead.run == pytest.approx((10 * max(ahead.playing, ahead.training) + 2 * ahead.playing) / 3600)


def test_a_cache_that_is_too_small_plays_in_rounds() -> None:
    few = hours(vllm_memory=0.05)  # 4 GiB, less 0.9 of weights, hold 102 rows of 31 MiB
    assert few.playing == pytest.approx(2 * 1280 * (2 * PARAMETERS + 102 * 2560 * 12_288) / BANDWIDTH, rel=0.05)


LLAMA_8B = ("llama", (4096, 32, 14_336, 32, 8, 128, 128_256))
QWEN3_32B = ("qwen3", (5120, 64, 25_600, 64, 8, 128, 151_936))


@pytest.mark.parametrize(
    ("model", "gpus", "tensor_parallel", "reply", "rate", "measured"),
    [(LLAMA_8B, 16, 1, 1060, 1562, 97.7), (QWEN3_32B, 32, 4, 3206, 540, 393.0)],
)
def test_steps_that_others_measured_on_h100s_lie_within_the_range(
    model: tuple[str, tuple[int, ...]],
    gpus: int,
    tensor_parallel: int,
    reply: int,
    rate: int,
    measured: float,
    tmp_path: Path,
) -> None:
    """GRPO on policy in bfloat16 by NeMo RL 0.4: 2,048 replies, their mean tokens, tokens a second and GPU."""
    shape = {"model_type": model[0], "tie_word_embeddings": False, **dict(zip(SIZES, model[1], strict=True))}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    episode = round(rate * measured * gpus / 2048)  # with its prompt
    training = {"groups": 64, "group_size": 32, "minibatch": 512, "starpo_s": False, "filter": "none", "kl": 0.0}
    turns = {"max_turns": 1, "max_tokens_per_turn": reply, "max_tokens_per_episode": episode}
    config = with_settings(Config(), {"model": str(tmp_path), "turns": turns, "training": training})
    engines = {"vllm_engines": gpus // tensor_parallel, "vllm_tensor_parallel": tensor_parallel}
    settings = with_settings(OpenRLHF(), {"actor_gpus": gpus, **engines})
    seconds = []
    for pace in (FAST, SLOW):
        found = estimate_hours(config, settings, 80.0, replace(pace, length=1.0))
        assert found is not None
        seconds.append(found.playing + found.training + pace.between)
    low, high = seconds
    assert low < measured < high
    row = f"on {gpus} GPUs | {reply:,} | {measured:g} | {low:.0f} to {high:.0f} |"
    assert row in PAGE.read_text(encoding="utf-8")


def test_what_stands_idle_is_named() -> None:
    config = with_settings(Config(), RUN)

    def said(**settings: Any) -> str:
        return " ".join(hours_in_words(config, with_settings(OpenRLHF(), settings), 80.0))

    assert "Idle" not in said(), "one GPU"
    assert "Idle: GPUs whose 32 episodes end first" in said(actor_gpus=4, vllm_engines=4)
    assert "Idle: the GPUs that train (2) wait for the engines" in said(actor_gpus=2, colocate=False)
    assert "wait for the slower half" in said(colocate=False, staleness=1)
    assert not hours_in_words(with_settings(Config(), {"model": "nobody/knows"}), OpenRLHF(), 80.0)
