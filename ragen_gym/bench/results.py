"""Content of a run's folder: its results, read back as they were at one time, and those of several runs together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results_folder import ResultsFolder, last_records, read_attempts
from ragen_gym.bench.suites import SUITES, Suite, load_suite

__all__ = ["BenchResults", "ResultsFolder", "load_results", "load_several"]


@dataclass(frozen=True)
class BenchResults:
    """The results of a run, read from its folder as it was at one time."""

    path: Path  # the folder
    info: dict[str, Any]  # what ``run.json`` says
    suite: Suite  # what was played
    agent: str  # who played it
    records: tuple[EpisodeRecord, ...]  # the episodes, the last of each key
    retried: tuple[EpisodeRecord, ...] = ()  # earlier records of the same keys, in the order of the file
    info_json: bytes = b"{}"  # ``run.json``
    summary_json: bytes | None = None  # ``summary.json``; None where there is none
    seen: frozenset[int] | None = None  # families of levels that the agent saw in training; None where nobody knows
    #: what the file of that record is and what ``run.json`` says, where they differ: the record is then not known
    seen_differs: tuple[Any, Any] | None = None

    @property
    def asked(self) -> dict[str, list[int]]:
        """For each split how many rollouts of each instance the sessions asked for."""
        asked = {split.name: [0] * len(split.levels) for split in self.suite.splits}
        for session in self.info["sessions"]:
            for name, rollouts in asked.items():
                if not session.get("splits") or name in session["splits"]:
                    for index in range(len(rollouts))[: session.get("limit")]:
                        rollouts[index] = max(rollouts[index], session.get("rollouts", 1))
        return asked


def load_results(path: str | Path, suite: str | Path | None = None) -> BenchResults:
    """The results in a folder.

    Args:
        path: the folder that ``bench run --out`` named.
        suite: the suite that was played, by name or path, where it is no longer found as the run names it.

    Raises:
        ValueError: there is no run, or the suite is not the one that was played.
    """
    folder = ResultsFolder(path)
    while True:
        text = folder.info_json
        info, summary = folder.parsed(text), None
        with suppress(FileNotFoundError):
            summary = folder.summary.read_bytes()
        attempts = read_attempts(folder.episodes)
        seen, seen_differs = folder.read_seen(info)
        if folder.info_json == text:  # else a session has begun or ended meanwhile
            break
    named = folder.suite if info["suite"] not in SUITES and folder.suite.is_dir() else info["suite"]
    if not suite and str(named) not in SUITES and not Path(named).exists():
        raise ValueError(f"{path} played {named}, no suite of this package: give its folder with --suite.")
    played = load_suite(suite) if suite else load_suite(named, run_code=False)
    if info["hash"] != played.hash:
        raise ValueError(
            f"{path} played suite {info['suite']} with hash {info['hash']}; {played.name} has hash {played.hash}, so "
            "its levels or budgets are others: give the suite that was played with --suite."
        )
    records = last_records(attempts)
    last = set(map(id, records))
    return BenchResults(
        path=Path(path),
        info=info,
        suite=played,
        agent=info["agent"],
        records=tuple(records),
        retried=tuple(record for record in attempts if id(record) not in last),
        info_json=text,
        summary_json=summary,
        seen=seen,
        seen_differs=seen_differs,
    )


def load_several(paths: Sequence[str | Path], suite: str | Path | None = None) -> list[BenchResults]:
    """Several runs of one suite; where two agents share a name, their folders are added to it.

    Raises:
        ValueError: see ``load_results``; or the runs are not of one suite.
    """
    runs = [load_results(path, suite) for path in paths]
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
    shown = [run.agent if names.count(run.agent) == 1 else f"{run.agent} ({run.path.name})" for run in runs]
    if len(set(shown)) < len(shown):
        shown = [f"{run.agent} ({run.path})" for run in runs]
    return [replace(run, agent=name) for run, name in zip(runs, shown, strict=True)]
