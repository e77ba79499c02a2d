"""Runs code in another process, where hashes differ."""

from __future__ import annotations

import os
import subprocess

from ragen_gym.core.child_python import child_python

__all__ = ["run_in_another_process"]

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
