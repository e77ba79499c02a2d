"""Locks that a killed run left behind where torch compiles extensions, for which every later run waits for ever.

Whoever compiles creates the file `lock` and holds it open until it is done (`torch.utils.file_baton`). A lock that no
process holds is stale. Another machine's process may hold it on a shared disk, where nobody here can see it, so a
fresh one is left alone unless asked for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ragen_agent.openrlhf.verdict import Check, fail, ok, warn

__all__ = ["OLD", "holders", "lock_checks", "places"]

OLD = 600.0  # seconds after which a lock that nobody here holds is nobody's
NAME = "DeepSpeed's lock"


def places() -> list[Path]:
    """Folders in which extensions are compiled: the one of our runs, and torch's own."""
    own = Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions")))
    cache = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "torch_extensions"
    return [own, *sorted(path for path in cache.glob("*") if path.is_dir())]


def lock_checks(fix: bool, folders: Sequence[Path] | None = None) -> list[Check]:
    """A verdict on each lock, those removed that nobody can hold; one verdict where there is none.

    Args:
        fix: remove fresh locks too that nobody here holds.
        folders: where to look; None for `places`.
    """
    looked = places() if folders is None else folders
    locks = sorted(lock for folder in looked for lock in folder.glob("*/lock"))
    return [_check(lock, fix) for lock in locks] or [ok(NAME, "none is left behind")]


def holders(lock: Path) -> list[int] | None:
    """The processes that hold a lock open; None where this system does not tell."""
    if not Path("/proc/self/fd").is_dir():
        return None
    target = os.stat(lock)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        if any(_same(descriptor, target) for descriptor in descriptors):
            found.append(int(process.name))
    return found


def _same(descriptor: Path, target: os.stat_result) -> bool:
    try:
        there = os.stat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (target.st_dev, target.st_ino)


def _check(lock: Path, fix: bool) -> Check:
    try:
        state, found = lock.stat(), holders(lock)
    except FileNotFoundError:
        return ok(NAME, f"{lock} was just released")
    age = time.time() - state.st_mtime
    if found:
        return ok(NAME, f"{lock} is held by process {found[0]}, which is compiling; a run waits for it")
    if not fix and (age < OLD or found is None or state.st_uid != os.getuid()):
        what = "no process here holds it" if found is not None else "this system does not say who holds it"
        advice = "if no other machine compiles there now, remove it: ragen-agent doctor --fix"
        return fail(NAME, f"{lock} is {age / 60:.0f} minutes old and {what}; runs wait for it for ever", advice)
    try:
        lock.unlink()
    except FileNotFoundError:
        return ok(NAME, f"{lock} was just released")
    except OSError as error:
        return fail(NAME, f"{lock} is stale and cannot be removed: {error}", f"remove it: rm {lock}")
    return warn(NAME, f"removed {lock}, which a killed run had left", "nothing: the next run compiles what is missing")
