"""The smallest distributed run: the trainer's model on one Ray node, vLLM on another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ragen_agent.openrlhf.launch import RunStoppedError
from tests.ragen_agent.openrlhf.small_runs import SHORT, begin, configure, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


def test_two_nodes(warm: Path, tmp_path: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 4, "num_gpus": 1, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    places = Watch(cluster.address)
    config = configure(warm, SHORT, {"training": {"iterations": 2}})
    settings = {"ray_address": cluster.address, "colocate": False}
    try:
        with pytest.raises(RunStoppedError, match="needs 2 GPUs, and the cluster has 1"):
            begin(tmp_path / "early", config, settings)
        cluster.add_node(**node)
        places.start()
        begin(tmp_path / "run", config, settings)
    finally:
        places.over.set()
        places.join()
        cluster.shutdown()
        ray.shutdown()
    records = lines(tmp_path / "run")
    assert len(records) == 2
    assert all(abs(record["vllm_kl"]) < 1e-3 for record in records), "the weights crossed from node to node"
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
