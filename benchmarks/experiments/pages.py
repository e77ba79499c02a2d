"""The page of an experiment with its figures and ``results.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.experiments.alarm_evaluation import OUTCOMES, SignScore, collapse_start, outcome, score_signs
from benchmarks.experiments.comparison_tables import comparisons_table, count_claims, markdown_table, sweep_tables
from benchmarks.experiments.hypothesis_tests import (
    Finding,
    Runs,
    compare,
    conclusion,
    format_measure,
    is_decided,
    judge,
    summarise,
)
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.plots import draw_arms, draw_curves, draw_sweep
from benchmarks.experiments.records import complete_runs, write_records
from benchmarks.experiments.spec import MEASURES, Experiment, measure, names
from ragen_agent.report.runs import RecordedRun
from ragen_agent.run.alarm import sign_label
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import write_atomic

__all__ = [
    "alarm_table",
    "markdown_page",
    "read_findings",
    "undecided_arms",
    "without_misleading",
    "write_page",
]

QUICK = "Made with --quick: this shows that the experiment runs. It is evidence of nothing."

#: What an interval over seeds does not cover.
LEVELS = "All seeds are measured on the same levels, so an interval over seeds says nothing about other levels."


def write_page(
    experiment: Experiment, planned: Sequence[PlannedRun], failures: Mapping[str, str], out: Path, *, quick: bool
) -> dict[str, Any]:
    """Writes ``<experiment>.md``, ``results.json``, the records and the figures; returns the second's content.

    Runs that the folder has recorded are on the page with those on this disk. Other pictures in it are removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = complete_runs(planned, out)
    write_records(planned, runs, experiment.curves, out)
    findings = [compare(runs, comparison) for comparison in experiment.comparisons]
    pictures: list[str] = []
    if runs:
        if experiment.curves:
            draw_curves(experiment, runs, out / "curves.png")
            pictures.append("curves.png")
        draw = draw_arms if experiment.sweep is None else draw_sweep
        measures = dict.fromkeys(["end", *(c.measure for c in experiment.comparisons)])
        for name in measures:
            draw(experiment, runs, name, out / f"{name}.png")
            pictures.append(f"{name}.png")
    for left in out.glob("*.png"):  # of a measure that the table no longer asks for
        if left.name not in pictures:
            left.unlink()
    text = markdown_page(
        experiment, runs, findings, failures, wanted=len(planned), pictures=pictures, note=QUICK if quick else ""
    )
    write_atomic(out / f"{experiment.name}.md", text)
    results = {
        "experiment": experiment.name,
        "quick": quick,
        "runs": [
            {"arm": arm, "seed": seed, **{name: measure(run, name) for name in MEASURES}}
            for arm, seeds in runs.items()
            for seed, run in seeds.items()
        ],
        "comparisons": [_finding_json(finding) for finding in findings],
        "conclusion": conclusion(findings),
        "undecided": undecided_arms(experiment, findings),
        "failures": dict(failures),
        "pictures": pictures,
    }
    rounded: dict[str, Any] = json.loads(json.dumps(results), parse_float=lambda digits: float(f"{float(digits):.6g}"))
    write_atomic(out / "results.json", json.dumps(rounded, ensure_ascii=False) + "\n")
    return rounded


def undecided_arms(experiment: Experiment, findings: Sequence[Finding]) -> list[str]:
    """The arms whose claims more seeds could decide."""
    wanted = {arm for f in findings if not is_decided(f) for arm in (f.comparison.first, f.comparison.second)}
    return [arm.name for arm in experiment.arms if arm.name in wanted]


def markdown_page(
    experiment: Experiment,
    runs: Runs,
    findings: Sequence[Finding],
    failures: Mapping[str, str],
    *,
    wanted: int,
    pictures: Sequence[str],
    note: str = "",
) -> str:
    """The page in Markdown, of the complete runs out of the ``wanted``; ``pictures`` are files next to the page."""
    there = sum(len(seeds) for seeds in runs.values())
    whole = f"{there} of {wanted} runs are complete: the conclusions may change."
    if there == wanted:
        whole = f"All {wanted} runs are complete."
    places = Counter(run.summary.get("gpu", "CPUs") for seeds in runs.values() for run in seeds.values())
    if set(places) - {"CPUs"}:
        whole += f" Runs {', '.join(f'on {name}: {count}' for name, count in places.items())}."
    lines = [f"# {experiment.title}", ""]
    if note:
        lines += [f"> {note}", ""]
    lines += [f"**Question.** {experiment.question}", "", "## What was decided", ""]
    sentences = conclusion(findings) if experiment.sweep is None else count_claims(findings)
    lines += [f"- {sentence}" for sentence in sentences] or ["- Nothing was compared."]
    lines += [f"- {whole}", ""]
    lines += comparisons_table(findings) if experiment.sweep is None else sweep_tables(experiment.sweep, findings)
    lines += ["", *[f"![{name}]({name})\n" for name in pictures]]
    lines += ["## What it means", "", f"**Claim.** {experiment.claim} ({experiment.source})", ""]
    lines += [f"**Evidence.** {experiment.evidence}", "", f"**Limits.** {experiment.limits} {LEVELS}"]
    lines += [
        "",
        "## Arms",
        "",
        "Means over seeds with 95 % intervals (Student's t), clipped to 0 and 100 % for shares.",
        "",
    ]
    lines += _arms(experiment, runs)
    lines += [
        "",
        "## Collapse and alarm",
        "",
        *_collapses(runs),
        "",
        *alarm_table(score_signs(without_misleading(experiment, runs))),
        "",
        "## Descriptions of the arms",
        "",
    ]
    lines += [f"- **{a.name}**{' (control)' if a.control else ''}: {a.about}" for a in experiment.arms]
    lines += ["", *[f"- {name}: {MEASURES[name].about}." for name in experiment.columns]]
    if failures:
        lines += ["", "## Runs that failed", "", *[f"- {name}: {problem}" for name, problem in failures.items()]]
    name = experiment.name if experiment.name in names() else f"{experiment.name}.toml"
    lines += ["", f"Made by `python -m benchmarks.experiments {name}`.", ""]
    return "\n".join(lines)


def without_misleading(experiment: Experiment, runs: Runs) -> list[RecordedRun]:
    """The runs whose fall would be a collapse; see ``Arm.misleading``."""
    misleading = {arm.name for arm in experiment.arms if arm.misleading}
    return [run for arm, seeds in runs.items() if arm not in misleading for run in seeds.values()]


def alarm_table(scores: Sequence[SignScore], factors: Sequence[str] = ()) -> list[str]:
    """The alarm's signs as rows; with the factors that they were computed by, if they are given.

    How many collapses each predicted, how early, how many it showed only when they had begun, and its false alarms.
    """
    head = ["sign", "collapses predicted", "median lead (iterations)", "seen only at or after one", "false alarms"]
    rows = [
        [
            sign_label(j.sign),
            f"{j.predicted} of {j.collapses}",
            "\N{EN DASH}" if j.lead is None else f"{j.lead:g}",
            f"{j.late} of {j.collapses}",
            f"{j.false_alarms} of {j.healthy}",
        ]
        for j in scores
    ]
    if factors:
        head.insert(1, "threshold")
        rows = [[sign, factor, *rest] for (sign, *rest), factor in zip(rows, factors, strict=True)]
    return markdown_table(head, rows)


def _arms(experiment: Experiment, runs: Runs) -> list[str]:
    rows = []
    for arm in experiment.arms:
        if arm.name in runs:
            cells = [_cell(summarise(runs, arm.name, name), name) for name in experiment.columns]
            rows.append([arm.name + (" (control)" if arm.control else ""), str(len(runs[arm.name])), *cells])
    return markdown_table(["arm", "seeds", *experiment.columns], rows)


def _cell(found: Estimate | None, name: str) -> str:
    if found is None:
        return "\N{EN DASH}"
    mean = format_measure(found.value, name)
    if found.n < 2 or found.low == found.high:
        return mean
    low, high = found.low, found.high
    if MEASURES[name].rate:
        low, high = max(-1.0 if MEASURES[name].signed else 0.0, low), min(1.0, high)
    return f"{mean} [{format_measure(low, name).removesuffix(' %')}, {format_measure(high, name).removesuffix(' %')}]"


def _collapses(runs: Runs) -> list[str]:
    rows = []
    for arm, seeds in runs.items():
        outcomes = [outcome(run) for run in seeds.values()]
        whens = [str(at + 1) for run in seeds.values() if (at := collapse_start(run)) is not None]
        rows.append([arm, *[str(outcomes.count(name)) for name in OUTCOMES], ", ".join(whens) or "\N{EN DASH}"])
    return markdown_table(["arm", *OUTCOMES, "after iteration"], rows)


def read_findings(experiment: Experiment, folder: Path) -> list[Finding]:
    """Findings from the measures in the folder's ``results.json``; missing where it has none."""
    file = folder / "results.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []

    def measured(arm: str, name: str) -> dict[int, float]:
        return {row["seed"]: row[name] for row in rows if row["arm"] == arm and row.get(name) is not None}

    return [judge(comparison, measured) for comparison in experiment.comparisons]


def _finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, which has no infinity."""
    found = finding.interval
    bounded = found is not None and isfinite(found.low)
    return {
        **asdict(finding.comparison),
        "differences": {str(seed): value for seed, value in finding.differences.items()},
        "mean": found.value if found else None,
        "low": found.low if found and bounded else None,
        "high": found.high if found and bounded else None,
        "verdict": finding.verdict,
        "sentence": finding.sentence,
    }
