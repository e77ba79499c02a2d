"""The runs that are recorded next to an experiment's page: what is written is read again."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments.plan import plan
from benchmarks.experiments.records import (
    CLAIMS,
    RECORDS,
    complete_runs,
    dropped_p_values,
    missing_runs,
    recorded_seeds,
    write_records,
)
from benchmarks.experiments.spec import read
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.storage import read_json_lines

ARMS = ["FrozenLake, clipped loss", "FrozenLake, GSPO", "Sokoban, EPO"]  # games with different options


def test_runs_of_different_games_are_read_as_they_were_written(tmp_path: Path) -> None:
    planned = plan(read("stabilisers"), tmp_path / "none", 2, only=ARMS)
    metrics = [{"iteration": 0, "success": 0.25, "entropy": 1.5}, {"iteration": 1, "success": 0.5}]
    summary = {"after": {"rate": 0.5, "n": 4}, "finished": True}
    runs = {arm: dict[int, RecordedRun]() for arm in ARMS}
    for run in planned[:-1]:
        runs[run.arm.name][run.config.seed] = RecordedRun(run.name, RunFolder(run.folder), run.config, summary, metrics)
    assert missing_runs(planned, tmp_path) == planned
    write_records(planned, runs, (), tmp_path)
    found = complete_runs(planned, tmp_path)
    assert {arm: list(seeds) for arm, seeds in found.items()} == {ARMS[0]: [0, 1], ARMS[1]: [0, 1], ARMS[2]: [0]}
    for run in planned[:-1]:
        read_again = found[run.arm.name][run.config.seed]
        assert (read_again.config, read_again.summary, read_again.metrics) == (run.config, summary, metrics)
    assert missing_runs(planned, tmp_path) == planned[-1:]
    assert recorded_seeds(tmp_path) == 2
    written = (tmp_path / RECORDS).read_bytes()
    write_records(planned, {}, (), tmp_path)
    assert (tmp_path / RECORDS).read_bytes() == written, "nothing recorded is lost where nothing is there"
    rows = read_json_lines(tmp_path / RECORDS)
    del rows[0]["settings"]["turns.budget"]  # a setting that came after these records
    earlier = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (tmp_path / RECORDS).write_bytes(earlier)
    write_records(planned, found, (), tmp_path)
    assert (tmp_path / RECORDS).read_bytes() == earlier, "the same runs keep their bytes"
    write_records(planned[1:], found, (), tmp_path)
    assert len(read_json_lines(tmp_path / RECORDS)) == len(rows) - 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda rows: rows[1].pop("seed"),
            r"does not hold records of runs \(KeyError\('seed'\)\): restore",
        ),
        (lambda rows: rows[1].update(summary=[]), r"does not hold records of runs \(AttributeError"),
        (lambda rows: rows[0].update(evaluations=1), "holds runs with 1 evaluations of their ends; 4 are asked for"),
    ],
)
def test_records_that_no_experiment_writes_are_refused(
    change: Callable[[list[dict[str, Any]]], None], says: str, tmp_path: Path
) -> None:
    planned = plan(read("stabilisers"), tmp_path / "none", 2, only=ARMS[:1])
    summary = {"after": {"rate": 0.5, "n": 4}, "finished": True}
    runs = {ARMS[0]: {r.config.seed: RecordedRun(r.name, RunFolder(r.folder), r.config, summary, []) for r in planned}}
    write_records(planned, runs, (), tmp_path)
    assert missing_runs(planned, tmp_path) == []
    rows = read_json_lines(tmp_path / RECORDS)
    change(rows)
    (tmp_path / RECORDS).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    with pytest.raises(ValueError, match=says):
        complete_runs(planned, tmp_path)


def test_every_dropped_test_has_its_p_value_in_the_list_of_claims() -> None:
    lines = CLAIMS.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if " | dropped: " in line]
    again = [line for line in lines if " | made anew with the baseline before the reply: " in line]
    assert len(again) == 6
    assert all(line.endswith(" | 1 |") for line in again), "their first runs left no p-value"
    p_values = dropped_p_values()
    assert len(p_values) == len(rows) + len(again) > 100
    assert all(0 < p <= 1 for p in p_values)


#: Words of the list for which today's tables have others, by table of the list.
RENAMED = {
    "credit": ((r"^| \N{MINUS SIGN} ", r"\g<0>FrozenLake, "),),
    "uncertainty-filter": ((r"^| \N{MINUS SIGN} ", r"\g<0>FrozenLake, "),),
    "stabilisers": ((", x1", ""), (", PPO", ", clipped loss")),
    "paper-sokoban": (
        ("GRPO, random quarter", "StarPO-S at random"),
        ("GRPO, StarPO-S", "StarPO-S"),
        ("PPO, filter", "PPO, top 25"),
        (r"^| \N{MINUS SIGN} ", r"\g<0>Sokoban, "),
    ),
}


def test_the_list_of_claims_has_the_verdicts_of_the_pages() -> None:
    """What is kept has the same verdict as before, what is corrected another one."""
    cells = [line.strip("| ").split(" | ") for line in CLAIMS.read_text(encoding="utf-8").splitlines()]
    checked = 0
    for table, compared, before, after, *_ in (row for row in cells if len(row) == 5):
        if not (said := re.match(r"(kept|corrected): ([a-z0 ]+).*\]\((\S+)\)", after)):
            continue
        for old, new in RENAMED.get(table, ()):
            compared = re.sub(old, new, compared)
        page = (CLAIMS.parent / said[3]).read_text(encoding="utf-8")
        (verdict,) = re.findall(rf"\| {re.escape(compared)} \| [^|]*\|[^|]*\|[^|]*\|[^|]*\| \*\*(.*?)\*\*", page)
        assert verdict == said[2].strip(), compared
        same = f": {verdict.replace('close to 0', 'equivalent')}, " in before
        assert same == (said[1] == "kept"), compared
        checked += 1
    assert checked == 48
