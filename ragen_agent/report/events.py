"""A run's figures for TensorBoard: event files in its folder, beside `metrics.jsonl`, from which they are made."""

from __future__ import annotations

import shutil
from math import isfinite
from pathlib import Path

from ragen_agent.local.run_folder import RunFolder, read_json_lines

__all__ = ["write_events"]


def write_events(folder: RunFolder) -> Path:
    """Writes `tensorboard/` anew from all iterations so far, the first of which is step 1.

    They are made from what was written down, so a run that was resumed has every iteration once.

    Raises:
        ValueError: TensorBoard is not installed, or the folder is that of the distributed trainer, which writes its
            own.
    """
    if (folder.path / "openrlhf.toml").is_file():
        raise ValueError(f"{folder.path}: the distributed trainer writes its own event files, in tensorboard/.")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("event files need TensorBoard: run `pip install tensorboard`.") from error
    out, temporary = folder.path / "tensorboard", folder.path / "tensorboard.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    writer = SummaryWriter(str(temporary))
    for record in read_json_lines(folder.metrics):
        for name, value in record.items():
            if isinstance(value, int | float) and name != "iteration" and isfinite(value):
                writer.add_scalar(name, value, record["iteration"] + 1)
    writer.close()
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)
    return out
