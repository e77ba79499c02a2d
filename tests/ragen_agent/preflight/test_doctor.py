"""The doctor finds what is wrong, says what to do, and changes nothing unless asked."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from ragen_agent.cli import main
from ragen_agent.config import Config, SmallModel, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference import torchvision_ops
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.small_model import build_model, build_tokenizer
from ragen_agent.preflight import doctor
from ragen_agent.preflight.doctor import CHECKS, Finding, Look, Trouble, examine, imported
from ragen_agent.preflight.memory import available_memory
from ragen_gym.envs.turn import make_turn

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer()


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    save_checkpoint(build_model(SmallModel(32, 1, 32), tokenizer, 0), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def change(path: Path, edit: Callable[[dict[str, object]], None]) -> None:
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def finding(name: str, look: Look, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """Of one check, and of those before it without which it cannot be made."""
    wanted = {name}
    for check in reversed(CHECKS):
        if check.name in wanted and check.after:
            wanted.add(check.after)
    monkeypatch.setattr(doctor, "CHECKS", [check for check in CHECKS if check.name in wanted])
    found = [*examine(look)]
    monkeypatch.setattr(doctor, "CHECKS", CHECKS)
    return found[-1]


def test_it_says_that_this_machine_is_ready(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["doctor", "--backend", "local", "--json", "--out", str(tmp_path / "new" / "runs")])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["ready"]
    assert all(check["advice"] for check in report["checks"] if check["state"] != "ok")
    assert {"torch", "CUDA", "CPU", "disk for runs", "tokenizer round trip", "chat template"} <= {
        check["name"] for check in report["checks"]
    }
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
        found = finding("CUDA", Look(distributed), monkeypatch)
        assert (found.state, "out of memory" in found.found) == ("warn", True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    old = finding("CUDA", Look(False), monkeypatch)
    assert old.state == "warn", "the second has no units for bfloat16"
    assert old.found.startswith("cuda:0 H100, 1.5 of 80.0 GiB free; cuda:1 H100, 1.5 of 80.0 GiB free")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0))
    assert finding("CUDA", Look(False), monkeypatch).state == "ok", "one process needs no NCCL"
    assert finding("CUDA", Look(True), monkeypatch).found.endswith("no NCCL")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for settings, state in (({}, "ok"), ({"actor_gpus": 4}, "fail"), ({"actor_gpus": 2, "colocate": False}, "fail")):
        look = Look(True, config=Config(), settings=with_settings(OpenRLHF(), settings))
        assert finding("CUDA", look, monkeypatch).state == state, "Ray would wait for a GPU forever"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "unset PYTORCH" in finding("CUDA", Look(True), monkeypatch).advice
    assert finding("CUDA", Look(False), monkeypatch).state == "ok"


def test_a_model_that_cannot_be_used_is_a_failure(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    assert main(["doctor", "--backend", "local", "--model", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr().out
    assert "there is no such folder" in said
    assert "do: give the folder of a Hugging Face causal LM" in said
    assert "not ready" in said
    assert main(["doctor", "--backend", "local", "--model", str(model)]) == 0


def test_the_sizes_of_a_model_are_held_against_its_tokenizer_and_vllm(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heads(config: dict[str, object]) -> None:
        config["head_dim"] = 16

    def narrow(config: dict[str, object]) -> None:
        config["vocab_size"] = 7

    change(model / "config.json", heads)
    found = finding("attention heads", Look(True, model), monkeypatch)
    assert found.state == "fail"
    assert "size 16" in found.found
    change(model / "config.json", narrow)
    assert "an output layer of 7" in finding("model", Look(False, model), monkeypatch).found


def test_a_template_that_rewrites_the_past_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = model / "chat_template.jinja"
    assert template.is_file()
    text = template.read_text()
    template.write_text("{{ messages | length }}" + text)
    check = finding("chat template", Look(False, model), monkeypatch)
    assert check.state == "fail"
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<|im_end|>\n{% endfor %}assistant: "
    )
    check = finding("chat template", Look(False, model), monkeypatch)
    assert check.state != "ok"
    assert check.advice


def test_a_template_that_can_only_be_followed_needs_a_setting(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GLM-4 MoE's and gpt-oss's, which write another header before replies of the past."""
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>\n{% endif %}"
        "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
    )
    followed = with_settings(Config(), {"turns": {"keep_thinking": False}})
    for config, state in ((None, "warn"), (Config(), "fail"), (followed, "ok")):
        check = finding("chat template", Look(False, model, config=config), monkeypatch)
        assert check.state == state
        assert ("set turns.keep_thinking=false" in check.advice) == (state != "ok")


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
    check = finding("tokenizer round trip", Look(False, model), monkeypatch)
    assert check.state == "fail"
    assert " becomes " in check.found


@pytest.fixture(scope="module")
def joining(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that joins what often stands together, as those of language models do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("joining")
    bytes_of = Tokenizer(models.BPE())
    bytes_of.pre_tokenizer, bytes_of.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    env = make_turn("FrozenLake")
    bytes_of.train_from_iterator([env.reset(seed=seed)[0] for seed in range(40)], trainer)
    PreTrainedTokenizerFast(tokenizer_object=bytes_of, eos_token="<end>").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 664}')
    return folder


def test_the_model_may_be_that_of_a_runs_settings(
    joining: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text(f'game = "Sokoban"\nmodel = "{joining}"\n')
    command = ["doctor", "--backend", "local", "--json", "--config", str(tmp_path / "config.toml")]
    main([*command, "--out", str(tmp_path)])
    found = {each["name"]: each["found"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "beyond them are never sampled" in found["model"]


def test_a_named_model_is_looked_at_where_it_is_and_never_fetched(
    joining: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    asked = ["doctor", "--backend", "local", "--json", "--model", "smollm2-135m", "--out", str(tmp_path)]
    assert main(asked) == 2
    assert "fetch it with ragen-agent model smollm2-135m" in capsys.readouterr().err
    shutil.copytree(joining, tmp_path / "models" / "smollm2-135m")
    main(asked)
    assert "beyond them are never sampled" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system cannot tell which process holds a file")
def test_a_lock_that_nobody_holds_goes_when_asked_and_one_that_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.file_baton import FileBaton

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert finding("DeepSpeed's lock", Look(True), monkeypatch).state == "ok", "there is none"
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    baton = FileBaton(str(lock))
    assert baton.try_acquire(), "torch itself holds its lock open while it compiles"
    try:
        assert finding("DeepSpeed's lock", Look(True, fix=True), monkeypatch).state == "ok"
        assert lock.exists()
    finally:
        baton.release()
    lock.touch()
    left = finding("DeepSpeed's lock", Look(True), monkeypatch)
    assert (left.state, lock.exists()) == ("fail", True)
    assert "--fix" in left.advice
    removed = finding("DeepSpeed's lock", Look(True, fix=True), monkeypatch)
    assert (removed.state, "removed" in removed.found, lock.exists()) == ("ok", True, False)


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
    assert finding("torch", Look(True), monkeypatch).state == "ok"
    found = finding("vllm", Look(True), monkeypatch)
    assert (found.state, found.found) == (("warn", doubt) if doubt else ("ok", vllm))


def test_what_a_gpu_changes_is_looked_at(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn where rows are packed by it, small heads, and ids that vLLM cannot leave out there."""
    monkeypatch.setattr(Look, "gpus", 1)
    assert "not needed with openrlhf.attention=sdpa" in finding("flash-attn", Look(True), monkeypatch).found
    packed = Look(True, settings=with_settings(OpenRLHF(), {"attention": "flash_attention_2"}))
    assert finding("flash-attn", packed, monkeypatch).state == "fail"
    heads = finding("attention heads", Look(True, model), monkeypatch)
    assert (heads.state, "of size 32" in heads.found) == ("warn", True)

    def widen(config: dict[str, object]) -> None:
        config["vocab_size"] = 5000

    change(model / "config.json", widen)
    assert "vLLM leaves out at most 1,024 on a GPU" in finding("model", Look(True, model), monkeypatch).found
    assert finding("model", Look(False, model), monkeypatch).state == "ok"


def test_an_import_that_fails_is_explained() -> None:
    assert imported("import json; print('here')") == "here"
    with pytest.raises(Trouble, match="No module named"):
        imported("import no_such_module_at_all")


def test_a_torchvision_of_another_torch_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For processes that import nothing of ours, as vLLM starts them."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "extension.py").write_text("def _has_ops():\n    return False\n")
    (package / "__init__.py").write_text(
        "import torch\nfrom . import extension\n__version__ = '0.28.0+cu130'\n"
        "torch.library.register_fake('torchvision::nms')(lambda dets, scores, iou_threshold: dets)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(
        "import site, sys\n"  # without what an environment that is repaired already starts with
        f"sys.modules.pop({torchvision_ops.COPY!r}, None)\n"
        f"sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != {torchvision_ops.COPY!r}]\n"
        f"site.addsitedir({str(tmp_path)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(torchvision_ops, "install", partial(torchvision_ops.install, tmp_path))
    try:
        ours = finding("torchvision", Look(False), monkeypatch)
        assert (ours.state, ours.found) == ("ok", "0.28.0+cu130"), "the commands prepare their own processes"
        broken = finding("torchvision", Look(True), monkeypatch)
        assert broken.state == "fail"
        assert "operator torchvision::nms does not exist" in broken.found
        assert "doctor --backend openrlhf --fix" in broken.advice
        repaired = finding("torchvision", Look(True, fix=True), monkeypatch)
        assert repaired.state == "ok"
        assert str(tmp_path) in repaired.found
        assert finding("torchvision", Look(True), monkeypatch).state == "ok"
    finally:
        for name in ("torchvision", "torchvision.extension"):
            sys.modules.pop(name, None)


def test_a_model_that_this_machine_has_no_memory_for_is_told_of(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_memory() > 0
    found = finding("memory", Look(True, model), monkeypatch)
    [needed] = re.findall(r"takes at most about ([\d.]+)", found.found)
    assert 4 < float(needed) < 8, "GiB: nearly all of it for libraries and vLLM's cache"
    monkeypatch.setattr(doctor, "available_memory", lambda: 3.0)
    found = finding("memory", Look(True, model), monkeypatch)
    assert (found.state, found.found.partition(";")[0]) == ("warn", "3.0 GiB are free")


def test_ports_in_use_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setattr(doctor, "PORTS", {listening.getsockname()[1]: "Ray's head"})
        found = finding("ports", Look(True), monkeypatch)
        assert found.state == "warn"
        assert "ray stop" in found.advice
    assert finding("ports", Look(True), monkeypatch).state == "ok"
