"""What the process that a user starts prints, and what goes to the run's log."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

# The C library's ``malloc_stats`` writes to the standard error when the interpreter has ended, as nanobind does.
ENDING = """
import atexit, ctypes, sys
from pathlib import Path
from ragen_agent.openrlhf import launch
report = ctypes.cast(ctypes.CDLL(None).malloc_stats, ctypes.c_void_p)
assert ctypes.pythonapi.Py_AtExit(report) == 0
if sys.argv[1:]:
    atexit.register(launch._send_stderr_to, Path(sys.argv[1]))
print("an error", file=sys.stderr)
"""


def ended(*arguments: str) -> str:
    command = [sys.executable, "-c", ENDING, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stderr


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="this C library has no malloc_stats")
def test_what_libraries_report_at_their_end_is_in_the_log_and_errors_are_on_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "openrlhf.log"
    assert ended(str(log)).strip() == "an error"
    assert "system bytes" in log.read_text()
    assert "system bytes" in ended(), "without it this is on the terminal"
