"""What a run was made with: the versions of Python and the packages, and the state of the code."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "git_state", "versions"]

PACKAGES = (
    "ragen-gym",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "gymnasium",
    "numba",
    "peft",
    "trl",
    "openrlhf",
)

_PATIENCE = 5.0  # seconds for git, which may sit on a slow disk


def versions() -> dict[str, Any]:
    """As JSON: `started` (UTC), `python`, `platform`, `packages` (those installed) and `git`, see `git_state`."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # not installed, or run from a folder of sources
            continue
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": found,
        "git": git_state(Path(__file__).parent),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The state of the checkout that `folder` is part of.

    Returns:
        `commit`, `branch`, `changed` (files that differ from the commit) and, if there are any, `diff_sha256`, by
        which two runs of the same changes are known as such. None where the folder is not under version
        control, as in an installed package, or git is not there.
    """
    if not _git(folder, "ls-files", "."):  # a folder may lie in a repository that knows nothing of it
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    top = Path(_git(folder, "rev-parse", "--show-toplevel"))
    changed = _git(top, "diff", "--name-only", "HEAD").splitlines()
    state: dict[str, Any] = {"commit": commit, "branch": _git(folder, "branch", "--show-current"), "changed": changed}
    if changed:
        state["diff_sha256"] = hashlib.sha256(_git(top, "diff", "HEAD").encode()).hexdigest()[:16]
    return state


def _git(folder: Path, *words: str) -> str:
    """What git says, or the empty text if it cannot."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
