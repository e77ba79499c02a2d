"""The folder of a run, which the same command goes on with.

    run.json         the suite and its hash, the agent and its settings, hashes of the prompts, and one entry for each
                     session that played: when, with which versions, rollouts and timeouts
    episodes.jsonl   one ``EpisodeRecord`` a line, in the order in which they ended; only ever added to
    summary.json     the scores, from the end of a session to the begin of the next one that plays
    suite/           the suite, where it was made for this run; see ``ragen_gym.bench.suites.table``
    seen.npy         the families of levels that the agent saw in training, where that is known; see
                     ``ragen_gym.core.seen``

An episode's line is written as soon as the episode ends, so that a killed process loses only the episodes in play. A
torn line (a full disk, a power cut) is left out by readers and cut off before the next session writes. An episode that
failed for reasons of infrastructure is played again by the next session: its new record stands further down under the
same key, and readers take the last.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ragen_gym.bench.records import MOST, EpisodeRecord
from ragen_gym.bench.suites import SUITES, Suite, load_suite
from ragen_gym.core.seen import SEEN_FILE, read_seen, write_seen
from ragen_gym.core.storage import json_line, name_full_disk, read_json_lines, repair_json_lines, write_atomic
from ragen_gym.core.validation import check_number, shown

_SYNC_SECONDS = 2.0


def read_records(path: Path) -> list[EpisodeRecord]:
    """The last record of each key of an ``episodes.jsonl``, in the order of the file.

    A torn last line is left out; a missing file is empty.

    Raises:
        ValueError: another line is not a record; it names the line.
    """
    return last_records(read_attempts(path))


def read_attempts(path: Path) -> list[EpisodeRecord]:
    """All records, with the failed attempts that were made again; see ``read_records``."""
    return read_json_lines(path, _read_record)


def _read_record(line: bytes) -> EpisodeRecord:
    return EpisodeRecord.from_dict(json.loads(line))


def last_records(attempts: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """The last record of each key, in the order of these."""
    records: dict[str, EpisodeRecord] = {}
    for record in attempts:
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
        self.seen, self.suite = self.path / SEEN_FILE, self.path / "suite"
        self._run = self.path / "run.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of a run, those too that a run may lack."""
        return self._run, self.episodes, self.summary, self.seen

    @property
    def info(self) -> dict[str, Any]:
        """Content of ``run.json``.

        Raises:
            ValueError: there is no run in this folder, or the file is not that of one.
        """
        if not self._run.is_file():
            missing = f"{self.path} holds no run (no run.json)" if self.path.exists() else f"there is no {self.path}"
            raise ValueError(f"{missing}: give the folder that --out of `ragen-gym bench run` named.")
        try:
            info: dict[str, Any] = json.loads(self._run.read_bytes())
            _check_info(info)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self._run}: {error}") from None
        return info

    def records(self) -> list[EpisodeRecord]:
        """The episodes; see ``read_records``."""
        return read_records(self.episodes)

    def check(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Check that a run of this identity may be here; the identity as a run that is here already has it.

        The two are equal, and yet may name episodes differently, as a temperature of 1 and of 1.0 do.

        Args:
            identity: everything that decides what is asked, plain JSON; it never changes during a run.

        Raises:
            ValueError: the folder holds something else, or a run with another identity.
        """
        if self._run.is_file():
            info = self.info
            _check_same(self.path, info, identity)
            return {name: info[name] for name in identity}
        if self.path.exists() and (not self.path.is_dir() or {*self.path.iterdir()} - {self.suite}):
            raise ValueError(f"--out {self.path} is neither a run nor an empty folder: choose another one.")
        return identity

    def begin(self, identity: Mapping[str, Any], session: Mapping[str, Any]) -> int:
        """Begin the run, or a further session of it; the number of this session, from 0.

        Args:
            identity: see ``check``, which came before.
            session: what may differ from one session to the next, plain JSON.
        """
        info = self.info if self._run.is_file() else {**identity, "sessions": []}
        info["sessions"].append(dict(session))
        self.path.mkdir(parents=True, exist_ok=True)
        self.summary.unlink(missing_ok=True)  # should this session be cut short, it would be of other episodes
        _write_json(self._run, info)
        return len(info["sessions"]) - 1

    def add_seen(self, families: Iterable[int]) -> None:
        """Add to the record of the levels that the agent saw in training, or begin it.

        Raises:
            ValueError: the file of the record is something else.
        """
        write_seen(self.seen, {*families, *(read_seen(self.seen) if self.seen.is_file() else ())})

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the scores."""
        _write_json(self.summary, summary)


class EpisodeLog:
    """``episodes.jsonl``, open for adding to; a context manager.

    Args:
        folder: whose file it is, after ``begin``; a torn last line is cut off first.
    """

    def __init__(self, folder: ResultsFolder) -> None:
        self._path = folder.episodes
        repair_json_lines(self._path, _read_record)
        self._file = self._path.open("ab", buffering=0)
        self._synced = time.monotonic()
        self._failed: BaseException | None = None  # why a line could not be written

    def append(self, record: EpisodeRecord) -> None:
        """Add one record.

        Raises:
            DiskFullError: there is no room; what was written of the line is cut off by the next session.
        """
        if self._failed is not None:  # no line follows one that may be torn
            raise self._failed
        try:
            with name_full_disk(self._path):
                line = json_line(record.to_dict())
                while line:
                    line = line[self._file.write(line) :]
                if time.monotonic() - self._synced > _SYNC_SECONDS:
                    os.fsync(self._file.fileno())
                    self._synced = time.monotonic()
        except BaseException as error:
            self._failed = error
            raise

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # An earlier error is the one to raise.
        with self._file, suppress(OSError) if kind else name_full_disk(self._path):
            os.fsync(self._file.fileno())


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a ValueError that names what differs."""
    plain = json.loads(json.dumps(now))  # tuples as lists, as they come back from the file
    old, new = _flat({key: before.get(key) for key in plain}), _flat(plain)
    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if "suite" in differing:  # its hash and its prompts differ with it
        differing = [key for key in differing if key != "hash" and not key.startswith("prompts.")]
    if differing:
        changes = "; ".join(f"{key} is now {new.get(key)!r} and was {old.get(key)!r}" for key in differing)
        raise ValueError(
            f"--out {path} holds a run of something else: {changes}. Episodes of the two do not belong in one score: "
            f"choose another folder, or repeat the suite and settings of the run."
        )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    if not isinstance(value, dict) or ("." in name and not value):  # an empty setting is one, no settings are none
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else str(key))
    return flat


def _check_info(info: Any) -> None:
    """Raise a ValueError where an entry of ``run.json`` that is read again has another type or is out of its range."""
    for name, kind in _ENTRIES.items():
        if not isinstance(info.get(name) if isinstance(info, dict) else None, kind):
            raise ValueError(f"{name} is missing, or of another type than a run writes.")
    if not info["agent"].isprintable() or not info["agent"]:
        raise ValueError(f"the run's agent is {shown(info['agent'])}: a name is made of printable characters.")
    check_number("the run", "temperature", info["temperature"], 0, MOST)
    for session in info["sessions"]:
        if not isinstance(session, dict) or not isinstance(session.get("splits", []), list):
            raise ValueError("sessions must be a list of objects, whose splits are a list of names.")
        for name in ("rollouts", "limit"):
            check_number("sessions", name, session.get(name), 1, MOST, whole=True, none=True)


_ENTRIES: dict[str, Any] = {
    **dict.fromkeys(("suite", "hash", "agent"), str),
    **dict.fromkeys(("settings", "prompts"), dict),
    "temperature": int | float,
    "sessions": list,
}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class BenchResults:
    """The results of a run, read from its folder as it was at one time."""

    path: Path  # the folder
    info: dict[str, Any]  # what ``run.json`` says
    suite: Suite  # what was played
    agent: str  # who played it
    records: tuple[EpisodeRecord, ...]  # the episodes, the last of each key
    retried: tuple[EpisodeRecord, ...] = ()  # earlier records of the same keys, in the order of the file
    summary_json: bytes | None = None  # ``summary.json``; None where there is none
    seen: frozenset[int] | None = None  # families of levels that the agent saw in training; None if unknown

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
        info, summary = folder.info, None
        with suppress(FileNotFoundError):
            summary = folder.summary.read_bytes()
        attempts = read_attempts(folder.episodes)
        seen = read_seen(folder.seen) if folder.seen.is_file() else None
        if folder.info == info:  # else a session has begun or ended meanwhile
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
        summary_json=summary,
        seen=seen,
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
