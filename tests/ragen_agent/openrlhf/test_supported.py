"""Settings and models that the distributed trainer refuses, and their neighbours that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.supported import check_biased, check_no_code, check_supported

Tables = dict[str, Any]
AHEAD: Tables = {"staleness": 1, "colocate": False}
APART: Tables = {"actor_gpus": 2, "colocate": False}
LORA: Tables = {"rank": 4, "alpha": 8.0}
FEW: Tables = {"training": {"groups": 2, "group_size": 4, "minibatch": 16}}
SEEN: Tables = {"turns": {"observation": "image"}}
GSPO: Tables = {"policy_loss": "gspo", "aggregation": "sequence_mean"}
FORGETFUL: Tables = {"turns": {"history": 0}}
WHOLE = "is about whole episodes, but prompts that leave out"


def check(config: Tables, settings: Tables) -> None:
    check_supported(with_settings(Config(), config), with_settings(OpenRLHF(), settings, "openrlhf."))


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({}, {}),
        ({}, AHEAD),
        ({}, APART),
        ({}, {"critic_gpus": 2}),  # of which there is none
        ({"lora": LORA}, {}),
        ({"training": GSPO}, AHEAD),
        ({"training": {"entropy_smoothing": 2.0}}, {}),
        ({"training": {"correction": "none"}}, {}),
        (FEW, {}),
        (FEW, {**APART, "micro_batch": 4}),
    ],
)
def test_what_is_taken(config: Tables, settings: Tables) -> None:
    check(config, settings)


@pytest.mark.parametrize(
    ("config", "settings", "reason"),
    [
        ({"training": {"temperature": 3.0}}, {}, r"training\.temperature is 3; with vLLM it must be from 0\.01 to 2"),
        ({"lora": LORA}, {"zero_stage": 3}, r"lora.rank needs openrlhf.zero_stage 2"),
        ({"lora": {**LORA, "alpha": 8.5}}, {}, r"lora.alpha is 8.5"),
        ({"training": {"groups_by": "tree", "branches": [4, 2]}}, {}, r"groups_by=tree draws .* or --backend local"),
        ({"training": {"iterations": 0}}, {}, r"training\.iterations is 0, .* use at least 1, or --backend local"),
        (
            {"training": {"correction": "none"}},
            AHEAD,
            r"staleness is 1, .* training.correction is 'none': .* use openrlhf.stale",
        ),
        ({}, {"staleness": 1}, r"staleness is 1, so vLLM plays while .* use openrlhf.colocate=false"),
        ({"training": GSPO, **FORGETFUL}, {}, rf"training\.policy_loss=gspo {WHOLE}"),
        ({"training": {"entropy_smoothing": 2.0}, **FORGETFUL}, {}, rf"training\.entropy_smoothing=2 {WHOLE}"),
        (
            {"training": {"entropy_smoothing": 2.0}, "program": {"command": "python my_agent.py"}},
            {},
            rf"training\.entropy_smoothing=2 {WHOLE}",
        ),
        (FEW, APART, r"is 8; OpenRLHF needs .* openrlhf\.micro_batch=8 times 2: play more, or lower"),
        ({}, {"actor_gpus": 2}, "the actor's 2 and vLLM's 1 must be equal"),
        ({"training": {"algo": "ppo"}}, {"critic_gpus": 2}, "the actor's 1 and the critic's 2 must be equal"),
        ({"training": {"minibatch": 12}}, {}, r"minibatch is 12; it must be a multiple of openrlhf.micro_batch=8"),
        ({"training": {"minibatch": 64}}, {"actor_gpus": 3}, r"micro_batch=8 times the 3 GPUs of the actor"),
        (
            {**SEEN, "training": {"algo": "ppo"}},
            {},
            "training.algo=ppo needs a critic, which OpenRLHF does not have for visual",
        ),
        ({**SEEN, "lora": {"rank": 8}}, {}, "lora.rank is for models that read text only"),
        ({}, {"freeze_vision": True}, "openrlhf.freeze_vision is for visual models"),
        ({}, {"staleness": -1}, r"openrlhf.staleness is -1; it must be at least 0"),
        ({}, {"accelerator": "tpu"}, "openrlhf.accelerator is 'tpu'; choose one of auto, cuda, cpu"),
        ({}, {"failure_budget": 1.5}, "openrlhf.failure_budget is 1.5; it must be from 0 to 1"),
        ({}, {"correction": [0.0, 2.0]}, "unknown setting 'openrlhf.correction'"),
    ],
)
def test_what_is_refused(config: Tables, settings: Tables, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(config, settings)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path, file: str) -> None:
    """OpenRLHF and vLLM load models with trust_remote_code=True."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"auto_map": 1}}}', encoding="utf-8")
    check_no_code(tmp_path)
    for text in ('{"auto_map": {"AutoConfig": "a.B"}}', '{"text_config": {"auto\\u005fmap": {}}}'):
        (tmp_path / file).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"{file} names code of the model's own"):
            check_no_code(tmp_path)


def test_more_ids_than_vllm_biases_on_a_gpu_are_refused() -> None:
    """Qwen2.5's output layer has 271 ids beyond its tokenizer; vLLM would refuse every request of a wider one."""
    check_biased(271)
    check_biased(1024)
    with pytest.raises(ValueError, match=r"1,025 token ids .* at most 1,024 on a GPU: .*resize_token_embeddings"):
        check_biased(1025)
