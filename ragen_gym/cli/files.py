"""Files that appear whole or not at all, and never in place of another that was not meant."""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_free", "write_new"]


def check_free(path: Path, force: bool) -> None:
    """Raise a ValueError if there is something at ``path`` that may not be replaced."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file's path.")
    if path.exists() and not force:
        raise ValueError(f"{path} exists: choose another path, or add --force to replace it.")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}: make it, or choose another path.")


def write_new(path: Path, data: bytes, force: bool) -> None:
    """Write a file at once; a ValueError where there is one already, unless ``force``."""
    check_free(path, force)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
