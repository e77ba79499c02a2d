"""Child processes of this Python that import nothing from the current folder."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

__all__ = ["child_environment", "child_python"]


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
