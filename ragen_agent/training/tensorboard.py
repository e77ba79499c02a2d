"""A run's figures for TensorBoard: event files in its folder, beside `metrics.jsonl`, from which they are made."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen_agent.training.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Events", "check_tensorboard", "write_events"]


def check_tensorboard() -> None:
    """Raises a ValueError unless TensorBoard is installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("event files need TensorBoard: run `pip install tensorboard`.")


def write_events(folder: RunFolder) -> Path:
    """Writes `tensorboard/` anew from all iterations so far, the first of which is step 1.

    They are made from what was written down, so a run that was resumed has every iteration once.

    Raises:
        ValueError: TensorBoard is not installed, or the run writes its own: that of the distributed trainer, and one
            that is not over and was told to.
    """
    if (folder.path / "openrlhf.toml").is_file():
        raise ValueError(f"{folder.path}: the distributed trainer writes its own event files, in tensorboard/.")
    if RunFolder.reopen(folder.path)[1].diagnostics.tensorboard and "after" not in folder.read_summary():
        raise ValueError(f"{folder.path}: the run writes its own event files as it goes on, in tensorboard/.")
    return _write(folder)


class Events:
    """The event files of a run that goes on: what `write_events` writes, and then each iteration as it comes."""

    def __init__(self, folder: RunFolder) -> None:
        self._writer = _writer(_write(folder))

    def add(self, record: Mapping[str, Any]) -> None:
        """One iteration, to be seen at once."""
        _add(self._writer, record)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


def _write(folder: RunFolder) -> Path:
    out, temporary = folder.path / "tensorboard", folder.path / "tensorboard.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    writer = _writer(temporary)
    for record in read_json_lines(folder.metrics):
        _add(writer, record)
    writer.close()
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)
    return out


def _writer(path: Path) -> SummaryWriter:
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path))


def _add(writer: SummaryWriter, record: Mapping[str, Any]) -> None:
    for name, value in record.items():
        if isinstance(value, int | float) and name != "iteration" and isfinite(value):
            writer.add_scalar(name, value, record["iteration"] + 1)
