"""LoRA: what vLLM and the checkpoint get is the plain model with the adapters added in."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

pytest.importorskip("peft")

from peft import LoraConfig, PeftModel, TaskType, get_peft_model

from ragen_agent.cli import main
from ragen_agent.inference.weights import merged_parameters
from ragen_agent.openrlhf.merged_lora import save_merged, send_merged


def adapted() -> PeftModel:
    """A small model with adapters that change what it says."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    lora = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8, target_modules="all-linear", bias="none")
    wrapped = get_peft_model(model, lora)
    for name, parameter in wrapped.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.2)
    assert isinstance(wrapped, PeftModel)
    return wrapped.eval()


IDS = torch.arange(12).reshape(2, 6)


@torch.no_grad()
def test_merged_weights_say_what_the_adapted_model_says() -> None:
    model = adapted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = Qwen2ForCausalLM(model.config).eval()
    missing, unknown = plain.load_state_dict(dict(merged_parameters(model)), strict=False)
    assert missing == ["lm_head.weight"], "which is the embedding, sent once"
    assert not unknown
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-4)
    with model.disable_adapter():
        assert (plain(IDS).logits - model(IDS).logits).abs().max() > 0.1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_trainer_sends_them_and_the_model_is_itself_again() -> None:
    model = adapted()

    class Trainer:
        def broadcast_to_vllm(self) -> None:
            self.sent = [name for name, _ in model.named_parameters()]

    trainer = Trainer()
    send_merged(trainer, model)
    trainer.broadcast_to_vllm()
    assert trainer.sent == [name for name, _ in Qwen2ForCausalLM(model.config).named_parameters()]
    assert any(".lora_A." in name for name, _ in model.named_parameters())


@torch.no_grad()
def test_the_checkpoint_is_a_whole_model_and_the_adapter_stands_next_to_it(tmp_path: Path) -> None:
    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer.json").write_text("{}")

    model = adapted()
    said = model(IDS).logits
    save_merged(model, Tokenizer(), tmp_path / "model", tmp_path / "adapter", tmp_path / "warm")
    loaded = Qwen2ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    torch.testing.assert_close(loaded(IDS).logits, said, rtol=1e-4, atol=1e-4)
    again = PeftModel.from_pretrained(adapted().unload(), str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(again(IDS).logits, said, rtol=1e-4, atol=1e-4)
    assert again.peft_config["default"].base_model_name_or_path == str(tmp_path / "warm")


@pytest.mark.skipif(find_spec("openrlhf") is None, reason="OpenRLHF is not installed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["PolicyActor", "ReferenceActor", "CriticActor", "VllmActor", "CpuVllmActor"])
def test_ray_can_pickle_an_actor(name: str) -> None:
    """It takes along every module of torch whose names the code spells, and those that hold settings it cannot."""
    import_module("torch.distributed.config")
    cloudpickle = import_module("ray.cloudpickle")
    actor = getattr(import_module("ragen_agent.openrlhf.ray_actors"), name)
    assert cloudpickle.dumps(actor.__ray_metadata__.modified_class)


@pytest.mark.skipif(find_spec("openrlhf") is None, reason="OpenRLHF is not installed")
@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_with_adapters_ends_in_a_model_that_eval_and_the_benchmark_read(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ragen_gym.cli import main as bench
    from tests.ragen_agent.openrlhf.small_runs import ROUNDING, SHORT, begin, configure, lines

    config = configure(warm, SHORT, {"training": {"learning_rate": 5e-3}, "lora": {"rank": 8, "alpha": 16.0}})
    folder, _ = begin(tmp_path / "run", config, {})
    trained = [record for record in lines(folder.path) if record["train_tokens"]]
    assert trained
    assert all(abs(record["vllm_kl"]) < ROUNDING for record in trained)
    assert not (folder.checkpoint / "adapter_model.safetensors").exists()
    assert (folder.adapter / "adapter_model.safetensors").is_file()
    assert main(["eval", str(folder.path), "--levels", "16", "--out", str(tmp_path / "results")]) == 0
    assert "16 fixed test levels" in capsys.readouterr().out
    agent = ["--agent", f"hf:{folder.checkpoint}", "--max-tokens", "24", "--limit", "2", "--split", "frozen_lake"]
    assert bench(["bench", "run", "--suite", "smoke", *agent, "--out", str(tmp_path / "bench"), "--json"]) == 0
    records = [json.loads(line) for line in (tmp_path / "bench" / "episodes.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(record["failure"] is None for record in records)
