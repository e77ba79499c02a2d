"""The page over all experiments, which begins with the claims that were decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.alarm_evaluation import AT_ONCE, OUTCOMES, outcome, score_signs
from benchmarks.experiments.hypothesis_tests import AT_RANDOM, MISSING, VERDICTS, Finding, compare, is_decided, judge
from benchmarks.experiments.pages import alarm_table, count_claims, difference_text, markdown_table, sweep_tables
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.records import complete_runs, recorded_measures
from benchmarks.experiments.spec import Experiment
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.storage import write_atomic

__all__ = ["markdown_overview", "without_copies", "write_overview"]

#: Figures of an iteration that are equal in two runs only if one is a copy of the other.
TRACE = ("success", "return", "spread", "grad_norm", "entropy", "reply_tokens", "repeated_rate", "response_tokens")


def write_overview(experiments: Sequence[Experiment], planned: Mapping[str, Sequence[PlannedRun]], out: Path) -> None:
    """Writes ``README.md``, the page over the experiments whose pages are in the same folder.

    Where no runs but their measures are recorded, an experiment is there with these.
    """
    runs = {each.name: complete_runs(planned[each.name], out / each.name) for each in experiments}
    findings = {
        each.name: [compare(runs[each.name], c) for c in each.comparisons]
        if runs[each.name]
        else _recorded_findings(each, out / each.name)
        for each in experiments
    }
    judged = {each.name: each.without_misleading(runs[each.name]) for each in experiments}
    write_atomic(out / "README.md", markdown_overview(experiments, findings, judged))


def _recorded_findings(experiment: Experiment, folder: Path) -> list[Finding]:
    measures = recorded_measures(folder)
    return [judge(each, lambda arm, name: measures.get((arm, name), {})) for each in experiment.comparisons]


def markdown_overview(
    experiments: Sequence[Experiment],
    findings: Mapping[str, Sequence[Finding]],
    runs: Mapping[str, Sequence[RecordedRun]],
) -> str:
    """The page in Markdown, of each experiment's findings and its complete runs whose fall would be a collapse."""
    # Some have runs of arms alone whose fall would be no collapse, others none that a comparison could be of.
    there = [e for e in experiments if runs[e.name] or any(f.differences for f in findings[e.name])]
    every = without_copies([run for name in runs for run in runs[name]])
    lines = [
        "# Experiments on small models",
        "",
        "Written by `python -m benchmarks.experiments all --jobs 2 --pages benchmarks/experiments`, with the pages",
        "that it links; stopped, the same command goes on. Verdicts follow from the intervals over seeds alone; each",
        "page says what would count as evidence, and its limits.",
        "",
    ]
    claims = [(e, f) for e in experiments if e.sweep is None for f in findings[e.name] if f.comparison.claim]
    lines += [" ".join(count_claims([finding for each in findings.values() for finding in each])), ""]
    lines += ["## Decided", "", *_claims([claim for claim in claims if is_decided(claim[1])]), ""]
    begun = [claim for claim in claims if claim[1].verdict != MISSING]
    lines += ["## Still open", "", *_claims([claim for claim in begun if not is_decided(claim[1])]), ""]
    for each in there:
        if each.sweep is not None:
            title = f"[{each.title}]({each.name}/{each.name}.md)"
            lines += [f"## {title}", "", *sweep_tables(each.sweep, findings[each.name]), ""]
    left = Counter(e.name for e in experiments for f in findings[e.name] if f.comparison.claim and f.verdict == MISSING)
    if left:
        of_each = [f"{claims} claim{'s' if claims > 1 else ''} of {name}" for name, claims in left.items()]
        lines += [f"Not run: {', '.join(of_each)}.", ""]
    lines += ["## The experiments", ""]
    for experiment in there:
        lines += [f"### [{experiment.title}]({experiment.name}/{experiment.name}.md)", "", experiment.question, ""]
        measures = dict.fromkeys(c.measure for c in experiment.comparisons if c.claim)
        pictures = [f"![{experiment.name}, {name}]({experiment.name}/{name}.png)" for name in [*measures][:1]]
        lines += [*pictures, ""]
    lines += ["## Outcomes of the runs", ""]
    rows = []
    for experiment in there:
        if not runs[experiment.name]:
            continue
        outcomes = [outcome(run) for run in runs[experiment.name]]
        rows.append([experiment.name, str(len(outcomes)), *[str(outcomes.count(name)) for name in OUTCOMES]])
    lines += markdown_table(["experiment", "runs", *OUTCOMES], rows)
    lines += ["", "Runs of arms whose rewards teach what is measured as failure are excluded here and below.", ""]
    if elsewhere := [f"[{e.name}]({e.name}/{e.name}.md)" for e in there if not runs[e.name]]:
        lines += [f"No runs are recorded of {', '.join(elsewhere)}: their outcomes and alarms are on their pages.", ""]
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
    return "\n".join([*lines, ""])


def _claims(claims: Sequence[tuple[Experiment, Finding]]) -> list[str]:
    """Claims as rows, those with the same verdict together."""
    rows = []
    for experiment, finding in sorted(claims, key=lambda claim: [*VERDICTS, claim[1].verdict].index(claim[1].verdict)):
        c = finding.comparison
        arms = f"{c.first} \N{MINUS SIGN} {c.second or 0}" + ("" if c.measure == "end" else f", {c.measure}")
        claim = f"{c.claim}{' (ours)' if c.by == 'ours' else ''}"
        seeds = str(finding.interval.n) if finding.interval else "0"
        linked = f"[{c.asks}]({experiment.name}/{experiment.name}.md)"
        found = f"**{finding.verdict}**" + (f"; {AT_RANDOM}" if finding.at_random else "")
        rows.append([linked, arms, claim, found, difference_text(finding), seeds])
    if not rows:
        return ["None."]
    return markdown_table(["question", "compared", "claim", "found", "difference [95 % over all looks]", "seeds"], rows)


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
