"""The page over all experiments: what each says, what became of the runs, and how good the alarm is over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.experiments.alarm_evaluation import AT_ONCE, KINDS, calibrate, kind
from benchmarks.experiments.hypothesis_tests import TESTED, VERDICTS, Finding
from benchmarks.experiments.markdown import alarm_table, comparisons_table, markdown_table
from benchmarks.experiments.metrics import Played
from benchmarks.experiments.spec import Experiment
from ragen_agent.training.alarm import Alarm

__all__ = ["overview", "without_copies"]

#: Factors of the alarm that are tried, by the sign that each decides.
FACTORS: dict[str, tuple[str, tuple[float, ...]]] = {
    "spread_fall": ("fall", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    "entropy_fall": ("fall", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    "entropy_jump": ("jump", (1.5, 2.0, 3.0, 4.0)),
    "gradient_spike": ("spike", (3.0, 5.0, 8.0, 12.0)),
    "invalid_rise": ("invalid", (0.1, 0.2, 0.3, 0.5)),
}

#: Figures of an iteration that two runs have in common only if they are one.
TRACE = ("success", "return", "spread", "grad_norm", "entropy", "reply_tokens", "repeated_rate", "response_tokens")


def overview(
    experiments: Sequence[Experiment], findings: Mapping[str, Sequence[Finding]], runs: Mapping[str, Sequence[Played]]
) -> str:
    """The page in Markdown.

    Args:
        experiments: in the order of the page.
        findings: of each experiment, by its name.
        runs: the whole runs of each whose fall would be a collapse.
    """
    there = [experiment for experiment in experiments if runs[experiment.name]]
    absent = [experiment.name for experiment in experiments if not runs[experiment.name]]
    every = without_copies([run for name in runs for run in runs[name]])
    lines = [
        "# Experiments on small models",
        "",
        "Written by `ragen-agent experiment all`, with the pages that it names. Verdicts follow from the intervals",
        "over seeds alone; each page says what would count as evidence, and its limits.",
        "",
    ]
    lines += [_count([finding for experiment in there for finding in findings[experiment.name]]), ""]
    lines += [f"Not run: {', '.join(absent)}.", ""] if absent else []
    for experiment in there:
        lines += [f"## [{experiment.title}]({experiment.name}/{experiment.name}.md)", "", experiment.question, ""]
        lines += comparisons_table(findings[experiment.name])
        lines += ["", f"![{experiment.name}]({experiment.name}/after.png)", ""]
    lines += ["## What became of the runs", ""]
    rows = []
    for experiment in there:
        kinds = [kind(run) for run in runs[experiment.name]]
        rows.append([experiment.name, str(len(kinds)), *[str(kinds.count(name)) for name in KINDS]])
    lines += markdown_table(["experiment", "runs", *KINDS], rows)
    lines += ["", "Runs of arms whose rewards teach what is measured as failure are left out here and below.", ""]
    lines += ["## The alarm", ""]
    kinds = [kind(run) for run in every]
    never, at_once = kinds.count("never learned"), kinds.count("collapse at once")
    lines += [
        f"Over {len(every) - never - at_once} runs; what several experiments share is counted once. Left out are",
        f"{at_once} runs that collapsed within {AT_ONCE} iterations, which nothing could have announced, and {never}",
        "that never learned. The lead is counted from the sign to the first iteration of the collapse.",
        "",
    ]
    lines += alarm_table(calibrate(every))
    lines += [
        "",
        "The same for other factors of the signs; the factor in force is in bold. A factor that is chosen by this",
        "table must be judged on other runs.",
        "",
    ]
    lines += _factors(every)
    return "\n".join([*lines, ""])


def _count(findings: Sequence[Finding]) -> str:
    """What became of the comparisons that carry a claim, by whose it is."""
    said = []
    for by, whose in (("source", "of the papers"), ("ours", "of this project")):
        verdicts = [f.verdict for f in findings if f.comparison.claim and f.comparison.by == by]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys((*VERDICTS, *verdicts)))
        if verdicts:
            said.append(f"Of {len(verdicts)} comparisons that carry a claim {whose}: {counts}.")
    tested = sum(finding.verdict in TESTED for finding in findings)
    return " ".join(said) + (
        f" With {tested} comparisons at 95 % each, about {0.05 * tested:.1g} would show a difference by chance alone."
    )


def without_copies(runs: Sequence[Played]) -> list[Played]:
    """The runs without those that are the beginning of another, or the same run in another experiment."""
    kept: dict[Any, list[Played]] = {}
    for run in sorted(runs, key=lambda run: -len(run.metrics)):
        alike = kept.setdefault(_course(run)[0] if run.metrics else None, [])
        if not any(_course(other)[: len(run.metrics)] == _course(run) for other in alike):
            alike.append(run)
    return [run for alike in kept.values() for run in alike]


def _course(run: Played) -> list[tuple[Any, ...]]:
    return [tuple(record.get(name) for name in TRACE) for record in run.metrics]


def _factors(runs: Sequence[Played]) -> list[str]:
    rows = []
    for sign, (factor, values) in FACTORS.items():
        for value in values:
            changed: dict[str, Any] = {factor: value}
            [judged] = [each for each in calibrate(runs, replace(Alarm(), **changed)) if each.sign == sign]
            said = f"**{value:g}**" if value == getattr(Alarm(), factor) else f"{value:g}"
            rows.append((said, judged))
    return alarm_table([judged for _, judged in rows], [said for said, _ in rows])
