"""Leaderboards as Markdown: submissions that are verified, and the tables that other leaderboards share.

A submission is the folder of a run, as ``ragen-gym bench run --out`` writes it, with a text file ``submission.toml``::

    who = "Ada, Example University"          # who submits it
    model = "Qwen2.5-0.5B-Instruct, StarPO-S on the training split"
    settings = "one rollout a level, T = 0.5, 400 tokens a reply"
    link = "https://example.org/weights"     # may be left out

It is accepted where ``ragen_gym.bench.verify`` verifies it, and where it played all instances of each split that it
played, each as often, of a suite of this package. All others are listed with the reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ragen_gym.bench.report.tables import Summary, markdown_row, number, seen
from ragen_gym.bench.rescore import Rescoring
from ragen_gym.bench.results import ResultsFolder, load_results
from ragen_gym.bench.score import score_results
from ragen_gym.bench.suites import SUITES, Split, Suite
from ragen_gym.bench.verify import Verdict, verify
from ragen_gym.core.failures import describe_error
from ragen_gym.core.stats import percent
from ragen_gym.core.storage import json_line
from ragen_gym.core.text import without_controls

__all__ = [
    "SUBMISSION_FILE",
    "Entry",
    "Refusal",
    "Submission",
    "find_submissions",
    "judge",
    "page",
    "published_table",
    "rates_table",
    "split_rate",
]

SUBMISSION_FILE = "submission.toml"

#: The most characters of a field of a submission, and the most bytes of a file of a run.
LONGEST, _LARGEST = 300, 2**30

PAGE = """\
# Leaderboard

Written by `ragen-gym bench leaderboard`, which replays every episode of every submission. Success in % with its 95 %
interval, clustered by the family of the level; random and optimal play are of the same levels. `normalised` is success
on the scale from random play (0) to optimal play (1), the mean over the splits. `seen`: levels that the agent saw in
training, by the run's own record. `ask why`: another temperature than the suite's, success above the interval of
optimal play, and what may have chosen among outcomes, such as attempts that were made again. What a replay cannot
show, such as whether the replies are the model's, is in `ragen-gym bench verify --help`.
"""


@dataclass(frozen=True)
class Submission:
    """Content of a submission's text file."""

    who: str  # submits it
    model: str
    settings: str  # sampling, prompts, training, as the reader needs them
    link: str = ""  # to weights, code or a paper

    @classmethod
    def read(cls, folder: Path) -> Submission:
        """That of a folder.

        Raises:
            ValueError: there is none, or a field is missing, unknown, empty, too long or no text.
        """
        path = folder / SUBMISSION_FILE
        names = [field.name for field in fields(cls)]
        if not path.is_file():
            raise ValueError(f"there is no {SUBMISSION_FILE}: write one with {', '.join(names[:3])}.")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # of TOML, or of UTF-8
            raise ValueError(f"{SUBMISSION_FILE} cannot be read: {error}") from None
        for name, value in table.items():
            if name not in names:
                raise ValueError(f"{SUBMISSION_FILE} has no field {name!r}: choose from {', '.join(names)}.")
            if not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
                raise ValueError(f"{SUBMISSION_FILE}: {name} must be a text of 1 to {LONGEST} characters.")
            if without_controls(value) != value:
                raise ValueError(f"{SUBMISSION_FILE}: {name} has a character that is not printable: leave it out.")
        for name in names[:3]:
            if name not in table:
                raise ValueError(f"{SUBMISSION_FILE} lacks {name!r}.")
        return cls(**table)


@dataclass(frozen=True)
class Entry:
    """A submission that is accepted."""

    path: Path
    submission: Submission
    suite: Suite
    summary: Summary  # see ``ragen_gym.bench.score``
    records: frozenset[bytes]  # the lines of the run's episodes
    doubts: tuple[str, ...] = ()  # of the verdict, and of the temperature


@dataclass(frozen=True)
class Refusal:
    """A submission that is not."""

    path: Path
    reason: str


def find_submissions(folders: Iterable[Path]) -> list[Path]:
    """The folders of runs and of submissions among these and below them, each once, in the order of their names.

    Raises:
        ValueError: there is no such folder, or neither run nor submission in it.
    """
    found: dict[Path, Path] = {}
    folders, any_file = [*folders], False
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: give those of submissions, or one that holds them.")
        files = [file for name in (SUBMISSION_FILE, "run.json") for file in folder.rglob(name)]
        for path in sorted({file.parent for file in files}) or [folder]:  # an empty one is refused, not an error
            found.setdefault(path.resolve(), path)
        any_file = any_file or bool(files)
    if not any_file:
        raise ValueError(
            f"{', '.join(map(str, folders))} holds no submission: a run's folder with a {SUBMISSION_FILE}."
        )
    return [*found.values()]


def judge(
    paths: Sequence[Path], progress: Callable[[int], None] = lambda done: None
) -> tuple[list[Entry], list[Refusal]]:
    """The submissions that are accepted, and those that are not.

    Args:
        paths: their folders.
        progress: called with how many are done.
    """
    entries: list[Entry] = []
    refusals: list[Refusal] = []
    for done, path in enumerate(paths, 1):
        try:
            entry = _entry(path)
            twin = next((other.path for other in entries if other.records == entry.records), None)
            if twin is not None:
                raise ValueError(f"it is the run of {twin} again.")
            entries.append(entry)
        except Exception as error:  # whatever is wrong with one folder, the others are judged
            said = str(error) if isinstance(error, ValueError | OSError) else describe_error(error)
            refusals.append(Refusal(path, without_controls(said)))
        progress(done)
    return entries, refusals


def _entry(path: Path) -> Entry:
    _check_size(path)
    submission = Submission.read(path)
    if (suite := ResultsFolder(path).info["suite"]) not in SUITES:
        raise ValueError(f"its suite, {suite}, is not one of this package.")
    run = load_results(path)
    if not Rescoring.of(run.info).changes_nothing:
        raise ValueError("it was rescored: submit the run as it was played.")
    verdict = verify(run)
    if not verdict.holds:
        raise ValueError(_why(verdict))
    summary = score_results(run)
    for name, split in summary["splits"].items():
        if split["played"] < split["instances"]:
            raise ValueError(f"it played {split['played']} of the {split['instances']} instances of {name}.")
        if split["success"]["n"] < split["played"] * split["rollouts"]:
            raise ValueError(
                f"it played some instances of {name} more often than others, up to {split['rollouts']:,} times: play "
                "each as often (--rollouts without --limit)."
            )
    temperature, asked = run.info["temperature"], run.suite.temperature
    other = [f"temperature {temperature:g}, where the suite has {asked:g}"] * (temperature != asked)
    records = frozenset(json_line(record.to_dict()) for record in run.records)
    return Entry(path, submission, run.suite, summary, records, (*other, *verdict.doubts))


def _check_size(path: Path) -> None:
    """Raise a ValueError where a file is larger than this machine should read, or is a device or a pipe."""
    folder = ResultsFolder(path)
    for file, most in ((path / SUBMISSION_FILE, 2**16), *((file, _LARGEST) for file in folder.files)):
        if file.exists() and not file.is_file():
            raise ValueError(f"{file.name} is not a file.")
        if file.is_file() and (size := file.stat().st_size) > most:
            raise ValueError(f"{file.name} has {size:,} bytes: at most {most:,} are read.")


def _why(verdict: Verdict) -> str:
    if found := [*verdict.differences, *(verdict.summary or ())]:
        more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
        return f"false: {found[0]}{more}."
    return f"incomplete: {'; '.join(verdict.lacks)}."


def page(entries: Sequence[Entry], refusals: Sequence[Refusal]) -> str:
    """The page: the suites in the order of the package, in each the most splits first, then the highest score."""
    parts = [PAGE]
    for name in SUITES:
        own = sorted((entry for entry in entries if entry.suite.name == name), key=_rank)
        if own:
            parts.append(_suite(own))
    if refusals:
        rows = [[without_controls(str(refusal.path)), refusal.reason] for refusal in refusals]
        parts.append("## Refused\n\n" + _table(["submission", "reason"], rows))
    return "\n".join(parts)


def _rank(entry: Entry) -> tuple[int, float, str]:
    normalised = entry.summary["overall"]["normalised"]
    return -len(entry.summary["splits"]), -(normalised or 0.0), str(entry.path)


def _suite(entries: Sequence[Entry]) -> str:
    suite = entries[0].suite
    overall = []
    for place, entry in enumerate(entries, 1):
        told, total = entry.submission, entry.summary["overall"]
        model = f"{told.model} ({told.link})" if told.link else told.model
        cells = [str(place), model, entry.summary["agent"], told.who, told.settings]
        cells += [number(total["normalised"]), percent(total["success"])]
        known = [f"{seen(split)} of {name}" for name, split in entry.summary["splits"].items() if seen(split)]
        met = [f"{seen(split)} of {name}" for name, split in entry.summary["splits"].items() if split["seen"]]
        cells += [f"{total['episodes']:,}", ", ".join(met) or ("none" if known else "not known")]
        overall.append([*cells, "; ".join(entry.doubts)])
    head = ["", "model", "agent", "by", "settings", "normalised", "success", "episodes", "seen", "ask why"]
    rows = {
        f"{place}. {entry.submission.model}": {name: split_rate(s) for name, s in entry.summary["splits"].items()}
        for place, entry in enumerate(entries, 1)
    }
    played = {name: split for entry in reversed(entries) for name, split in entry.summary["splits"].items()}
    rows["random play"] = {name: {"rate": s["random"]["rate"]} for name, s in played.items() if "random" in s}
    rows["blind script"] = {name: {"rate": s["blind"]["rate"]} for name, s in played.items() if "blind" in s}
    rows["optimal play"] = {
        name: {"rate": s["optimal_expected"]} for name, s in played.items() if "optimal_expected" in s
    }
    shown = [split for split in suite.splits if split.name in played]
    published = published_table(shown)
    return "\n".join(
        [
            f"## {suite.name}\n\n{suite.about} `{suite.hash}`\n",
            _table(head, overall),
            rates_table(shown, rows),
            *([f"Published by others:\n\n{published}"] if published else []),
        ]
    )


def split_rate(split: Summary) -> dict[str, Any]:
    """``{"rate", "low", "high"}`` of a split's summary: success with the interval to read."""
    return {key: (split.get("clustered") or split["success"])[key] for key in ("rate", "low", "high")}


def rates_table(splits: Sequence[Split], rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A table of success in %: a row for each name, a column for each split; what is not known is empty."""
    body = [[name, *(_rate(rates.get(split.name)) for split in splits)] for name, rates in rows.items()]
    return _table(["success, %", *(split.name for split in splits)], body)


def published_table(splits: Sequence[Split]) -> str:
    """The rates that others report on these splits, in %; empty where there are none."""
    names = dict.fromkeys(name for split in splits for name in split.published)
    rows = {
        name: {split.name: {"rate": split.published[name]} for split in splits if name in split.published}
        for name in names
    }
    return rates_table(splits, rows) if rows else ""


def _rate(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["rate"] is None:
        return ""
    interval = f" ({100 * entry['low']:.0f} to {100 * entry['high']:.0f})" if "low" in entry else ""
    return f"{100 * entry['rate']:.1f}{interval}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([markdown_row(head), markdown_row(["---"] * len(head)), *map(markdown_row, rows), ""])
