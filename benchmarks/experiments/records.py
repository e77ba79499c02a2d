"""The runs that stand behind an experiment's page, kept beside it so that any machine can go on where another stopped.

``runs.jsonl.gz`` holds a line for each complete run: its arm, seed and settings, the rates that were measured, and some
figures by iteration. Its first line holds the settings of its first run, and each run those that differ from them. No
record is replaced by a run with other settings: where the table asks for others, the record must be removed first.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.experiments.hypothesis_tests import Runs
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.runner import is_complete, is_whole
from ragen_agent.config import Config
from ragen_agent.report.runs import IRRELEVANT, RecordedRun, load_run
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines, write_atomic

RECORDS = "runs.jsonl.gz"
CLAIMS = Path(__file__).with_name("claims.md")

#: Figures by iteration that are recorded in addition to the curves: those that measures, signs of collapses
#: and the search for copies read.
FIGURES = (
    *("iteration", "success", "return", "return_std", "entropy", "grad_norm", "invalid_rate", "repeated_rate"),
    *("reply_tokens", "reasoning_tokens", "observation_rate", "sampled_tokens", "train_tokens"),
)
MACHINE = ("wall_s", "memory_gib", "gpu")  # of a summary, in addition to its rates
DIGITS = 5


def complete_runs(planned: Sequence[PlannedRun], folder: Path) -> dict[str, dict[int, RecordedRun]]:
    """The planned runs that are complete, by arm and seed: those on this disk, and those recorded in the folder.

    Raises:
        ValueError: the folder's file of records is damaged, or has one of these runs with other settings.
    """
    recorded, runs = _recorded(planned, folder), dict[str, dict[int, RecordedRun]]()
    for run in planned:
        if is_complete(run):
            runs.setdefault(run.arm.name, {})[run.config.seed] = _as_recorded(load_run(run.folder))
        elif run.name in recorded:
            runs.setdefault(run.arm.name, {})[run.config.seed] = recorded[run.name]
    return runs


def missing_runs(planned: Sequence[PlannedRun], folder: Path) -> list[PlannedRun]:
    """The planned runs that ``complete_runs`` does not have."""
    recorded = _recorded(planned, folder)
    return [run for run in planned if run.name not in recorded and not is_complete(run)]


def recorded_seeds(folder: Path) -> int:
    """Number of seeds that the records go up to; raises a ValueError if the folder's file of records is damaged."""
    try:
        ends: list[int] = [row["seed"] + 1 for row in read_json_lines(folder / RECORDS)[1:]]
    except (KeyError, TypeError) as error:
        raise _damaged(folder, error) from error
    return max(ends, default=0)


def dropped_p_values() -> list[float]:
    """P-values of comparisons dropped after their runs, or made anew, from ``claims.md``: they were tests too."""
    rows = [line.strip("| ").split(" | ") for line in CLAIMS.read_text(encoding="utf-8").splitlines()]
    return [float(row[-1]) for row in rows if len(row) == 5 and row[3].startswith(("dropped", "made anew"))]


def write_records(planned: Sequence[PlannedRun], runs: Runs, figures: Iterable[str], folder: Path) -> None:
    """Writes the planned runs that are in ``runs`` into the folder, with these figures in addition to ``FIGURES``.

    Records of arms that are not planned are dropped. A file that holds just these runs keeps its bytes: a setting that
    came later would change them.
    """
    complete = [run for run in planned if run.config.seed in runs.get(run.arm.name, {})]
    if not complete:
        return
    found = [runs[run.arm.name][run.config.seed] for run in complete]
    recorded = _recorded(complete, folder)
    there = [recorded[run.name] for run in complete if run.name in recorded]
    if _figures(there) == _figures(found) and len(read_json_lines(folder / RECORDS)) == 1 + len(found):
        return
    names = list(dict.fromkeys((*FIGURES, *figures)))
    common = _settings(complete[0].config)
    rows: list[dict[str, Any]] = [{"settings": common, "evaluations": complete[0].evaluations}]
    for run, played in zip(complete, found, strict=True):
        differing = {name: value for name, value in _settings(run.config).items() if common[name] != value}
        rows.append(
            {
                "arm": run.arm.name,
                "seed": run.config.seed,
                "settings": differing,
                "summary": played.summary,
                "metrics": {
                    name: [record.get(name) for record in played.metrics]
                    for name in names
                    if any(name in record for record in played.metrics)
                },
            }
        )
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    write_atomic(folder / RECORDS, gzip.compress("".join(lines).encode(), mtime=0))  # the same bytes each time


def _figures(runs: Sequence[RecordedRun]) -> list[Any]:
    return [(run.summary, run.metrics) for run in runs]


def _recorded(planned: Sequence[PlannedRun], folder: Path) -> dict[str, RecordedRun]:
    """The records that are of planned runs, by the names of these."""
    rows = read_json_lines(folder / RECORDS)
    if not rows:
        return {}
    try:
        # A setting that is gone and equal in all runs was at its default: nobody asks for another value now.
        common = {name: value for name, value in rows[0]["settings"].items() if name in _DEFAULTS}
        by_key = {(row["arm"], row["seed"]): row for row in rows[1:]}
        wanted = {run.evaluations for run in planned}
        if "evaluations" in rows[0] and wanted != {rows[0]["evaluations"]}:
            raise ValueError(
                f"{folder / RECORDS} holds runs with {rows[0]['evaluations']} evaluations of their ends; "
                f"{', '.join(map(str, wanted))} are asked for now: choose another --pages, or remove it to play anew."
            )
        found = {}
        for run in planned:
            row = by_key.get((run.arm.name, run.config.seed))
            if row is None or not is_whole(row["summary"]):
                continue
            if not _same({**common, **row["settings"]}, _settings(run.config)):
                raise ValueError(
                    f"{folder / RECORDS} holds {run.name} with other settings than are asked for now: choose another "
                    "--pages, or remove its line to play it anew."
                )
            path = RunFolder(run.folder)
            found[run.name] = RecordedRun(run.name, path, run.config, row["summary"], _metrics(row["metrics"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, error) from error
    return found


def _damaged(folder: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{folder / RECORDS} does not hold records of runs ({error!r}): restore it, or remove it to play anew."
    )


def _settings(config: Config) -> dict[str, Any]:
    """The settings that decide what is learned, by dotted name, as JSON has them: the same names in every run."""
    flat: dict[str, Any] = {}
    for name, value in asdict(config).items():
        is_table = is_dataclass(getattr(config, name))  # a game's options are one value: games have different ones
        flat |= {f"{name}.{key}": each for key, each in value.items()} if is_table else {name: value}
    decisive = {name: value for name, value in flat.items() if name == "seed" or name not in IRRELEVANT}
    return dict(json.loads(json.dumps(decisive)))


def _same(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """True if the decisive settings are equal; one that came later counts as recorded with its default."""
    recorded = {name: value for name, value in recorded.items() if name == "seed" or name not in IRRELEVANT}
    return recorded == {name: value for name, value in wanted.items() if name in recorded} and all(
        _DEFAULTS.get(name) == value for name, value in wanted.items() if name not in recorded
    )


_DEFAULTS = _settings(Config())


def _as_recorded(run: RecordedRun) -> RecordedRun:
    """A finished run with what its record will hold, so that a page is the same on another machine."""
    rates = {
        name: {"rate": row["rate"], "n": row["n"]}
        for name, row in run.summary.items()
        if isinstance(row, Mapping) and "rate" in row
    }
    machine = {name: _rounded(run.summary[name]) for name in MACHINE if name in run.summary}
    metrics = [{name: _rounded(value) for name, value in record.items()} for record in run.metrics]
    return replace(run, summary=rates | machine | {"finished": True}, metrics=metrics)


def _metrics(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Records of iterations from the figures."""
    return [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
