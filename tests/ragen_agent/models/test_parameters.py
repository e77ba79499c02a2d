"""LoRA: the adapter alone is trained, the reference is the model without it, a resumed run is the unbroken one."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from ragen_agent.cli import main
from ragen_agent.config import Config, Lora, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.local import run as training
from ragen_agent.local.backend import LocalBackend
from ragen_agent.local.policy_update import Critic
from ragen_agent.models import parameters
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.models.parameters import Float32AdamW, adamw, restore_optimiser
from ragen_agent.run.policy import Policy, device_and_dtype
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.storage import read_json_lines

pytest.importorskip("peft", reason="LoRA needs the extra sft")

from ragen_agent.models.parameters import adapt, load_policy, load_trained, merge, rounding_notice, trained
from tests.ragen_agent.displays import Interrupting, quiet

TRAINING = {"algo": "ppo", "starpo_s": False, "iterations": 3, "groups": 2, "group_size": 4, "learning_rate": 1e-2}
TINY = {
    "game": "Bandit",
    "small_model": {"hidden": 32, "layers": 2, "feed_forward": 32},
    "demonstrations": {"episodes": 96},
    "training": TRAINING,
    "evaluation": {"levels": 12},
    "lora": {"rank": 4, "alpha": 8.0},
}


def configure(settings: Mapping[str, Any] | None = None) -> Config:
    return with_settings(Config(), merged(merged(default_settings("Bandit"), TINY), settings or {}))


def played(agent: Policy) -> list[Trajectory]:
    return agent.play(agent.processes("train", 8), group([1, 2], 4), 1.0, 0)


def shaken(model: torch.nn.Module) -> None:
    """B is no longer 0, so that the adapter says something."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


def log_probs(agent: Policy, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return sampled_scores(agent.model, batch, agent.engine.bias).log_probs


def test_an_adapter_begins_as_the_model_and_ends_as_its_weights() -> None:
    agent = Policy.build(configure())
    batch = Batch.of(played(agent))
    start, names = log_probs(agent, batch), {name for name, _ in agent.model.named_parameters()}
    adapter = adapt(agent.model, agent.config.lora, 5)
    assert torch.equal(log_probs(agent, batch), start), "B is 0"
    assert {name.split(".")[-3] for name in trained(agent.model)} == {"lora_A", "lora_B"}
    layers = {name.split(".")[-4] for name in trained(agent.model)}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    shaken(agent.model)
    with_adapter = log_probs(agent, batch)
    assert (with_adapter - start).abs().max() > 0.05
    with adapter.disable_adapter():
        assert torch.equal(log_probs(agent, batch), start)
    assert torch.equal(log_probs(agent, batch), with_adapter), "the adapter is on again"
    assert merge(adapter) is agent.model is agent.engine.model
    torch.testing.assert_close(log_probs(agent, batch), with_adapter, atol=2e-5, rtol=0)
    assert {name for name, _ in agent.model.named_parameters()} == names


@pytest.mark.filterwarnings("ignore:dtype=bfloat16")
def test_an_engine_that_played_before_plays_with_a_merged_adapter() -> None:
    """Engines keep copies of weights of bfloat16, where a CPU has units for it, and make them anew by the version."""
    agent, other = (Policy.build(configure({"dtype": "bfloat16"})) for _ in range(2))
    start = played(agent)
    adapter = adapt(agent.model, agent.config.lora, 5)
    shaken(agent.model)
    layer = agent.model.get_submodule("model.layers.0.mlp.down_proj")
    version = layer.get_parameter("base_layer.weight")._version
    merge(adapter)
    assert agent.model.get_parameter("model.layers.0.mlp.down_proj.weight")._version > version
    other.model.load_state_dict(agent.model.state_dict())
    ours, theirs = ([list(row.ids) for row in played(each)] for each in (agent, other))
    assert ours == theirs != [list(row.ids) for row in start]


@pytest.mark.parametrize(("scale", "rounds"), [(0.3, False), (1e-4, True)])
def test_what_a_merge_rounds_away_is_said(scale: float, rounds: bool) -> None:
    agent = Policy.build(configure())
    model = agent.model.bfloat16().float()
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    adapter = adapt(model, agent.config.lora, 5)
    shaken(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight *= scale / 0.3
    assert not rounding_notice(adapter), "float32 keeps it"
    notice = rounding_notice(adapter, torch.bfloat16)
    merge(adapter)
    updates = [(weight, weight - start[name]) for name, weight in model.state_dict().items()]
    kept = sum(float(((w.bfloat16().float() - w + update) * update).sum()) for w, update in updates)
    lost = 1 - kept / sum(float(update.square().sum()) for _, update in updates)
    assert bool(notice) is rounds is (lost > 0.5)
    if rounds:
        assert abs(int(notice.partition("bfloat16 rounds away ")[2].partition("%")[0]) - 100 * lost) < 1


def test_an_adapter_depends_on_its_seed_alone_and_not_on_the_global_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*arguments: Any) -> None:
        raise AssertionError("a GPU's state takes memory on it")

    states: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", used)
    for seed in (1, 1, 2):
        agent = Policy.build(configure())
        torch.manual_seed(len(states))
        before = torch.random.get_rng_state()
        adapt(agent.model, Lora(rank=2), seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        states.append(torch.cat([value.flatten() for value in trained(agent.model).values()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_an_iteration_changes_nothing_but_the_adapter(tmp_path: Path) -> None:
    settings = {"kl_kind": "k2", "kl_place": "loss", "minibatch": 64}
    config = configure({"training": settings})
    folder = RunFolder.create(tmp_path / "run", config)
    agent = Policy.build(config)
    before = copy.deepcopy(agent.model.state_dict())
    backend = LocalBackend(config, agent, folder)
    policy = backend.learner
    assert id(policy.reference_model) == id(agent.model)
    backend.loop().run()
    frozen = {name: value for name, value in agent.model.named_parameters() if not value.requires_grad}
    assert len(frozen) == len(before) - ("lm_head.weight" in before)
    for name, value in frozen.items():
        assert value.grad is None
        assert torch.equal(value, before[name.replace(".base_layer", "")]), name
    assert all(value.any() for name, value in trained(agent.model).items() if "lora_B" in name), "all B have moved"
    assert isinstance(policy.critic, Critic)
    shared = {id(value) for value in frozen.values()}
    own = [value for value in policy.critic.parameters() if id(value) not in shared]
    assert own, "the critic has an adapter and a head of its own"
    assert all(value.requires_grad for value in own)
    assert not {id(value) for value in own} & {id(value) for value in agent.model.parameters()}
    state = RunFolder(folder.path).load_state()
    assert state is not None
    assert state["model"].keys() == trained(agent.model).keys()
    kl = [record["kl"] for record in read_json_lines(folder.metrics)]
    assert kl[0] == 0.0
    assert kl[-1] > 1e-3, "the reference stays where the run began"


@pytest.mark.parametrize(("rank", "dtype"), [(4, "float32"), (4, "bfloat16"), (0, "bfloat16")])
@pytest.mark.filterwarnings("ignore:dtype=bfloat16")
def test_a_resumed_run_equals_an_unbroken_one(rank: int, dtype: str, tmp_path: Path) -> None:
    config = configure({"dtype": dtype, "lora": {"rank": rank, "alpha": 8.0 if rank else 32.0}})
    folder = RunFolder.create(tmp_path / "whole", config)
    run = training.TrainingRun(config, folder, quiet())
    run.warm_start()
    shutil.copytree(folder.path, tmp_path / "broken")
    run.reinforce()

    folder = RunFolder(tmp_path / "broken")
    run = training.TrainingRun(config, folder, Interrupting(2))
    with pytest.raises(KeyboardInterrupt):
        run.reinforce()
    run.keep()
    kept, state = load_checkpoint(folder.checkpoint)[0].state_dict(), folder.load_state()
    assert state is not None
    again = Policy.build(config, folder.warm)
    load_policy(again.model, config.lora, state["model"])
    assert all(torch.equal(kept[name], value.float()) for name, value in again.model.state_dict().items())
    training.TrainingRun(config, RunFolder.reopen(folder.path)[0], quiet()).reinforce()
    one, two, start = (
        load_checkpoint(path)[0].state_dict()
        for path in (tmp_path / "whole" / "checkpoint", folder.checkpoint, folder.warm)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], start[name]) for name in one), "it has learned"
    whole = RunFolder(tmp_path / "whole").load_state()
    state = folder.load_state()
    assert whole is not None
    assert state is not None
    assert all(torch.equal(value, state["model"][name]) for name, value in whole["model"].items())


def test_a_run_ends_in_a_checkpoint_that_anything_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel

    monkeypatch.chdir(tmp_path)
    config, rates = configure(), tmp_path / "rates.json"
    folder = RunFolder.create(tmp_path / "run", config)
    summary = training.train(config, folder, quiet())
    assert main(["eval", str(folder.path), "--json", str(rates)]) == 0
    assert json.loads(rates.read_text())["splits"][config.game]["success"] == summary["after"]
    merged_model = load_checkpoint(folder.checkpoint)[0]
    state = folder.load_state()
    assert state is not None
    assert all(value.any() for value in state["model"].values()), "it has learned"
    ids = torch.arange(30)[None]
    base = load_checkpoint(folder.warm)[0]
    served = PeftModel.from_pretrained(base, str(folder.adapter))
    with torch.no_grad():
        torch.testing.assert_close(served(ids).logits, merged_model(ids).logits, atol=1e-4, rtol=0)
    (folder.path / "summary.json").unlink()
    assert main(["eval", str(folder.path), "--json", str(rates)]) == 0, "from state.pt, as if it had been cut short"
    assert json.loads(rates.read_text())["splits"][config.game]["success"] == summary["after"]
    assert "was cut short: this is its model after iteration" in capsys.readouterr().out


def test_what_cannot_be_adapted_is_said_before_the_run() -> None:
    with pytest.raises(ValueError, match=r"'query'.*q_proj"):
        Policy.build(configure({"lora": {"targets": ["q_proj", "query"]}}))
    with pytest.raises(ValueError, match="alone"):
        Policy.build(configure({"lora": {"targets": ["q_proj", "all-linear"]}}))
    agent = Policy.build(configure({"lora": {"targets": ["q_proj", "v_proj"]}}))
    adapt(agent.model, agent.config.lora, 0)
    assert {name.split(".")[-4] for name in trained(agent.model)} == {"q_proj", "v_proj"}
    with pytest.raises(RuntimeError, match="names of the trained weights differ"):
        load_trained(agent.model, {"model.norm.weight": torch.zeros(1)})


def test_weights_in_bfloat16_learn_in_float32(tmp_path: Path) -> None:
    weight = torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    start = weight.weight.detach().clone()
    optimiser = adamw(weight, 1e-5, weight_decay=0.0)
    assert isinstance(optimiser, Float32AdamW)
    for _ in range(1000):
        optimiser.zero_grad()
        weight(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimiser.step()
    moved = optimiser.copies[0] - start.float()
    torch.testing.assert_close(moved, torch.full_like(moved, -0.01), atol=1e-4, rtol=0)
    assert torch.equal(weight.weight, optimiser.copies[0].bfloat16()), "each single step would have rounded to nothing"
    other = adamw(torch.nn.Linear(4, 1, bias=False, dtype=torch.bfloat16), 1e-5)
    other.load_state_dict(optimiser.state_dict())
    assert isinstance(other, Float32AdamW)
    assert torch.equal(other.copies[0], optimiser.copies[0])
    plain = torch.nn.Linear(4, 1, bias=False)
    restore_optimiser(adamw(plain, 1e-5), optimiser.state_dict())
    assert torch.equal(plain.weight, optimiser.copies[0]), "not their rounding"


def test_the_steps_of_parts_are_those_of_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, held = torch.Generator().manual_seed(0), list[int]()
    monkeypatch.setattr(parameters, "WEIGHTS_AT_ONCE", 20)
    weights = [torch.nn.Parameter(torch.randn(n, generator=generator).bfloat16()) for n in (7, 30, 8, 1, 12, 9)]
    ours, own = Float32AdamW(weights, 1e-2), [weight.detach().float() for weight in weights]
    theirs, step = torch.optim.AdamW(own, lr=1e-2, fused=True), torch.optim.AdamW.step

    def counted(optimiser: torch.optim.AdamW) -> None:
        held.append(sum(copy.numel() for copy in ours.copies if copy.grad is not None))
        step(optimiser)

    for number in range(4):
        for index, (weight, copied) in enumerate(zip(weights, own, strict=True)):
            weight.grad = None if index == number else torch.randn(weight.shape, generator=generator).bfloat16()
            copied.grad = None if weight.grad is None else weight.grad.float()
        monkeypatch.setattr(torch.optim.AdamW, "step", counted)
        ours.step()
        monkeypatch.setattr(torch.optim.AdamW, "step", step)
        theirs.step()
        for weight, copied, expected in zip(weights, ours.copies, own, strict=True):
            assert torch.equal(copied, expected)
            assert torch.equal(weight, expected.bfloat16())
    assert max(held) <= 20 + 30, "a part, and one weight more"


@pytest.mark.parametrize("order", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.filterwarnings("ignore:dtype=bfloat16")
def test_a_run_goes_on_in_another_dtype(order: tuple[str, str], tmp_path: Path) -> None:
    """As with dtype=auto on another machine."""
    first, then = (configure({"dtype": dtype, "lora": {"rank": 0, "alpha": 32.0}}) for dtype in order)
    folder = RunFolder.create(tmp_path / "run", first)
    training.TrainingRun(first, folder, quiet()).warm_start()
    with pytest.raises(KeyboardInterrupt):
        training.TrainingRun(first, folder, Interrupting(1)).reinforce()
    resumed, saved = training.TrainingRun(then, folder, quiet()), folder.load_state()
    assert saved is not None
    LocalBackend(then, resumed.policy, folder, saved).restore()
    for weight, exact in zip(resumed.policy.model.parameters(), saved["optimiser"].get("copies", ()), strict=False):
        assert torch.equal(weight, exact), "what bfloat16 has learned is kept in float32"
    training.TrainingRun(then, folder, quiet()).reinforce()
    assert len(read_json_lines(folder.metrics)) == 3
    state = folder.load_state()
    assert state is not None
    assert state["model"]["model.norm.weight"].dtype == getattr(torch, order[1])


def test_auto_takes_the_cpu_where_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Policy.build(configure())
    save_checkpoint(agent.model, agent.tokenizer, tmp_path / "small")
    large = replace(Config(), model=str(tmp_path / "elsewhere"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_and_dtype(large)[0] == "cpu"
    assert device_and_dtype(Config()) == ("cpu", torch.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_and_dtype(replace(Config(), model=str(tmp_path / "small"))) == ("cpu", torch.float32), (
        "the small model"
    )
    if not torch.backends.cuda.is_built():
        with pytest.raises(ValueError, match="'cuda' cannot be used"):
            device_and_dtype(large)


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_a_gpu_without_units_for_bfloat16_computes_in_float32(
    capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "empty", lambda *shape, device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert device_and_dtype(replace(Config(), model="elsewhere")) == ("cuda", dtype)


def test_a_missing_peft_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # as Python does where a module cannot be imported
    with pytest.raises(ImportError, match=r"pip install 'ragen-gym\[sft\]'"):
        Policy.build(configure())
    words = ["train", "--game", "Bandit", "--set", "lora.rank=4", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert not (tmp_path / "run").exists()
    assert Policy.build(configure({"lora": {"rank": 0, "alpha": 32.0}})).model is not None


SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
FAMILIES = {
    "llama": {**SHAPE, "num_key_value_heads": 1},
    "mistral": {**SHAPE, "num_key_value_heads": 1},
    "qwen3": {**SHAPE, "num_key_value_heads": 1, "head_dim": 16},
    "gemma2": {**SHAPE, "num_key_value_heads": 1, "head_dim": 16},
    "gpt_neox": SHAPE,
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_family_with_a_chat_template_learns_by_an_adapter(
    family: str, tmp_path: Path, make_tokenizer: Callable[[str, str], PreTrainedTokenizerBase]
) -> None:
    tokenizer = make_tokenizer("bpe", "llama3" if family == "llama" else "chatml")
    shape = AutoConfig.for_model(family, vocab_size=len(tokenizer), **FAMILIES[family], pad_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shape)
    save_checkpoint(model, tokenizer, tmp_path / "model")
    config = configure({"model": str(tmp_path / "model"), "warm_start": {"epochs": 0}, "training": {"iterations": 1}})
    folder = RunFolder.create(tmp_path / "run", config)
    run = training.TrainingRun(config, folder, quiet())
    run.warm_start()
    run.reinforce()
    state = folder.load_state()
    assert state is not None
    assert all(value.any() for value in state["model"].values()), "every part of the adapter has learned"
    before, after = (load_checkpoint(path)[0].state_dict() for path in (folder.warm, folder.checkpoint))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(before[name].ndim == 2 for name in changed)
