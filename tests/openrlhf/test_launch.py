"""What a run is told, refused, and given back after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.cli import main
from ragen_agent.config import Config, with_settings
from ragen_agent.local.run_folder import RunFolder, read_json_lines
from ragen_agent.openrlhf import cpu
from ragen_agent.openrlhf.command import flags
from ragen_agent.openrlhf.settings import OpenRLHF, Workers
from ragen_agent.openrlhf.state import State, check_possible, mend, planned_updates


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
    training = {"groups": 8, "members": 8, "minibatch": 16, "iterations": 10, "updates": 2}
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
    with pytest.raises(ValueError, match=r"training.replay is 2, which OpenRLHF does not have; use 0"):
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
