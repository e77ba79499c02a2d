"""A run's figures for other dashboards: TensorBoard's event files, and Weights & Biases.

The id of the run on Weights & Biases is kept in ``wandb.json``, and a resumed run continues under it. With
``WANDB_MODE=offline`` each start leaves a folder in ``wandb/`` with all iterations so far, which ``wandb sync`` sends
later.

With ``diagnostics.tables_every`` both also get two tables: the recorded episodes of the iteration as texts
(``generations``), and of each group its return std and whether the filter kept it (``groups``).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from ragen_agent.config import Config, Diagnostics
from ragen_agent.config.settings import shareable
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines, write_atomic
from ragen_gym.envs.messages import plain_text


class Tracker(Protocol):
    """Receiver of the record of each iteration."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Record an iteration, visible at once."""
        ...

    def close(self, failed: bool) -> None:
        """End the record; ``failed`` if the run broke or was stopped."""
        ...


def check_installed(diagnostics: Diagnostics) -> None:
    """Raises a ValueError, before a run begins, if a library required by its settings is missing."""
    for name, asked in (("tensorboard", diagnostics.tensorboard), ("wandb", diagnostics.wandb)):
        if asked and find_spec(name) is None:
            raise ValueError(f"diagnostics.{name} needs {name}: run pip install 'ragen-gym[tracking]'.")


@contextmanager
def track(config: Config, folder: RunFolder) -> Iterator[list[Tracker]]:
    """The trackers of the settings; closed at the end of the block, as failed on an error.

    Raises:
        ValueError: a library is missing, or Weights & Biases cannot start.
    """
    check_installed(config.diagnostics)
    trackers: list[Tracker] = []
    failed = True
    try:
        if config.diagnostics.tensorboard:
            trackers.append(TensorBoard(config, folder))
        if config.diagnostics.wandb:
            trackers.append(WeightsAndBiases(config, folder))
        yield trackers
        failed = False
    finally:
        for tracker in trackers:
            tracker.close(failed)


class TensorBoard:
    """Event files in ``tensorboard/``; the first iteration is step 1."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._every, self._episodes = config.diagnostics.tables_every, folder.episodes
        # What an interrupted iteration left is hidden, since it is played again.
        done = len(read_json_lines(folder.metrics))
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=done + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        """See ``Tracker``."""
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record["iteration"] + 1)
        for name, columns, rows in _tables(record, self._every, self._episodes):
            self._writer.add_text(name, _markdown(columns, rows), record["iteration"] + 1)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        """See ``Tracker``."""
        self._writer.close()


class WeightsAndBiases:
    """A run on a Weights & Biases server, or in ``wandb/`` for later."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        import wandb

        self._every, self._episodes, self._table = config.diagnostics.tables_every, folder.episodes, wandb.Table
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
                config=asdict(shareable(config)),
                # The progress bar is drawn by rich; metadata hold the command line, and so perhaps keys.
                settings=wandb.Settings(console="off", x_disable_meta=True),
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
        found = _tables(record, self._every, self._episodes)
        tables = {name: self._table(columns, rows) for name, columns, rows in found}
        self._run.log(_scalars(record) | tables, step=record["iteration"] + 1)

    def close(self, failed: bool) -> None:
        """See ``Tracker``."""
        self._run.finish(exit_code=int(failed))


def _tables(record: Mapping[str, Any], every: int, episodes: Path) -> Iterator[tuple[str, list[Any], list[list[Any]]]]:
    """The tables of an iteration, if it is due: name, column names, rows."""
    number = record["iteration"]
    if not every or number % every:
        return

    def own(line: bytes) -> list[Any] | None:
        episode = json.loads(line)
        if (episode["phase"], episode.get("iteration")) != ("train", number):
            return None
        text = "\n\n".join(f"{each['role']}: {plain_text(each['content'])}" for each in episode["messages"])
        earned, cells = sum(episode["turn_rewards"]), [episode["success"], episode["kept"], text]
        return [number + 1, episode["level_id"], earned, *cells]

    rows = [row for row in read_json_lines(episodes, own) if row]
    yield "generations", ["step", "level", "return", "success", "kept", "text"], rows
    groups = [[number + 1, group, std, bool(kept)] for group, (std, kept) in enumerate(record["groups"])]
    yield "groups", ["step", "group", "return std", "kept"], groups


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    failures = {f"failures/{kind}": count for kind, count in record.get("failures", {}).items()}
    return {
        name: value
        for name, value in {**record, **failures}.items()
        if isinstance(value, int | float) and name != "iteration" and isfinite(value)
    }


def _markdown(columns: list[str], rows: list[list[Any]]) -> str:
    """A table in Markdown; a cell's lines are joined by breaks, and its bars and angle brackets stand as they are."""
    cells = [columns, ["---"] * len(columns), *rows]
    marks = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "*": "&#42;", "_": "&#95;", "\n": "<br>"}
    return "\n".join("|".join(["", *("".join(marks.get(c, c) for c in str(x)) for x in row), ""]) for row in cells)
