"""On a CUDA GPU a model plays, is scored and learns as on the CPU, up to rounding. Skipped where there is no GPU."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ragen_agent.config import Config, Lora, Training, merged, with_settings
from ragen_agent.config.algorithms import POLICY_LOSSES
from ragen_agent.config.presets import default_settings
from ragen_agent.config.trainers import FineTuning
from ragen_agent.inference import sampling
from ragen_agent.inference.vision import ImageTable
from ragen_agent.local.backend import LearnerDiagnostics
from ragen_agent.local.policy_update import Critic, Learner, update
from ragen_agent.local.run import train
from ragen_agent.models.checkpoint import load_checkpoint, save_checkpoint
from ragen_agent.models.parameters import Float32AdamW, adamw, adapt
from ragen_agent.models.resources import release_freed_memory
from ragen_agent.run.policy import Policy, device_and_dtype
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.demonstrations import generate_demonstrations
from ragen_agent.sft.trainer import fit
from ragen_agent.tokens.rollout import group
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.storage import read_json_lines
from tests.ragen_agent.displays import Interrupting, quiet
from tests.ragen_agent.local.test_policy_update import loss_settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SMALL = {
    "small_model": {"hidden": 32, "layers": 2, "feed_forward": 32},
    "turns": {"max_turns": 3, "max_tokens_per_turn": 16, "max_tokens_per_episode": 400},
    "demonstrations": {"episodes": 96, "thought": "direction"},
    "training": {"iterations": 3, "groups": 4, "group_size": 4, "minibatch": 8},
    "evaluation": {"levels": 12},
}
SEES = {
    "small_model": {"kind": "vision", "hidden": 32, "layers": 1, "feed_forward": 32},
    "turns": {"observation": "image", "grounding": True, "max_tokens_per_turn": 44},
}


def configure(*settings: dict[str, Any]) -> Config:
    found: Any = merged(default_settings("FrozenLake"), SMALL)
    for more in settings:
        found = merged(found, more)
    return with_settings(Config(), found)


def on(device: str, *settings: dict[str, Any]) -> Policy:
    return Policy.build(configure(*settings, {"device": device}))


def played(agent: Policy) -> list[Trajectory]:
    return agent.play(agent.processes("train", 16), group([1, 2, 3, 4], 4), 1.0, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that counts as pretrained, since it does not say that it was made here."""
    agent = on("cpu")
    path = tmp_path_factory.mktemp("cuda") / "model"
    save_checkpoint(agent.model, agent.tokenizer, path)
    config = json.loads((path / "config.json").read_text())
    del config["tokenizer_sha256"]
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("kind", ["text", "pictures", "history", "large vocabulary"])
def test_the_episodes_are_those_of_the_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, list[dict[str, Any]]] = {"pictures": [SEES], "history": [{"turns": {"history": 1}}]}
    more = kinds.get(kind, [])
    if kind == "large vocabulary":
        monkeypatch.setattr(sampling, "LARGE_VOCABULARY", 0)
        monkeypatch.setattr(sampling, "LOGITS_ON_GPU", 2000)  # some slots at a time
    ours, theirs = played(on("cuda", *more)), played(on("cpu", *more))
    same = [a for a, b in zip(ours, theirs, strict=True) if a.ids.tolist() == b.ids.tolist()]
    assert all(each.failure is None for each in ours)
    assert len(same) >= 14, "a uniform number may fall where rounding decides, hardly ever in 16 episodes"
    for a, b in zip(ours, theirs, strict=True):
        if a.ids.tolist() == b.ids.tolist():
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_what_was_sampled_is_scored_as_it_was_sampled(dtype: str, apart: float) -> None:
    agent = on("cuda", {"dtype": dtype})
    batch = Batch.of(played(agent), "cuda")
    with torch.no_grad():
        scores = sampled_scores(agent.model, batch, agent.engine.bias)
    assert float((scores.log_probs - batch.log_probs)[batch.sampled].abs().max()) < apart


@pytest.mark.parametrize(
    ("algo", "rule", "lora"),
    [*(("grpo", rule, 0) for rule in POLICY_LOSSES), ("ppo", "ppo", 0), ("grpo", "ppo", 4), ("ppo", "ppo", 4)],
)
def test_an_update_has_the_gradients_of_the_cpu(algo: str, rule: str, lora: int) -> None:
    if lora:
        pytest.importorskip("peft", reason="LoRA needs the extra sft")
    training = Training(
        algo=algo, minibatch=16, kl_kind="k2", kl_place="loss", kl=0.5, entropy_bonus=0.1,
        correction="" if rule == "gspo" else "clip", **loss_settings(rule),
    )  # fmt: skip
    trajectories = played(on("cpu"))
    rewarded = [replace(t, turn_rewards=(1.0 * (i % 3),) * len(t.turn_ends)) for i, t in enumerate(trajectories)]
    found = []
    for device in ("cuda", "cpu"):
        agent = on(device)
        start = copy.deepcopy(agent.model)
        with torch.no_grad():  # no longer those that sampled: ratios, clips and the divergence have gradients
            agent.model.get_output_embeddings().weight.mul_(1.2)
        if lora:
            adapt(agent.model, Lora(rank=lora), 0)
        learner = Learner(agent.model, adamw(agent.model, 1e-3), agent.engine.bias, reference_model=start)
        if algo == "ppo":
            learner.critic = Critic(learner.model)
            torch.nn.init.constant_(learner.critic.head.weight, 0.1)
            learner.critic_optimiser = adamw(learner.critic, 1e-3)
        measured = update(learner, rewarded, torch.linspace(-1, 1, 16), training, seed=0)
        modules = [learner.model, *([] if learner.critic is None else [learner.critic])]
        found.append((measured, [p.grad.cpu() for m in modules for p in m.parameters() if p.grad is not None]))
    (ours, gradients), (theirs, expected) = found
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("sees", [False, True], ids=["text", "pictures"])
def test_the_diagnostics_are_those_of_the_cpu(sees: bool) -> None:
    more = [SEES] if sees else []
    rows, found = played(on("cpu", *more)), []
    images = ImageTable() if sees else None
    pairs = []
    for row in rows:
        ids, first = (row.ids if images is None else images.keys(row.ids, row.images)).tolist(), row.sampled.argmax()
        pairs.append((ids[:first], ids[first : row.turn_ends[0] + 1]))
    for device in ("cuda", "cpu"):
        agent = on(device, *more)
        learner = Learner(agent.model, adamw(agent.model, 1e-3), agent.engine.bias)
        measured = LearnerDiagnostics(learner, Training(minibatch=8))
        found.append(measured.log_probs(pairs, images))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


def test_a_pretrained_model_takes_the_gpu_in_bfloat16_and_fine_tuning_lowers_its_loss(folder: Path) -> None:
    config = configure({"model": str(folder)})
    assert device_and_dtype(config) == ("cuda", torch.bfloat16)
    agent = Policy.build(config, folder)
    rows = generate_demonstrations(config, agent, config.demonstrations, quiet())
    optimiser, losses = adamw(agent.model, 1e-2), []
    assert isinstance(optimiser, Float32AdamW)
    batches = [rows[first : first + 16] for first in range(0, 96, 16)] * 3
    fit(agent.model, optimiser, batches, agent.engine.bias, after_step=lambda _, found: losses.append(found["loss"]))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("lora", [0, 4])
def test_sft_train_writes_a_model_that_the_cpu_reads(lora: int, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the extra sft")
    from ragen_agent.cli import main
    from ragen_agent.sft.fine_tune import begin, fine_tune

    data, out = tmp_path / "demos.jsonl", tmp_path / "sft"
    words = ["--game", "FrozenLake", "--episodes", "96", "--set", "demonstrations.thought=direction"]
    assert main(["sft", "data", *words, "--out", str(data)]) == 0
    settings = FineTuning(
        data=str(data), model=str(folder), batch=16, learning_rate=3e-3, device="cuda", lora=Lora(rank=lora)
    )
    found = fine_tune(begin(settings, out), out, quiet())
    assert found["loss"] > 0
    if not lora:
        assert load_checkpoint(Path(found["model"]))[0].device.type == "cpu"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"training": {"algo": "ppo"}},
        {"lora": {"rank": 4}},
        {"training": {"groups_by": "state", "refills": 1, "correction": "clip"}},
        {"training": {"entropy_smoothing": 0.1, "entropy_bonus": 0.1, "kl_kind": "k1", "kl_place": "reward"}},
        {"training": {"algo": "ppo", "credit": "bi_level", "loss_tokens": "answer"}, "turns": {"history": 1}},
        {"training": {"algo": "ppo", "credit": "turn", "kl_kind": "k3", "kl_place": "loss"}, "dtype": "bfloat16"},
        {**SEES, "training": {"algo": "ppo"}},
    ],
    ids=["grpo", "ppo", "lora", "states", "epo", "history", "bfloat16", "pictures"],
)
def test_a_run_is_interrupted_resumed_and_measured(settings: dict[str, Any], tmp_path: Path) -> None:
    if "lora" in settings:
        pytest.importorskip("peft", reason="LoRA needs the extra sft")
    every = {"diagnostics": {"information_every": 1}}
    every["evaluation"] = {"imitation": True}
    config = configure({"device": "cuda", "training": {"save_every": 1}}, every, settings)
    run = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(KeyboardInterrupt):
        train(config, run, Interrupting(1))
    summary = train(config, *RunFolder.reopen(run.path)[:1], quiet())
    assert {"before", "after", "more_imitation", "clean_warm_start"} <= set(summary)
    records = read_json_lines(run.metrics)
    assert len(records) == 3
    assert all("retrieval_accuracy" in record for record in records)
    assert load_checkpoint(run.path / "checkpoint")[0].device.type == "cpu"
    assert json.loads((run.path / "summary.json").read_text())["after"]["n"] == 12
    assert summary["gpu"] == torch.cuda.get_device_name()
    assert summary["gpu_memory_gib"] > 0


def test_a_run_whose_programs_play(tmp_path: Path) -> None:
    from tests.pages import script_of
    from tests.ragen_agent.programs.test_program_episodes import GUIDE, command

    script_of(GUIDE, "python", tmp_path)
    program = {"command": command(tmp_path), "workers": 2}
    config = configure({"device": "cuda", "program": program, "evaluation": {"levels": 4}})
    run = RunFolder.create(tmp_path / "run", config)
    train(config, run, quiet())
    assert [record["failed"] for record in read_json_lines(run.metrics)] == [0, 0, 0]


def test_memory_is_given_back() -> None:
    agent = on("cuda")
    played(agent)
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        played(agent)
        assert torch.cuda.memory_allocated() < before + 2**18, "a rollout leaves no garbage that is to be collected"
    finally:
        gc.enable()
    release_freed_memory()
    held, space = torch.cuda.memory_reserved(), torch.empty(2**28, device="cuda")
    del space
    assert torch.cuda.memory_reserved() > held + 2**29  # less than 2**30 where segments can grow
    release_freed_memory()
    assert torch.cuda.memory_reserved() <= held


def test_the_gpus_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    from ragen_agent.cli import main

    main(["doctor", "--backend", "local"])
    (found,) = (line for line in capsys.readouterr().out.splitlines() if " CUDA " in line)
    assert f"cuda:0 {torch.cuda.get_device_name(0)}" in found
    assert "GiB free" in found
    with pytest.raises(ValueError, match=r"device 'cuda:99' cannot be used: .*\. Torch finds here: cpu, cuda:0"):
        device_and_dtype(configure({"device": "cuda:99"}))
    played(on("cuda:0"))


def test_a_visual_agent_of_the_benchmark_answers_as_on_the_cpu(tmp_path: Path) -> None:
    from ragen_gym.bench.agents import make_agent
    from tests.ragen_agent.agents.test_hf_pictures import LAKE, ask

    policy = on("cpu", SEES)
    save_checkpoint(policy.model, policy.tokenizer, tmp_path / "model")
    agent: Any = make_agent(f"hf:{tmp_path / 'model'}", max_tokens=8)
    assert agent.circumstances["device"] == "cuda"
    ours = ask(agent, LAKE, LAKE[::-1], repeat=4)
    theirs = ask(make_agent(f"hf:{tmp_path / 'model'}", max_tokens=8, device="cpu"), LAKE, LAKE[::-1], repeat=4)
    assert sum(a.text == b.text for a, b in zip(ours, theirs, strict=True)) >= 6


def test_an_agent_of_the_benchmark_answers_from_the_gpu(folder: Path) -> None:
    pytest.importorskip("openai", reason="the benchmark needs the extra bench")
    from ragen_gym.bench.agents import make_agent
    from tests.ragen_agent.agents.test_hf import ask

    agent: Any = make_agent(f"hf:{folder}", max_tokens=8)

    async def play() -> list[Any]:
        try:
            return await asyncio.gather(*(ask(agent, seed) for seed in range(4)))
        finally:
            await agent.close()

    assert agent._model.device.type == "cuda"
    assert [0 < answer.completion_tokens <= 8 for answer in asyncio.run(play())] == [True] * 4
