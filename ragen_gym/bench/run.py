"""A run that is looked back at: what was played, who played it, and the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.run_folder import RunFolder
from ragen_gym.bench.suite import Suite
from ragen_gym.bench.suites import load_suite

__all__ = ["Run", "load_run", "load_runs"]


@dataclass(frozen=True)
class Run:
    """A run, read from its folder.

    Attributes:
        path: the folder.
        info: what ``run.json`` says.
        suite: what was played.
        agent: who played it.
        records: the episodes, the last of each key.
    """

    path: Path
    info: dict[str, Any]
    suite: Suite
    agent: str
    records: tuple[EpisodeRecord, ...]


def load_run(path: str | Path, suite: str | Path | None = None) -> Run:
    """The run of a folder.

    Args:
        path: the folder that ``bench run --out`` named.
        suite: the suite that was played, by name or path, where it is no longer found as the run names it.

    Raises:
        ValueError: there is no run, or the suite is not the one that was played.
    """
    folder = RunFolder(path)
    info = folder.info
    played = load_suite(suite or info["suite"])
    if info["hash"] != played.hash:
        raise ValueError(
            f"{path} played suite {info['suite']} with hash {info['hash']}; {played.name} has hash {played.hash}, so "
            "its levels or budgets are others: give the suite that was played with --suite."
        )
    return Run(Path(path), info, played, str(info["agent"]), tuple(folder.records()))


def load_runs(paths: Sequence[str | Path], suite: str | Path | None = None) -> list[Run]:
    """Several runs of one suite; where two agents share a name, their folders are told beside it.

    Raises:
        ValueError: see `load_run`; or the runs are not of one suite.
    """
    runs = [load_run(path, suite) for path in paths]
    for run in runs[1:]:
        if run.suite.hash != runs[0].suite.hash:
            raise ValueError(
                f"{run.path} played {run.suite.name} ({run.suite.hash}) and {runs[0].path} {runs[0].suite.name} "
                f"({runs[0].suite.hash}): a report is of one suite; write one for each."
            )
    folders = [run.path.resolve() for run in runs]
    for place, folder in enumerate(folders):
        if folder in folders[:place]:
            raise ValueError(f"the run {runs[place].path} is named twice: name each once.")
    names = [run.agent for run in runs]
    told = [run.agent if names.count(run.agent) == 1 else f"{run.agent} ({run.path.name})" for run in runs]
    if len(set(told)) < len(told):
        told = [f"{run.agent} ({run.path})" for run in runs]
    return [Run(run.path, run.info, run.suite, name, run.records) for run, name in zip(runs, told, strict=True)]
