"""No process outlives its parent, however that ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import time
from ragen_agent.openrlhf.process_cleanup import stop_without_parent
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
from ragen_agent.openrlhf.process_cleanup import kill_after_exit
child = subprocess.Popen(["sleep", "60"])
kept = kill_after_exit([child.pid])
print(child.pid, flush=True)
child.wait()
"""


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
