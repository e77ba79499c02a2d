"""The page over all experiments: the comparisons of each, the outcomes of the runs, and how good the alarm is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.experiments.alarm_evaluation import AT_ONCE, OUTCOMES, outcome, score_signs
from benchmarks.experiments.hypothesis_tests import TESTED, VERDICTS, Finding, compare
from benchmarks.experiments.page import alarm_table, comparisons_table, markdown_table, whole_runs, without_misleading
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.spec import Experiment
from ragen_agent.report.runs import RecordedRun
from ragen_agent.training.alarm import AlarmThresholds
from ragen_gym.core.storage import write_atomic

__all__ = ["markdown_overview", "without_copies", "write_overview"]

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


def write_overview(experiments: Sequence[Experiment], planned: Mapping[str, Sequence[PlannedRun]], out: Path) -> None:
    """Writes ``README.md``, the page over the experiments whose pages are in the same folder."""
    runs = {each.name: whole_runs(planned[each.name]) for each in experiments}
    findings = {each.name: [compare(runs[each.name], c) for c in each.comparisons] for each in experiments}
    judged = {each.name: without_misleading(each, runs[each.name]) for each in experiments}
    write_atomic(out / "README.md", markdown_overview(experiments, findings, judged))


def markdown_overview(
    experiments: Sequence[Experiment],
    findings: Mapping[str, Sequence[Finding]],
    runs: Mapping[str, Sequence[RecordedRun]],
) -> str:
    """The page in Markdown, of each experiment's findings and its whole runs whose fall would be a collapse."""
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
