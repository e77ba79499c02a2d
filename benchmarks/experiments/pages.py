"""Writes what an experiment says: its page, its figures and its numbers; and the page over all experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.experiments.hypothesis_tests import Finding, Runs, compare, conclusion
from benchmarks.experiments.markdown import judgeable, page
from benchmarks.experiments.metrics import MEASURES, Played, measure, read_run
from benchmarks.experiments.overview import overview
from benchmarks.experiments.plan import Planned
from benchmarks.experiments.plots import draw_arms, draw_curves
from benchmarks.experiments.runner import missing
from benchmarks.experiments.spec import Experiment
from ragen_gym.core.storage import write_atomic

__all__ = ["whole_runs", "write_overview", "write_page"]

QUICK = "Made with --quick: this shows that the experiment runs. It is evidence of nothing."


def whole_runs(planned: Sequence[Planned]) -> Runs:
    """Those of the runs that are whole."""
    absent = {run.name for run in missing(planned)}
    runs: dict[str, dict[int, Played]] = {}
    for run in planned:
        if run.name not in absent:
            runs.setdefault(run.arm.name, {})[run.config.seed] = read_run(run.folder)
    return runs


def write_page(
    experiment: Experiment, planned: Sequence[Planned], failures: Mapping[str, str], out: Path, *, quick: bool
) -> dict[str, Any]:
    """Writes `<experiment>.md`, `results.json` and the figures into a folder; returns what is in `results.json`."""
    out.mkdir(parents=True, exist_ok=True)
    runs = whole_runs(planned)
    findings = [compare(runs, comparison) for comparison in experiment.comparisons]
    pictures = []
    if runs:
        draw_curves(experiment, runs, out / "curves.png")
        measures = dict.fromkeys(["after", *(c.measure for c in experiment.comparisons)])
        for name in measures:
            draw_arms(experiment, runs, name, out / f"{name}.png")
            pictures.append(f"{name}.png")
    names = (["curves.png"] if runs else []) + pictures
    text = page(experiment, runs, findings, failures, wanted=len(planned), pictures=names, note=QUICK if quick else "")
    write_atomic(out / f"{experiment.name}.md", text)
    results = {
        "experiment": experiment.name,
        "quick": quick,
        "runs": [
            {"arm": arm, "seed": seed, **{name: measure(run, name) for name in MEASURES}}
            for arm, seeds in runs.items()
            for seed, run in seeds.items()
        ],
        "comparisons": [_plain(finding) for finding in findings],
        "conclusion": conclusion(findings),
        "failures": dict(failures),
        "pictures": pictures,
    }
    write_atomic(out / "results.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return results


def write_overview(experiments: Sequence[Experiment], planned: Mapping[str, Sequence[Planned]], out: Path) -> None:
    """Writes `README.md`, the page over the experiments whose pages lie beside it."""
    runs = {each.name: whole_runs(planned[each.name]) for each in experiments}
    findings = {each.name: [compare(runs[each.name], c) for c in each.comparisons] for each in experiments}
    played = {each.name: judgeable(each, runs[each.name]) for each in experiments}
    write_atomic(out / "README.md", overview(experiments, findings, played))


def _plain(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, which knows no infinity."""
    found = finding.interval
    bounded = found is not None and found.n > 1
    return {
        **asdict(finding.comparison),
        "differences": {str(seed): value for seed, value in finding.differences.items()},
        "mean": found.value if found else None,
        "low": found.low if found and bounded else None,
        "high": found.high if found and bounded else None,
        "verdict": finding.verdict,
        "sentence": finding.sentence,
    }
