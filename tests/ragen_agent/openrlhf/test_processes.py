"""What a run's processes share, where a run stands after an interruption, and that no process outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragen_agent.config import Config, with_settings
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.openrlhf.processes import RunContext, repair, write_state
from ragen_agent.run.loop import LoopState
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import append_json_lines, read_json_lines

CHILD = """
import time
from ragen_agent.openrlhf.processes import stop_without_parent
stop_without_parent()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "w").write("stopped")
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys" + sys.argv[2], sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
LEADER = """
import subprocess, sys
from ragen_agent.openrlhf.processes import kill_after_exit
child = subprocess.Popen(["sleep", "60"])
kept = kill_after_exit([child.pid])
print(child.pid, flush=True)
child.wait()
"""


def test_the_context_survives_the_environment() -> None:
    config = with_settings(Config(), {"training": {"algo": "ppo", "credit": "turn"}})
    run = RunContext(config, with_settings(OpenRLHF(), {"micro_batch": 4}), "/runs/one", (3, 5), 8)
    assert RunContext.from_json(run.to_json()) == run


RATE = {"rate": 0.5, "low": 0.1, "high": 0.9, "n": 4}


def test_what_was_not_saved_whole_is_dropped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    append_json_lines(folder.metrics, [{"iteration": i} for i in range(5)])
    append_json_lines(folder.episodes, [{"phase": "before"}, *({"phase": "train", "iteration": i} for i in range(5))])
    append_json_lines(folder.episodes, [{"phase": "after"}])
    folder.write_summary({"before": RATE, "after": RATE})
    for part in ("_actor", "_critic"):
        for iteration in (2, 4):
            (folder.path / "deepspeed" / part / f"iteration{iteration}").mkdir(parents=True)
        (folder.path / "deepspeed" / part / "latest").write_text("iteration4")
    (folder.path / "checkpoint.new").mkdir()
    write_state(folder.path, LoopState(2, 1))
    assert repair(folder) == LoopState(2, 1)
    assert [json.loads(line)["iteration"] for line in folder.metrics.read_text().splitlines()] == [0, 1]
    episodes = [json.loads(line) for line in folder.episodes.read_text().splitlines()]
    assert episodes == [{"phase": "before"}, *({"phase": "train", "iteration": i} for i in range(2))]
    assert set(folder.read_summary()) == {"before"}, (
        "what was measured after is measured again: its model was not saved"
    )
    assert not (folder.path / "checkpoint.new").exists()
    for part in ("_actor", "_critic"):
        assert (folder.path / "deepspeed" / part / "latest").read_text() == "iteration2"
        assert not (folder.path / "deepspeed" / part / "iteration4").exists()


def test_a_torn_line_goes_and_so_does_what_was_never_saved(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    append_json_lines(folder.metrics, [{"iteration": i} for i in range(2)])
    with folder.metrics.open("a") as file:
        file.write('{"iteration": 2, "suc')
    (folder.path / "deepspeed" / "_actor" / "iteration1").mkdir(parents=True)
    assert repair(folder) == LoopState()
    assert not read_json_lines(folder.metrics)
    assert not (folder.path / "deepspeed" / "_actor").exists()


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Config())
    folder.checkpoint.mkdir()
    append_json_lines(folder.episodes, [{"phase": "after"}])
    folder.write_summary({"after": RATE})
    repair(folder)
    assert set(folder.read_summary()) == {"after"}
    assert len(folder.episodes.read_text().splitlines()) == 1


def gone(pid: int, seconds: float) -> bool:
    """Whether a process ends in time; one that nobody waits for is as good as gone."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_stops_in_order_without_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "note"), CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, how)
    assert gone(child, 20)
    assert (tmp_path / "note").read_text() == "stopped"


def test_what_is_followed_is_killed_after_its_parent_was() -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        assert not gone(child, 0.3)
        os.kill(leader.pid, signal.SIGKILL)
    assert gone(child, 30)
