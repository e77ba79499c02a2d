"""The models that a distributed run refuses before any process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_agent.openrlhf.model import check_no_code
from ragen_agent.preflight.memory import check_biased


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
