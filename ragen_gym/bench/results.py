"""The results of a run: its folder, which the same command goes on with, and what is read back from it.

    run.json         the suite and its hash, the agent and its settings, hashes of the prompts, and one entry for each
                     session that played: when, with which versions, rollouts, timeouts and prices
    episodes.jsonl   one ``EpisodeRecord`` a line, in the order in which they ended; only ever added to
    summary.json     the scores, from the end of a session to the begin of the next one that plays

An episode's line is handed to the operating system in one write as soon as the episode ends, so that a killed process
loses only the episodes in play. Every two seconds, and at the end, the file is also flushed to the disk, so that a
power cut loses little more. A line that was torn all the same (a full disk, a power cut) is left out by readers and cut
off before the next session writes.

An episode that failed for reasons of infrastructure is played again by the next session; its new record stands further
down under the same key, and readers take the last.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.suites import Suite, load_suite
from ragen_gym.core.storage import json_line, read_json_lines, repair_json_lines, write_atomic

__all__ = ["BenchResults", "EpisodeLog", "ResultsFolder", "load_results", "load_several", "read_records"]

_SYNC_SECONDS = 2.0


def read_records(path: Path) -> list[EpisodeRecord]:
    """The records of an ``episodes.jsonl``, the last one of each key, in the order of the file.

    A torn last line is left out; a missing file is empty.

    Raises:
        ValueError: another line is not a record.
    """
    records: dict[str, EpisodeRecord] = {}
    for record in read_json_lines(path, EpisodeRecord.from_dict):
        records.pop(record.key, None)  # so that the new one takes its own place in the order
        records[record.key] = record
    return list(records.values())


class ResultsFolder:
    """The folder of a run; see the module.

    Args:
        path: where it is, or is to be.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.episodes, self.summary = self.path / "episodes.jsonl", self.path / "summary.json"
        self._run = self.path / "run.json"

    @property
    def info(self) -> dict[str, Any]:
        """What ``run.json`` says.

        Raises:
            ValueError: there is no run in this folder.
        """
        if not self._run.is_file():
            raise ValueError(f"{self.path} holds no run (no run.json): give the folder that --out named.")
        try:
            info: dict[str, Any] = json.loads(self._run.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self._run} is not JSON: {error}.") from error
        return info

    def records(self) -> list[EpisodeRecord]:
        """The episodes; see ``read_records``."""
        return read_records(self.episodes)

    def check(self, identity: Mapping[str, Any]) -> None:
        """Check that a run of this identity may be here.

        Args:
            identity: everything that decides what is asked, plain JSON; it never changes during a run.

        Raises:
            ValueError: the folder holds something else, or a run with another identity.
        """
        if self._run.is_file():
            _check_same(self.path, self.info, identity)
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f"--out {self.path} is neither a run nor an empty folder: choose another one.")

    def begin(self, identity: Mapping[str, Any], session: Mapping[str, Any]) -> int:
        """Begin the run, or a further session of it; the number of this session, from 0.

        Args:
            identity: see ``check``, which came before.
            session: what may differ from one session to the next, plain JSON.
        """
        info = self.info if self._run.is_file() else {**identity, "sessions": []}
        info["sessions"].append(dict(session))
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self._run, json.dumps(info, indent=2, ensure_ascii=False) + "\n")
        self.summary.unlink(missing_ok=True)  # should this session be cut short, it would be of other episodes
        return len(info["sessions"]) - 1

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the scores."""
        write_atomic(self.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from playing this run at the same time, where the system can (not on Windows).

        Raises:
            ValueError: another process is playing it.
        """
        try:
            import fcntl
        except ImportError:
            yield
            return
        made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY)  # a lock on the folder itself leaves no file behind
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise ValueError(f"another process is playing the run in {self.path}: wait for it, or end it.") from error
        try:
            yield
        finally:
            os.close(handle)
            if made and not any(self.path.iterdir()):  # the run could not begin
                self.path.rmdir()


class EpisodeLog:
    """``episodes.jsonl``, open for adding to; a context manager.

    Args:
        path: the file; a torn last line is cut off first.
    """

    def __init__(self, path: Path) -> None:
        repair_json_lines(path, EpisodeRecord.from_dict)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        self._synced = time.monotonic()

    def append(self, record: EpisodeRecord) -> None:
        """Add one record.

        Raises:
            OSError: the disk refuses; what was written of the line is cut off by the next session.
        """
        line = json_line(record.to_dict())
        while line:
            line = line[os.write(self._handle, line) :]
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._handle)
        self._synced = time.monotonic()

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with suppress(OSError) if kind else nullcontext():  # the earlier error is the one to raise
                self._sync()
        finally:
            os.close(self._handle)


@dataclass(frozen=True)
class BenchResults:
    """The results of a run, read from its folder."""

    path: Path  # the folder
    info: dict[str, Any]  # what ``run.json`` says
    suite: Suite  # what was played
    agent: str  # who played it
    records: tuple[EpisodeRecord, ...]  # the episodes, the last of each key


def load_results(path: str | Path, suite: str | Path | None = None) -> BenchResults:
    """The results in a folder.

    Args:
        path: the folder that ``bench run --out`` named.
        suite: the suite that was played, by name or path, where it is no longer found as the run names it.

    Raises:
        ValueError: there is no run, or the suite is not the one that was played.
    """
    folder = ResultsFolder(path)
    info = folder.info
    played = load_suite(suite or info["suite"])
    if info["hash"] != played.hash:
        raise ValueError(
            f"{path} played suite {info['suite']} with hash {info['hash']}; {played.name} has hash {played.hash}, so "
            "its levels or budgets are others: give the suite that was played with --suite."
        )
    return BenchResults(Path(path), info, played, str(info["agent"]), tuple(folder.records()))


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


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a ValueError that names what differs."""
    plain = json.loads(json.dumps(now))  # tuples as lists, as they come back from the file
    old, new = _flat({key: before.get(key) for key in plain}), _flat(plain)
    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if differing:
        changes = "; ".join(f"{key} is now {new.get(key)!r} and was {old.get(key)!r}" for key in differing)
        raise ValueError(
            f"--out {path} holds a run of something else: {changes}. Episodes of the two do not belong in one score: "
            f"choose another folder, or repeat the suite and settings of the run."
        )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else str(key))
    return flat
