"""Real runs: OpenRLHF's command line on Ray, vLLM and DeepSpeed, with a small model on the CPU.

A start takes a minute, so each run shows several things.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from ragen_agent.cli import main
from ragen_agent.config import Config, merged, to_toml, with_settings
from ragen_agent.local.display import Display
from ragen_agent.local.recipes import RECIPES
from ragen_agent.local.run_folder import RunFolder, read_json_lines
from ragen_agent.local.small_model import load_checkpoint
from ragen_agent.local.train import Run
from ragen_agent.openrlhf.launch import RunStoppedError, train_distributed
from ragen_agent.openrlhf.settings import OpenRLHF
from ragen_agent.openrlhf.state import State

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

ITERATIONS = 20
BASE: dict[str, Any] = {
    "game": "FrozenLake",
    "demonstrations": {"episodes": 4000},
    "warm_start": {"epochs": 1},
    "training": {"groups": 8, "members": 8, "keep": 0.5, "minibatch": 16, "iterations": ITERATIONS},
    "evaluation": {"levels": 32},
}
FAULTY = str(Path(__file__).with_name("faulty_executor.py"))


def quiet() -> Display:
    return Display(Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model after a short warm start, with which every run begins."""
    config = with_settings(Config(), merged(RECIPES["FrozenLake"], BASE))
    folder = RunFolder.create(tmp_path_factory.mktemp("warm") / "run", config)
    Run(config, folder, quiet()).warm_start()
    return folder.warm


def configure(warm: Path, settings: Mapping[str, Any]) -> Config:
    begun = merged(merged(RECIPES["FrozenLake"], BASE), {"model": str(warm), "warm_start": {"epochs": 0}})
    return with_settings(Config(), merged(begun, settings))


def moved(before: Path, after: Path) -> float:
    """How far the weights went, as a share of their norm."""
    one, two = (load_checkpoint(path)[0].state_dict() for path in (before, after))
    gap = sum(float((one[name] - two[name]).double().square().sum()) for name in one)
    return float((gap / sum(float(value.double().square().sum()) for value in one.values())) ** 0.5)


def check_learning(records: list[dict[str, Any]]) -> None:
    """The weights arrived at vLLM although they moved, and the filter kept the groups that differ."""
    trained = [record for record in records if record["train_tokens"]]
    assert len(trained) >= 0.8 * len(records)
    assert abs(np.mean([record["vllm_kl"] for record in trained])) < 1e-3
    assert max(record["vllm_gap"] for record in trained) < 0.02
    assert all(record["grad_norm"] > 0 for record in trained)
    assert all(record["spread_kept"] > record["spread_dropped"] for record in trained)
    assert all(0 < record["kept_share"] <= 0.5 for record in trained)


@pytest.fixture(scope="module")
def grpo(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """GRPO and StarPO-S, while one group's environment raises and another's hangs."""
    config = configure(warm, {})
    settings = with_settings(OpenRLHF(), {"environment_timeout": 5.0, "evaluate_every": 10})
    folder = RunFolder.create(tmp_path_factory.mktemp("grpo") / "run", config)
    return folder, train_distributed(config, settings, folder, quiet(), ["--train.agent_func_path", FAULTY])


def test_grpo_with_starpo_s(grpo: tuple[RunFolder, dict[str, Any]], warm: Path) -> None:
    folder, summary = grpo
    records = read_json_lines(folder.metrics)
    assert [record["iteration"] for record in records] == list(range(ITERATIONS))
    check_learning(records)
    assert moved(warm, folder.checkpoint) > 0.01
    assert {"before", "after", "random", "optimal"} <= set(summary)
    assert [i for i, record in enumerate(records, 1) if "eval_success" in record] == [10]
    assert list((folder.path / "tensorboard").rglob("events.out.tfevents.*"))
    assert all(abs(record["learning_rate"] - 1e-3) < 1e-9 for record in records)


def test_failures_are_counted_and_end_nothing(grpo: tuple[RunFolder, dict[str, Any]]) -> None:
    failures = {r["iteration"]: r["failures"] for r in read_json_lines(grpo[0].metrics) if r["failed"]}
    assert failures == {2: {"environment_error": 8}, 4: {"environment_timeout": 8}}


def test_the_final_model_is_one_that_eval_reads(
    grpo: tuple[RunFolder, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, summary = grpo
    assert main(["eval", str(folder.path), "--levels", "32", "--json", str(tmp_path / "rates.json")]) == 0
    rates = json.loads((tmp_path / "rates.json").read_text())
    assert rates["model"]["low"] < summary["after"]["high"]
    assert summary["after"]["low"] < rates["model"]["high"]


def test_ppo_with_a_critic_and_bi_level_gae_survives_being_killed(warm: Path, tmp_path: Path) -> None:
    training = {"algo": "ppo", "credit": "bi_level", "gamma_turn": 0.95, "save_every": 2}
    config = configure(warm, {"training": training})
    (tmp_path / "told.toml").write_text(to_toml(config))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ragen_agent.cli", "train", "--backend", "openrlhf", "--out", str(run)]
    process = subprocess.Popen([*command, "--config", str(tmp_path / "told.toml")], start_new_session=True)
    limit = time.monotonic() + 400
    while len(lines(run)) < 7:
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.1)
    kill(process.pid)
    process.wait()
    saved = State.read(run)
    assert saved.iteration >= 6
    assert saved.iteration % 2 == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 99, "succ')
    early = [record["iteration"] for record in lines(run)[: saved.iteration]]
    assert early == list(range(saved.iteration))
    before = lines(run)[: saved.iteration]
    assert main(["train", "--resume", str(run)]) == 0
    records = lines(run)
    assert records[: saved.iteration] == before
    assert [record["iteration"] for record in records] == list(range(ITERATIONS))
    check_learning(records)
    assert all(record["value_loss"] >= 0 and record["critic_grad_norm"] > 0 for record in records)
    assert moved(warm, run / "checkpoint") > 0.01
    played = [e for e in read_json_lines(run / "episodes.jsonl") if e["phase"] == "train"]
    assert sorted({e["iteration"] for e in played}) == list(range(ITERATIONS))


def lines(run: Path) -> list[dict[str, Any]]:
    return read_json_lines(run / "metrics.jsonl")


def kill(launcher: int) -> None:
    """Ends the launcher and the process that it started, as a crash of the machine would: at once."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for pid in (launcher, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


def test_two_nodes(warm: Path, tmp_path: Path) -> None:
    """The trainer's model on one Ray node, vLLM on the other."""
    import ray
    from ray.cluster_utils import Cluster

    config = configure(warm, {"training": {"iterations": 2, "groups": 4}, "evaluation": {"levels": 8}})
    folder = RunFolder.create(tmp_path / "run", config)
    node = {"num_cpus": 4, "num_gpus": 1, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        places = Watch(cluster.address)
        places.start()
        settings = with_settings(OpenRLHF(), {"ray_address": cluster.address})
        train_distributed(config, settings, folder, quiet())
    finally:
        places.over.set()
        places.join()
        cluster.shutdown()
        ray.shutdown()
    assert len(read_json_lines(folder.metrics)) == 2
    assert set(places.nodes) == {"PPOTrainer", "PolicyModelActor", "RolloutRayActor"}
    assert places.nodes["PolicyModelActor"] != places.nodes["RolloutRayActor"]


class Watch(threading.Thread):
    """Notes on which node each kind of actor lives; Ray calls ours by the names of OpenRLHF's."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address, self.nodes, self.over = address, dict[str, str](), threading.Event()

    def run(self) -> None:
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions

        state = GlobalState()
        state._initialize_global_state(GcsClientOptions.create(self.address, None, True, False))
        while not self.over.wait(1.0):
            for actor in state.actor_table(None).values():
                if actor["State"] == "ALIVE":
                    self.nodes[actor["ActorClassName"].split(".")[-1]] = actor["Address"]["NodeID"]


def test_weights_that_do_not_arrive_stop_the_run(warm: Path, tmp_path: Path) -> None:
    """No run agrees better than bfloat16 allows, so a bound of almost nothing stands for lost weights."""
    config = configure(warm, {"training": {"iterations": 2, "groups": 4}, "evaluation": {"levels": 8}})
    settings = with_settings(OpenRLHF(), {"max_vllm_kl": 1e-12})
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(RunStoppedError, match=r"WeightsLostError: vllm_kl is .*did not arrive.*--resume"):
        train_distributed(config, settings, folder, quiet())
    assert not folder.checkpoint.exists()
    assert torch.get_num_threads() >= 1
