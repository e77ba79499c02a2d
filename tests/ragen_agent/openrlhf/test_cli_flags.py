"""Which flags OpenRLHF is given, and which it must not be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.cli_flags import DECIDED, command_flags, extra_flags


def values(
    config: dict[str, Any], settings: dict[str, Any] | None = None, *, cpu: bool = True, resume: bool = False
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    whole, own = with_settings(Config(), config), with_settings(OpenRLHF(), settings or {})
    for word in command_flags(whole, own, Path("/runs/one"), Path("/models/small"), cpu=cpu, resume=resume):
        if word.startswith("--"):
            found[word[2:]] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_settings_become_flags() -> None:
    flags = values({"training": {"updates": 3, "minibatch": 32}})
    assert flags["algo.advantage.estimator"] == ["reinforce"], "OpenRLHF refuses groups of one with group_norm"
    assert flags["algo.kl.init_coef"] == ["0.0"]
    assert flags["train.max_epochs"] == ["3"]
    assert flags["train.batch_size"] == ["32"]
    assert flags["vllm.sync_backend"] == ["gloo"]
    assert "ds.packing_samples" not in flags
    vanilla = values({"training": {"algo": "ppo", "starpo_s": False, "kl": 0.01, "kl_kind": "k3"}}, resume=True)
    assert vanilla["algo.advantage.estimator"] == ["gae"]
    assert vanilla["algo.kl.init_coef"] == ["0.01"]
    assert vanilla["algo.kl.estimator"] == ["k3"]
    assert "ckpt.load_enable" in vanilla
    gpu = values({}, cpu=False)
    assert gpu["vllm.sync_backend"] == ["nccl"]
    assert gpu["ds.attn_implementation"] == ["sdpa"]
    assert "ds.packing_samples" not in gpu
    assert "ds.packing_samples" in values({}, {"attention": "flash_attention_2"}, cpu=False)


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, {"ds.enable_sleep", "vllm.enable_sleep"}),
        ({"sleep": "vllm"}, {"vllm.enable_sleep"}),
        ({"sleep": "none"}, set()),
        ({"colocate": False}, set()),
    ],
)
def test_models_on_shared_gpus_sleep_as_they_are_told(settings: dict[str, Any], flags: set[str]) -> None:
    assert {name for name in values({}, settings, cpu=False) if name.endswith("enable_sleep")} == flags
    assert not any(name.endswith("enable_sleep") for name in values({}, settings))


def test_playing_ahead_is_openrlhfs_asynchronous_trainer() -> None:
    ahead = values({}, {"staleness": 2})
    assert ahead["train.async_enable"] == []
    assert ahead["train.async_queue_size"] == ["2"]
    assert not {"train.async_enable", "train.async_queue_size"} & set(values({}))
    with pytest.raises(ValueError, match=r"use the setting openrlhf.staleness"):
        extra_flags(OpenRLHF(flags="--train.async_enable"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--train.seed 3", r"--train.seed is decided by .* use the setting seed"),
        ("--actor.adam.lr=1e-5", r"use the setting training.learning_rate"),
        ("--actor.eps_clip_low_high 0.1 0.3", r"begin with --ds., --vllm., --actor.adam., "),
        ("--train.batch 64", r"--train.batch, short for --train.batch_size,"),
        ("--ckpt.path /x", r"it is the run's folder"),
        ("--train.partial_rollout_enable", r"does not fit this trainer"),
        ("--ds.offload 'x", r"openrlhf.flags is .*: no closing quotation"),
    ],
)
def test_flags_that_the_settings_decide_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        extra_flags(OpenRLHF(flags=flags))


def test_every_flag_that_is_written_is_one_that_is_refused() -> None:
    everything = {"starpo_s": False, "kl_place": "loss", "kl_kind": "k3", "algo": "ppo"}
    sizes = {"attention": "flash_attention_2", "adam_offload": True, "gradient_checkpointing": True}
    config = {"training": everything, "lora": {"rank": 4, "targets": ["q_proj"]}}
    written = set(values(config, sizes, cpu=False, resume=True))
    written |= set(values({"turns": {"observation": "image"}}, {"freeze_vision": True}, cpu=False))
    written |= set(values({}, {"staleness": 1}))
    assert written == set(DECIDED)
    more = "--train.agent_func_path '/own executor.py' --vllm.enforce_eager --ds.zpg 2 --actor.adam.eps 1e-6"
    words = ["--train.agent_func_path", "/own executor.py", "--vllm.enforce_eager", "--ds.zpg", "2"]
    assert extra_flags(OpenRLHF(flags=more)) == [*words, "--actor.adam.eps", "1e-6"]


def test_adapter_settings_become_flags() -> None:
    lora = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj"]}
    flags = values({"lora": lora})
    assert (flags["ds.lora.rank"], flags["ds.lora.alpha"]) == (["4"], ["8"])
    assert flags["ds.lora.target_modules"] == ["q_proj", "v_proj"]
    assert "ds.lora.target_modules" not in values({"lora": {"rank": 4}})
