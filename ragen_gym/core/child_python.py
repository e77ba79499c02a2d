"""Child processes of this Python that import nothing from the current folder, and code run where hashes differ."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def child_python(*words: str) -> list[str]:
    """The command line of a child process of this Python.

    Without ``-P``, a child that runs ``-m`` or ``-c`` searches the current folder first, so a file ``gymnasium.py``
    there would run.
    """
    return [sys.executable, "-P", *words]


def child_environment() -> dict[str, str]:
    """This process's environment, extended so that a child finds the packages of an uninstalled checkout."""
    root, known = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")
    installed = root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {**os.environ, "PYTHONPATH": known if installed else os.pathsep.join(filter(None, (root, known)))}


_CHILD = "RAGEN_GYM_CHECK_CHILD"


def run_in_another_process(code: str, text: bytes) -> bytes:
    """Output of ``python -c code``, given this text, with another PYTHONHASHSEED.

    Its imports do not come from the current folder unless the code adds it.

    Raises:
        RuntimeError: that process failed, or this is already one: a module that calls a check when it is imported
            would start a process that imports it, and so on without end.
    """
    if os.environ.get(_CHILD):
        raise RuntimeError(
            "a check was called by a module that the check imports in another process. "
            'Move the call into a test, or below `if __name__ == "__main__":`.'
        )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONHASHSEED": seed, _CHILD: "1"}
    child = subprocess.run(child_python("-c", code), input=text, capture_output=True, env=env, check=False)
    if child.returncode:
        raise RuntimeError(f"it fails in another process:\n{child.stderr.decode()}")
    return child.stdout
