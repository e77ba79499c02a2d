"""Two nodes with networks and addresses of their own on one machine, and the cable between them pulled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ragen_agent.config import to_toml
from ragen_agent.openrlhf.processes import read_state
from tests.ragen_agent.openrlhf.small_runs import SHORT, configure, lines

NEEDED = "network namespaces need the rights of root and the program ip"
CAN = os.geteuid() == 0 and shutil.which("ip")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not CAN, reason=NEEDED),
]

HEAD, OTHER, PORT = "10.77.0.1", "10.77.0.2", 6399
ENDS = {HEAD: "ragen1", OTHER: "ragen2"}  # the interfaces at the ends of the cable; their names may differ
RAY = ["ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=4", "--num-gpus=1"]
STORE = f"--object-store-memory={200 * 2**20}"
TRAIN = ["ragen_agent.cli", "train", "--backend=openrlhf", "--set=openrlhf.colocate=false"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Two network namespaces with one Ray node each; what runs in them is started here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {HEAD: f"ragen-{os.getpid()}-1", OTHER: f"ragen-{os.getpid()}-2"}
        self.sessions = tempfile.mkdtemp(prefix="ray-")  # where the paths of Ray's sockets stay short
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def lay(self) -> None:
        for name in self.names.values():
            ip("netns", "add", name)
        near, far = ENDS.values()
        ip("-n", self.names[HEAD], "link", "add", near, "type", "veth", "peer", "name", far, "netns", self.names[OTHER])
        for address, name in self.names.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", ENDS[address])
            ip("-n", name, "link", "set", "lo", "up")
        self.cable("up")

    def cable(self, state: str) -> None:
        for address, name in self.names.items():
            ip("-n", name, "link", "set", ENDS[address], state)

    def start(self, address: str, log: Path, module: str, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """A module of this environment that runs at an address."""
        command = ["ip", "netns", "exec", self.names[address], sys.executable, "-m", module, *words]
        environment = os.environ | variables
        with log.open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=self.folder)

    def join(self, address: str) -> None:
        """Starts a Ray node, and waits until it is there."""
        place = [f"--address={HEAD}:{PORT}"]
        if address == HEAD:
            place = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.sessions}"]
        log = self.folder / f"ray-{address}.log"
        words = [*RAY, STORE, f"--node-ip-address={address}", *place]
        self.nodes[address] = self.start(address, log, *words, GLOO_SOCKET_IFNAME=ENDS[address])
        wait_for(lambda: "Ray runtime started" in log.read_text(), self.nodes[address], log)

    def clear(self) -> None:
        for node in self.nodes.values():
            node.terminate()
            node.wait(60)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self.sessions, ignore_errors=True)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        made.lay()
    except subprocess.CalledProcessError as error:  # as in a container, whose root may not
        made.clear()
        pytest.skip(f"{NEEDED}: {error.stderr}")
    yield made
    made.clear()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    while not condition():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)


def test_a_cable_that_is_pulled(network: Network, warm: Path, tmp_path: Path) -> None:
    """A short break only delays the run; a long one stops it with the reason, and it goes on where it was saved."""
    run, log = tmp_path / "run", tmp_path / "train.log"
    config = configure(warm, SHORT, {"training": {"iterations": 4, "save_every": 1}})
    (tmp_path / "config.toml").write_text(to_toml(config))
    network.join(HEAD)
    network.join(OTHER)
    words = [f"--set=openrlhf.ray_address={HEAD}:{PORT}", "--config=config.toml", f"--out={run}"]
    process = network.start(HEAD, log, *TRAIN, *words)
    wait_for(lambda: len(lines(run)) >= 1, process, log)
    network.cable("down")
    done = len(lines(run))
    time.sleep(8)
    assert len(lines(run)) <= done + 1, "each iteration needs both nodes"
    network.cable("up")
    wait_for(lambda: read_state(run).iteration >= 2, process, log)
    network.cable("down")
    assert process.wait(600) != 0
    network.cable("up")
    reason = r"a process of the run is out of reach, .*ray status.* Go on with: ragen-agent (train --resume .+)"
    stopped = re.search(reason, log.read_text())
    assert stopped, log.read_text()[-3000:]
    before = lines(run)[: read_state(run).iteration]
    network.nodes[OTHER].wait(120)  # a node that was given up ends when it hears of it
    network.join(OTHER)
    resumed = network.start(HEAD, log, "ragen_agent.cli", *stopped[1].split())
    assert resumed.wait(600) == 0, log.read_text()[-3000:]
    records = lines(run)
    assert records[: len(before)] == before
    assert [record["iteration"] for record in records] == list(range(4))
    assert not any(record["failed"] for record in records)
