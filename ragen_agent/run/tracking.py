"""A run's figures for other dashboards: TensorBoard's event files, and Weights & Biases.

Both are made from ``metrics.jsonl``, so a resumed run has every iteration once. The id of the run on Weights & Biases
is kept in ``wandb.json``, and a resumed run continues under it. With ``WANDB_MODE=offline`` each start leaves a folder
in ``wandb/`` with all iterations so far, which ``wandb sync`` sends later.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from ragen_agent.config import Config, Diagnostics
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import atomic_folder, name_full_disk, read_json_lines, write_atomic

__all__ = ["Tracker", "check_installed", "track"]


class Tracker(Protocol):
    """Receiver of the record of each iteration."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Record an iteration, visible at once."""
        ...

    def close(self, failed: bool = False) -> None:
        """End the record; ``failed`` if the run broke or was stopped."""
        ...


def check_installed(diagnostics: Diagnostics) -> None:
    """Raises a ValueError, before a run begins, if a library required by its settings is missing."""
    for name, asked in (("tensorboard", diagnostics.tensorboard), ("wandb", diagnostics.wandb)):
        if asked:
            _check_library(name)


@contextmanager
def track(config: Config, folder: RunFolder) -> Iterator[list[Tracker]]:
    """The trackers of the settings, with all iterations so far; closed at the end of the block, as failed on an error.

    Raises:
        ValueError: a library is missing, or Weights & Biases cannot start.
    """
    trackers: list[Tracker] = []
    failed = True
    try:
        if config.diagnostics.tensorboard:
            trackers.append(TensorBoard(_write_events(folder)))
        if config.diagnostics.wandb:
            trackers.append(WeightsAndBiases(config, folder))
        yield trackers
        failed = False
    finally:
        for tracker in trackers:
            tracker.close(failed)


def _write_events(folder: RunFolder) -> Path:
    out = folder.path / "tensorboard"
    with atomic_folder(out) as temporary:
        events = TensorBoard(temporary)
        for record in read_json_lines(folder.metrics):
            events.add(record)
        events.close()
    return out


class TensorBoard:
    """An event file in a folder, written synchronously: torch's writer would raise its errors in its own thread."""

    def __init__(self, path: Path) -> None:
        _check_library("tensorboard")
        from tensorboard.summary.writer.record_writer import RecordWriter

        path.mkdir(exist_ok=True)
        self._path, self._file = path, (path / f"events.out.tfevents.{time.time_ns()}").open("wb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def add(self, record: Mapping[str, Any]) -> None:
        """See ``Tracker``; the first iteration is step 1."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in _scalars(record).items()]
        self._write(step=record["iteration"] + 1, summary=Summary(value=values))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        with name_full_disk(self._path):
            self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
            self._file.flush()

    def close(self, failed: bool = False) -> None:
        """See ``Tracker``."""
        with suppress(OSError):  # a full disk, already reported
            self._file.close()


class WeightsAndBiases:
    """A run on a Weights & Biases server, or in ``wandb/`` for later."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        _check_library("wandb")
        import wandb

        noted = folder.path / "wandb.json"
        if not noted.is_file():
            write_atomic(noted, json.dumps({"id": uuid.uuid4().hex[:16]}) + "\n")
        try:
            self._run = wandb.init(
                project=config.diagnostics.wandb,
                name=folder.path.resolve().name,
                id=json.loads(noted.read_text(encoding="utf-8"))["id"],
                resume="allow",
                dir=folder.path,
                config=asdict(config),
                settings=wandb.Settings(console="off"),  # the progress bar is drawn by rich
            )
        except wandb.Error as error:
            raise ValueError(
                f"diagnostics.wandb: Weights & Biases cannot begin: {error} Run wandb login, or set WANDB_MODE=offline."
            ) from error
        for record in read_json_lines(folder.metrics):
            if record["iteration"] + 1 >= self._run.step:  # new to the server: step is the next one's
                self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """See ``Tracker``."""
        self._run.log(_scalars(record), step=record["iteration"] + 1)

    def close(self, failed: bool = False) -> None:
        """See ``Tracker``."""
        self._run.finish(exit_code=int(failed))


def _check_library(name: str) -> None:
    if find_spec(name) is None:
        raise ValueError(f"diagnostics.{name} needs {name}: run pip install 'ragen-gym[tracking]'.")


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    failures = {f"failures/{kind}": count for kind, count in record.get("failures", {}).items()}
    return {
        name: value
        for name, value in {**record, **failures}.items()
        if isinstance(value, int | float) and name != "iteration" and isfinite(value)
    }
