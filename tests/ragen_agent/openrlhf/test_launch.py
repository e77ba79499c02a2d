"""What a run is told, refused, and given back after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.cli.dry_run import scripted_episode
from ragen_agent.config import Config, with_settings
from ragen_agent.config.openrlhf import OpenRLHF, Workers
from ragen_agent.openrlhf import cpu
from ragen_agent.openrlhf.cli_flags import check_layout, flags
from ragen_agent.openrlhf.reserved_flags import DECIDED, refuse
from ragen_agent.openrlhf.state import State, check_possible, mend, planned_updates
from ragen_agent.training.policy import Policy
from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines


def workers(config: dict[str, Any], settings: dict[str, Any] | None = None) -> Workers:
    told = with_settings(OpenRLHF(), settings or {})
    return Workers(with_settings(Config(), config), told, "/runs/one", (3, 5), 8)


def values(run: Workers, **how: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in flags(run, Path("/models/small"), how.get("on_cpu", True), how.get("resume", False)):
        if word.startswith("--"):
            found[word[2:]] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_what_workers_are_told_survives_the_environment() -> None:
    run = workers({"training": {"algo": "ppo", "credit": "turn"}}, {"correction": [0.5, 3.0]})
    assert Workers.from_json(run.to_json()) == run


def test_settings_become_flags() -> None:
    told = values(workers({"training": {"updates": 3, "minibatch": 32}}))
    assert told["actor.eps_clip_low_high"] == ["0.2", "0.28"]
    assert told["algo.advantage.estimator"] == ["group_norm"]
    assert told["algo.kl.init_coef"] == ["0.0"]
    assert told["train.max_epochs"] == ["3"]
    assert told["train.batch_size"] == ["32"]
    assert told["vllm.sync_backend"] == ["gloo"]
    assert "ds.packing_samples" not in told
    vanilla = values(
        workers({"training": {"algo": "ppo", "starpo_s": False, "kl": 0.01, "kl_kind": "k3"}}), resume=True
    )
    assert vanilla["actor.eps_clip_low_high"] == ["0.2", "0.2"]
    assert vanilla["algo.advantage.estimator"] == ["gae"]
    assert vanilla["algo.kl.init_coef"] == ["0.01"]
    assert vanilla["algo.kl.estimator"] == ["k3"]
    assert "ckpt.load_enable" in vanilla
    gpu = values(workers({}), on_cpu=False)
    assert gpu["vllm.sync_backend"] == ["nccl"]
    assert gpu["ds.attn_implementation"] == ["flash_attention_2"]
    assert "ds.packing_samples" in gpu


def test_the_schedule_counts_what_is_left_after_the_filter() -> None:
    training = {"groups": 8, "group_size": 8, "minibatch": 16, "iterations": 10, "updates": 2}
    assert planned_updates(workers({"training": {**training, "keep": 0.25}})) == 10 * 2 * 1
    assert planned_updates(workers({"training": {**training, "filter": "none"}})) == 10 * 2 * 4
    assert planned_updates(workers({"training": {**training, "filter": "top_p", "keep": 0.9}})) == 10 * 2 * 4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accelerator": "tpu"}, "openrlhf.accelerator is 'tpu'; choose one of auto, cuda, cpu"),
        ({"failure_budget": 1.5}, "openrlhf.failure_budget is 1.5; it must be from 0 to 1"),
        ({"correction": [2.0, 1.0]}, "a lower and a higher bound"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_settings(OpenRLHF(), settings)


def test_what_openrlhf_or_a_cpu_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a multiple of openrlhf.micro_batch=8 times the 3 GPUs of the actor"):
        check_possible(workers({"training": {"minibatch": 64}}, {"actor_gpus": 3}))
    with pytest.raises(ValueError, match=r"training.replay is 2, which .* does not have; use 0"):
        check_possible(workers({"training": {"replay": 2}}))
    check_possible(workers({}))
    with pytest.raises(ValueError, match=r"--ds.packing_samples needs CUDA"):
        cpu.refuse(["--actor.adam.lr", "1e-6", "--ds.packing_samples"])
    with pytest.raises(ValueError, match="ring_attn_size 2 needs CUDA"):
        cpu.refuse(["--ds.ring_attn_size", "2"])
    cpu.refuse(["--ds.ring_attn_size", "1"])


def test_flags_of_openrlhf_need_its_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--", "--vllm.enforce_eager"]) == 2
    assert "give --backend openrlhf" in capsys.readouterr().err


def test_an_interruption_leaves_no_trace_beyond_the_last_saved_iteration(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.append(folder.metrics, [{"iteration": i} for i in range(6)])
    with folder.metrics.open("a") as file:
        file.write('{"iteration": 6, "suc')
    folder.append(folder.episodes, [{"phase": "train", "iteration": i} for i in range(6)])
    for part, tags in (
        ("_actor", ("iteration2", "iteration4", "iteration6")),
        ("_critic", ("iteration2", "iteration4")),
    ):
        for tag in tags:
            (folder.path / "deepspeed" / part / tag).mkdir(parents=True)
        (folder.path / "deepspeed" / part / "latest").write_text(tags[-1])
    State(4, "iteration4").write(folder.path)
    assert mend(folder) == State(4, "iteration4", 0)
    assert [record["iteration"] for record in read_json_lines(folder.metrics)] == [0, 1, 2, 3]
    assert [record["iteration"] for record in read_json_lines(folder.episodes)] == [0, 1, 2, 3]
    for part in ("_actor", "_critic"):
        assert (folder.path / "deepspeed" / part / "latest").read_text() == "iteration4"
        assert not (folder.path / "deepspeed" / part / "iteration6").exists()
    fresh = RunFolder.create(tmp_path / "fresh", Config())
    (fresh.path / "deepspeed" / "_actor" / "iteration1").mkdir(parents=True)
    assert mend(fresh) == State()
    assert not (fresh.path / "deepspeed" / "_actor").exists()
    assert json.loads((folder.path / "state.json").read_text())["tag"] == "iteration4"


RECIPE = ["train", "--recipe", "qwen2.5-0.5b-sokoban"]


def test_a_dry_run_shows_everything_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RECIPE, "--backend", "openrlhf", "--dry-run", "--seed", "7", "--", "--ds.overlap_comm"]) == 0
    said = capsys.readouterr().out
    for part in (
        "seed = 7",
        "[openrlhf]",
        "python -m openrlhf.cli.train_ppo_ray",
        "--rollout.batch_size 8",
        "--train.seed 7",
        "Passed on as given: --ds.overlap_comm",
        "8 prompts (levels) x 16 samples = 128 episodes",
        "2 x 16 = 32 episodes to train on",
        "so 1 update of the policy and of the critic",
        "25,600 episodes",
        "GPUs: 1, shared by all",
        "about 52.2 of 80 GiB",
        "not run here",
        "⟦<think></think><answer>",
    ):
        assert part in said, part
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_the_local_trainer_has_the_same_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert 'game = "FrozenLake"' in said
    assert "32 prompts (levels) x 8 samples = 256 episodes" in said
    assert "keeps 16 of 32 groups" in said
    assert "openrlhf" not in said
    assert "⟦<think>" in said
    assert not list(tmp_path.iterdir())


def test_the_configuration_of_a_dry_run_is_one_that_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RECIPE, "--backend", "openrlhf", "--dry-run"]) == 0
    said = capsys.readouterr().out
    text = said.split("Configuration\n", 1)[1].split("\nCommand\n", 1)[0]
    (tmp_path / "all.toml").write_text(text)
    assert main(["train", "--config", "all.toml", "--backend", "openrlhf", "--dry-run"]) == 0
    assert capsys.readouterr().out.split("\nCommand\n")[1].split("\nMemory")[0] in said


def test_a_picture_marks_exactly_the_sampled_tokens() -> None:
    agent = Policy.build(with_settings(Config(), {"small_model": {"hidden": 32, "layers": 1}}))
    picture = scripted_episode(agent.config, agent.chat)
    trajectory = picture.trajectory
    assert "".join(words for _, words in picture.spans) == agent.tokenizer.decode(trajectory.ids.tolist())
    sampled = "".join(words for mine, words in picture.spans if mine)
    assert sampled == agent.tokenizer.decode(trajectory.ids[trajectory.sampled].tolist())
    coloured = [str(span.style) for span in picture.text.spans]
    assert coloured.count("bold green") == len(trajectory.turn_ends)


def test_a_secret_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    assert main([*RECIPE, "--backend", "openrlhf", "--dry-run", "--set", "openrlhf.wandb=p"]) == 0
    said = capsys.readouterr().out
    assert "--logger.wandb.project p" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--train.seed", "3"], r"--train.seed is decided by .* use the setting seed"),
        (["--actor.adam.lr=1e-5"], r"use the setting training.learning_rate"),
        (["--actor.eps_clip", "0.3"], r"--actor.eps_clip, short for --actor.eps_clip_low_high"),
        (["--train.batch", "64"], r"short for --train.batch_size"),
        (["--ckpt.path", "/x"], r"it is the run's folder"),
        (["--algo.dynamic_filtering_enable"], r"the filter is ours"),
        (["--train.async_enable"], r"does not fit this trainer"),
    ],
)
def test_flags_that_the_settings_decide_are_refused(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=reason):
        refuse(flags)
    assert main([*RECIPE, "--backend", "openrlhf", "--dry-run", "--", *flags]) == 2
    assert capsys.readouterr().err.startswith("ragen-agent: --")


def test_every_flag_that_is_written_is_one_that_is_refused() -> None:
    everything = {"dual_clip": 3.0, "starpo_s": False, "kl_place": "loss", "kl_kind": "k3", "algo": "ppo"}
    sizes = {"colocate": True, "adam_offload": True, "gradient_checkpointing": True, "vllm_eager": True, "wandb": "p"}
    told = {"training": everything, "lora": {"targets": ["q_proj"]}}
    written = set(values(workers(told, sizes), on_cpu=False, resume=True))
    assert written == set(DECIDED)
    refuse(["--train.agent_func_path", "/own/executor.py", "--ds.zpg", "2", "--actor.min_lr_ratio", "0.2"])


def test_models_that_share_gpus_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="the actor's 2 and vLLM's 1 must be equally many"):
        check_layout(workers({}, {"colocate": True, "actor_gpus": 2}))
    with pytest.raises(ValueError, match="the actor's 1 and the critic's 2 must be equally many"):
        check_layout(workers({"training": {"algo": "ppo"}}, {"colocate": True, "critic_gpus": 2}))
    check_layout(workers({}, {"colocate": True, "critic_gpus": 2}))
    check_layout(workers({}, {"actor_gpus": 2}))


def test_adapters_are_told_to_openrlhf_as_it_takes_them() -> None:
    lora = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj"]}
    told = values(workers({"lora": lora}))
    assert (told["ds.lora.rank"], told["ds.lora.alpha"]) == (["4"], ["8"])
    assert told["ds.lora.target_modules"] == ["q_proj", "v_proj"]
    assert "ds.lora.target_modules" not in values(workers({"lora": {"rank": 4}}))
    with pytest.raises(ValueError, match=r"needs openrlhf.zero_stage 2"):
        check_layout(workers({"lora": lora}, {"zero_stage": 3}))
    with pytest.raises(ValueError, match=r"lora.alpha is 8.5"):
        check_layout(workers({"lora": {**lora, "alpha": 8.5}}))
