"""The page of an experiment with its figures and ``results.json``, and the page over all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.experiments.alarm_evaluation import AT_ONCE, OUTCOMES, SignScore, collapse_start, outcome, score_signs
from benchmarks.experiments.hypothesis_tests import (
    TESTED,
    VERDICTS,
    Finding,
    Runs,
    compare,
    conclusion,
    format_measure,
    is_decided,
    summarise,
)
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.plots import draw_arms, draw_curves
from benchmarks.experiments.runner import missing
from benchmarks.experiments.spec import MEASURES, Experiment, measure
from ragen_agent.report.runs import RecordedRun, load_run
from ragen_agent.training.alarm import AlarmThresholds, sign_label
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import write_atomic

__all__ = [
    "alarm_table",
    "comparisons_table",
    "complete_runs",
    "markdown_overview",
    "markdown_page",
    "markdown_table",
    "undecided_arms",
    "without_copies",
    "without_misleading",
    "write_overview",
    "write_page",
]

QUICK = "Made with --quick: this shows that the experiment runs. It is evidence of nothing."

#: What an interval over seeds does not cover.
LEVELS = "All seeds are measured on the same levels, so an interval over seeds says nothing about other levels."

#: Factors of the alarm that are tried, by the sign that each decides.
FACTORS: dict[str, tuple[str, tuple[float, ...]]] = {
    "spread_fall": ("fall", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    "entropy_fall": ("fall", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    "entropy_jump": ("jump", (1.5, 2.0, 3.0, 4.0)),
    "gradient_spike": ("spike", (3.0, 5.0, 8.0, 12.0)),
    "invalid_rise": ("invalid", (0.1, 0.2, 0.3, 0.5)),
}

#: Figures of an iteration that are equal in two runs only if one is a copy of the other.
TRACE = ("success", "return", "spread", "grad_norm", "entropy", "reply_tokens", "repeated_rate", "response_tokens")


def complete_runs(planned: Sequence[PlannedRun]) -> Runs:
    """The planned runs that are complete."""
    absent = {run.name for run in missing(planned)}
    runs: dict[str, dict[int, RecordedRun]] = {}
    for run in planned:
        if run.name not in absent:
            runs.setdefault(run.arm.name, {})[run.config.seed] = load_run(run.folder)
    return runs


def write_page(
    experiment: Experiment, planned: Sequence[PlannedRun], failures: Mapping[str, str], out: Path, *, quick: bool
) -> dict[str, Any]:
    """Writes ``<experiment>.md``, ``results.json`` and the figures; returns the content of ``results.json``."""
    out.mkdir(parents=True, exist_ok=True)
    runs = complete_runs(planned)
    findings = [compare(runs, comparison) for comparison in experiment.comparisons]
    pictures = []
    if runs:
        draw_curves(experiment, runs, out / "curves.png")
        measures = dict.fromkeys(["after", *(c.measure for c in experiment.comparisons)])
        for name in measures:
            draw_arms(experiment, runs, name, out / f"{name}.png")
            pictures.append(f"{name}.png")
    names = (["curves.png"] if runs else []) + pictures
    text = markdown_page(
        experiment, runs, findings, failures, wanted=len(planned), pictures=names, note=QUICK if quick else ""
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
    write_atomic(out / "results.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return results


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
    lines = [f"# {experiment.title}", ""]
    if note:
        lines += [f"> {note}", ""]
    lines += [f"**Question.** {experiment.question}", ""]
    lines += [f"**Claim.** {experiment.claim} ({experiment.source})", ""]
    lines += [f"**Evidence.** {experiment.evidence}", "", "## What the runs say", ""]
    lines += [f"- {sentence}" for sentence in conclusion(findings)] or ["- Nothing was compared."]
    lines += [f"- {whole}", f"- **Limits.** {experiment.limits} {LEVELS}", "", "## Comparisons", ""]
    lines += comparisons_table(findings)
    lines += [
        "",
        "## Arms",
        "",
        "Means over seeds with 95 % intervals (Student's t), clipped to 0 and 100 % for shares.",
        "",
    ]
    lines += _arms(experiment, runs)
    lines += ["", *[f"![{name}]({name})\n" for name in pictures]]
    lines += [
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
    lines += ["", f"Made by `python -m benchmarks.experiments {experiment.name}`.", ""]
    return "\n".join(lines)


def comparisons_table(findings: Sequence[Finding]) -> list[str]:
    """The comparisons as rows: what is compared, what was claimed, and the difference."""
    return markdown_table(
        ["question", "first", "second", "measure", "claim", "first \N{MINUS SIGN} second [95 %]"],
        [
            [c.asks, c.first, c.second or "0", c.measure, claim, finding.sentence]
            for finding in findings
            for c in [finding.comparison]
            for claim in [f"{c.claim or 'none'}{' (ours)' if c.by == 'ours' else ''}"]
        ],
    )


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
    if MEASURES[name].rate and not MEASURES[name].signed:
        low, high = max(0.0, low), min(1.0, high)
    return f"{mean} [{format_measure(low, name).removesuffix(' %')}, {format_measure(high, name).removesuffix(' %')}]"


def _collapses(runs: Runs) -> list[str]:
    rows = []
    for arm, seeds in runs.items():
        outcomes = [outcome(run) for run in seeds.values()]
        whens = [str(at + 1) for run in seeds.values() if (at := collapse_start(run)) is not None]
        rows.append([arm, *[str(outcomes.count(name)) for name in OUTCOMES], ", ".join(whens) or "\N{EN DASH}"])
    return markdown_table(["arm", *OUTCOMES, "after iteration"], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    if not rows:
        return ["(no complete run yet)"]
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, which has no infinity."""
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


def write_overview(experiments: Sequence[Experiment], planned: Mapping[str, Sequence[PlannedRun]], out: Path) -> None:
    """Writes ``README.md``, the page over the experiments whose pages are in the same folder."""
    runs = {each.name: complete_runs(planned[each.name]) for each in experiments}
    findings = {each.name: [compare(runs[each.name], c) for c in each.comparisons] for each in experiments}
    judged = {each.name: without_misleading(each, runs[each.name]) for each in experiments}
    write_atomic(out / "README.md", markdown_overview(experiments, findings, judged))


def markdown_overview(
    experiments: Sequence[Experiment],
    findings: Mapping[str, Sequence[Finding]],
    runs: Mapping[str, Sequence[RecordedRun]],
) -> str:
    """The page in Markdown, of each experiment's findings and its complete runs whose fall would be a collapse."""
    there = [experiment for experiment in experiments if runs[experiment.name]]
    absent = [experiment.name for experiment in experiments if not runs[experiment.name]]
    every = without_copies([run for name in runs for run in runs[name]])
    lines = [
        "# Experiments on small models",
        "",
        "Written by `python -m benchmarks.experiments all`, with the pages that it links. Verdicts follow from the",
        "intervals over seeds alone; each page says what would count as evidence, and its limits.",
        "",
    ]
    lines += [_count([finding for experiment in there for finding in findings[experiment.name]]), ""]
    lines += [f"Not run: {', '.join(absent)}.", ""] if absent else []
    for experiment in there:
        lines += [f"## [{experiment.title}]({experiment.name}/{experiment.name}.md)", "", experiment.question, ""]
        lines += comparisons_table(findings[experiment.name])
        lines += ["", f"![{experiment.name}]({experiment.name}/after.png)", ""]
    lines += ["## Outcomes of the runs", ""]
    rows = []
    for experiment in there:
        outcomes = [outcome(run) for run in runs[experiment.name]]
        rows.append([experiment.name, str(len(outcomes)), *[str(outcomes.count(name)) for name in OUTCOMES]])
    lines += markdown_table(["experiment", "runs", *OUTCOMES], rows)
    lines += ["", "Runs of arms whose rewards teach what is measured as failure are excluded here and below.", ""]
    lines += ["## The alarm", ""]
    outcomes = [outcome(run) for run in every]
    never, at_once = outcomes.count("never learned"), outcomes.count("collapse at once")
    lines += [
        f"Over {len(every) - never - at_once} runs; what several experiments share is counted once. Excluded are",
        f"{at_once} runs that collapsed within {AT_ONCE} iterations, which no sign could have predicted, and {never}",
        "that never learned. The lead is counted from the sign to the first iteration of the collapse.",
        "",
    ]
    lines += alarm_table(score_signs(every))
    lines += [
        "",
        "The same for other thresholds of the signs; the default is in bold. A threshold that is chosen by this",
        "table must be evaluated on other runs.",
        "",
    ]
    lines += _factors(every)
    return "\n".join([*lines, ""])


def _count(findings: Sequence[Finding]) -> str:
    """How many claims were supported, contradicted or left open, by whose they are."""
    said = []
    for by, whose in (("source", "of the papers"), ("ours", "of this project")):
        verdicts = [f.verdict for f in findings if f.comparison.claim and f.comparison.by == by]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys((*VERDICTS, *verdicts)))
        if verdicts:
            said.append(f"Of {len(verdicts)} comparisons with a claim {whose}: {counts}.")
    tested = sum(finding.verdict in TESTED for finding in findings)
    return " ".join(said) + (
        f" With {tested} comparisons at 95 % each, about {0.05 * tested:.1g} would be significant by chance."
    )


def without_copies(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs without those that are the beginning of another, or the same run in another experiment."""
    kept: dict[Any, list[RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: -len(run.metrics)):
        alike = kept.setdefault(_trace(run)[0] if run.metrics else None, [])
        if not any(_trace(other)[: len(run.metrics)] == _trace(run) for other in alike):
            alike.append(run)
    return [run for alike in kept.values() for run in alike]


def _trace(run: RecordedRun) -> list[tuple[Any, ...]]:
    return [tuple(record.get(name) for name in TRACE) for record in run.metrics]


def _factors(runs: Sequence[RecordedRun]) -> list[str]:
    rows = []
    for sign, (factor, values) in FACTORS.items():
        for value in values:
            changed: dict[str, Any] = {factor: value}
            [judged] = [each for each in score_signs(runs, replace(AlarmThresholds(), **changed)) if each.sign == sign]
            said = f"**{value:g}**" if value == getattr(AlarmThresholds(), factor) else f"{value:g}"
            rows.append((said, judged))
    return alarm_table([judged for _, judged in rows], [said for said, _ in rows])
