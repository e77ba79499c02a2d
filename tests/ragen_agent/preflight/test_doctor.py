"""The doctor finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.file_baton import FileBaton
from transformers import PreTrainedTokenizerBase

from ragen_agent.cli import main
from ragen_agent.config import SmallModel
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import build_model, build_tokenizer
from ragen_agent.preflight import doctor
from ragen_agent.preflight.doctor import CHECKS, Finding, Look, extensions_folder, imported

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer()


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    save_checkpoint(build_model(SmallModel(32, 1, 32), tokenizer, 0), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def finding(name: str, look: Look) -> Finding:
    found = CHECKS[name](look)
    assert found is not None
    return found


def test_it_says_that_this_machine_is_ready(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--backend", "local", "--out", str(tmp_path / "new" / "runs")]) == 0
    said = capsys.readouterr().out
    assert "This machine is ready for the local trainer" in said
    assert not [name for name in ("torch", "CUDA", "disk for runs", "tokenizer round trip") if name not in said]
    assert not list(tmp_path.iterdir())


def test_each_gpu_is_named_with_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(number: int) -> tuple[int, int]:
        if number == 2:
            raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later.")
        return 3 * 2**29, 80 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: [(9, 0), (7, 5)][number])
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    for distributed in (False, True):
        found = finding("CUDA", Look(distributed))
        assert (found.state, "out of memory" in found.found) == ("warn", True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    old = finding("CUDA", Look(False))
    assert old.state == "warn", "the second has no units for bfloat16"
    assert old.found.startswith("cuda:0 H100, 1.5 of 80.0 GiB free; cuda:1 H100, 1.5 of 80.0 GiB free")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0))
    assert finding("CUDA", Look(False)).state == "ok", "one process needs no NCCL"
    assert finding("CUDA", Look(True)).found.endswith("no NCCL")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert finding("CUDA", Look(True)).state == "ok"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "unset PYTORCH" in finding("CUDA", Look(True)).advice
    assert finding("CUDA", Look(False)).state == "ok"


def test_a_model_that_cannot_be_used_is_a_failure(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    assert main(["doctor", "--backend", "local", "--model", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr().out
    assert "there is no such folder" in said
    assert "do: give the folder of a Hugging Face causal LM" in said
    assert "not ready" in said
    assert "tokenizer" not in said, "of a model that is not there nothing else is looked at"
    assert main(["doctor", "--backend", "local", "--model", str(model)]) == 0


def test_an_output_layer_that_is_too_narrow_is_a_failure(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    found = finding("model", Look(False, model))
    assert (found.state, "an output layer of 7" in found.found) == ("fail", True)


def test_little_shared_memory_is_a_failure_where_nccl_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY", 1e9)
    assert torch.cuda.is_available() or CHECKS["shared memory"](Look(True)) is None
    monkeypatch.setattr(Look, "gpus", 1)
    found = finding("shared memory", Look(True))
    assert (found.state, "--shm-size=16g" in found.advice) == ("fail", True)


def test_only_locks_that_nobody_holds_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = tmp_path / "my builds"
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert extensions_folder() == Path(sys.prefix) / "torch_extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(builds))
    assert CHECKS["locks of extensions"](Look(False)) is None
    assert finding("locks of extensions", Look(True)).state == "ok", "nothing was ever built"
    (builds / "cpu_adam").mkdir(parents=True)
    lock = builds / "cpu_adam" / "lock"
    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    assert finding("locks of extensions", Look(True)).state == "ok", "this process builds"
    baton.release()
    lock.touch()
    found = finding("locks of extensions", Look(True))
    assert (found.state, found.advice) == ("fail", f"rm '{lock}'")


def test_a_template_that_rewrites_the_past_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = model / "chat_template.jinja"
    assert template.is_file()
    text = template.read_text()
    template.write_text("{{ messages | length }}" + text)
    check = finding("chat template", Look(False, model))
    assert check.state == "fail"
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<|im_end|>\n{% endfor %}assistant: "
    )
    check = finding("chat template", Look(False, model))
    assert check.state != "ok"
    assert check.advice


def test_a_template_that_can_only_be_followed_needs_a_setting(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GLM-4 MoE's and gpt-oss's, which write another header before replies of the past."""
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>\n{% endif %}"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    )
    check = finding("chat template", Look(False, model))
    assert (check.state, "set turns.keep_thinking=false" in check.advice) == ("warn", True)


def test_a_tokenizer_that_loses_a_symbol_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "<end>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    poor = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    poor.chat_template = (model / "chat_template.jinja").read_text()
    shutil.rmtree(model)
    model.mkdir()
    poor.save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 9}')
    check = finding("tokenizer round trip", Look(False, model))
    assert check.state == "fail"
    assert " becomes " in check.found


def test_a_named_model_is_looked_at_where_it_is_and_never_fetched(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    asked = ["doctor", "--backend", "local", "--model", "smollm2-135m", "--out", str(tmp_path)]
    assert main(asked) == 2
    assert "fetch it with ragen-agent model smollm2-135m" in capsys.readouterr().err
    shutil.copytree(model, tmp_path / "models" / "smollm2-135m")
    main(asked)
    assert " token ids" in capsys.readouterr().out


def test_the_tested_versions_are_those_that_are_pinned() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints-openrlhf.txt").read_text(), re.MULTILINE))
    for name, (version, _) in doctor.TESTED.items():
        assert version in {pins.get(other) for other in doctor.PACKAGES.get(name, (name,))}, name


@pytest.mark.parametrize(
    ("torch_version", "vllm", "doubt"),
    [
        ("2.13.0+cpu", "0.29.0", ""),
        ("2.11.0+cu130", "0.26.0", ""),
        ("2.11.0+cu130", "0.29.0", "0.29.0; tested is 0.26.0 beside torch 2.11.0"),
        ("2.13.0+cu130", "0.26.0", "0.26.0; tested is 0.29.0 beside torch 2.13.0"),
    ],
)
def test_each_tested_set_of_versions_is_known(
    torch_version: str, vllm: str, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"torch": torch_version, "vllm": vllm}
    monkeypatch.setattr(importlib.metadata, "version", installed.__getitem__)
    assert finding("torch", Look(True)).state == "ok"
    found = finding("vllm", Look(True))
    assert (found.state, found.found) == (("warn", doubt) if doubt else ("ok", vllm))


def test_an_import_that_fails_is_explained() -> None:
    assert imported("import json; print('here')") == "here"
    with pytest.raises(ImportError, match="No module named"):
        imported("import no_such_module_at_all")
