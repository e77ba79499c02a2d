"""The smallest cluster: the trainer's model on one Ray node, vLLM on another, and one of them lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_agent.config import with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.launch import RunStoppedError, train_distributed
from ragen_agent.openrlhf.processes import read_state
from ragen_agent.run.run_folder import RunFolder
from tests.ragen_agent.openrlhf.small_runs import ROUNDING, SHORT, begin, configure, lines, quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


NODE = {"num_cpus": 4, "num_gpus": 1, "object_store_memory": 200 * 2**20}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of one node, which others may join."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield made
    made.shutdown()
    ray.shutdown()


def test_two_nodes_of_which_one_is_cut_off(cluster: Any, warm: Path, tmp_path: Path) -> None:
    """The run stops with a reason of one sentence, and once another node is there it goes on where it was saved."""
    run, places = tmp_path / "run", Watch(cluster.address)

    def cut_off() -> None:
        while not (run / "metrics.jsonl").is_file() or len(lines(run)) < 2:
            time.sleep(0.1)
        cluster.remove_node(other, allow_graceful=False)

    config = configure(warm, SHORT, {"training": {"iterations": 6, "save_every": 1}})
    settings = {"ray_address": cluster.address, "colocate": False}
    with pytest.raises(RunStoppedError, match="needs 2 GPUs, and the cluster has 1"):
        begin(tmp_path / "early", config, settings)
    other = cluster.add_node(**NODE)
    places.start()
    threading.Thread(target=cut_off, daemon=True).start()
    reason = r"a process of the run is out of reach, .*ray status.* Go on with: "
    with pytest.raises(RunStoppedError, match=reason) as stop:
        begin(run, config, settings)
    places.over.set()
    places.join()
    assert set(places.nodes) == {"PPOTrainer", "PolicyModelActor", "RolloutRayActor"}
    assert places.nodes["PolicyModelActor"] != places.nodes["RolloutRayActor"]
    before = lines(run)[: read_state(run).iteration]
    assert before
    assert all(abs(record["vllm_kl"]) < ROUNDING for record in before), "the weights crossed from node to node"
    assert len(str(stop.value).splitlines()) == 1
    cluster.add_node(**NODE)
    cluster.wait_for_nodes(120)  # until Ray has noticed the loss: before, it places actors on the lost node
    folder, _ = RunFolder.reopen(run)
    train_distributed(config, with_settings(OpenRLHF(), settings), folder, quiet())
    records = lines(run)
    assert records[: len(before)] == before
    assert [record["iteration"] for record in records] == list(range(6))
    assert folder.checkpoint.is_dir()


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
