"""The page of an experiment: what was asked, what was measured, what it supports and what it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.experiments.alarm_evaluation import KINDS, Judged, calibrate, collapse, kind
from benchmarks.experiments.hypothesis_tests import Finding, Runs, conclusion, figure, summarise
from benchmarks.experiments.metrics import MEASURES, Played
from benchmarks.experiments.spec import Comparison, Experiment
from ragen_gym.core.stats import Estimate

__all__ = ["alarm_table", "comparisons_table", "judgeable", "markdown_table", "page"]

#: What an interval over seeds does not cover.
LEVELS = "All seeds are measured on the same levels, so an interval over seeds says nothing of other levels."


def page(
    experiment: Experiment,
    runs: Runs,
    findings: Sequence[Finding],
    failures: Mapping[str, str],
    *,
    wanted: int,
    pictures: Sequence[str],
    note: str = "",
) -> str:
    """The page in Markdown.

    Args:
        experiment: the table.
        runs: those that are whole.
        findings: of its comparisons.
        failures: what went wrong, by run.
        wanted: how many runs there should be.
        pictures: names of files beside the page.
        note: a warning at its head.
    """
    there = sum(len(seeds) for seeds in runs.values())
    judged = judgeable(experiment, runs)
    lines = [f"# {experiment.title}", ""]
    if note:
        lines += [f"> {note}", ""]
    lines += [f"**Question.** {experiment.question}", ""]
    lines += [f"**Claim.** {experiment.claim} ({experiment.source})", ""]
    lines += [f"**What would count.** {experiment.evidence}", "", "## What the runs say", ""]
    lines += [f"- {sentence}" for sentence in conclusion(findings)] or ["- Nothing was compared."]
    lines += [f"- {_whole(there, wanted)}", f"- **Limits.** {experiment.limits} {LEVELS}", "", "## Comparisons", ""]
    lines += comparisons_table(findings)
    lines += [
        "",
        "## Arms",
        "",
        "Means over seeds with 95 % intervals by Student's t, those of shares cut at 0 and 100 %.",
        "",
    ]
    lines += _arms(experiment, runs)
    lines += ["", *[f"![{name}]({name})\n" for name in pictures]]
    lines += [
        "## Collapse and alarm",
        "",
        *_collapses(runs),
        "",
        *alarm_table(calibrate(judged)),
        "",
        "## The arms in words",
        "",
    ]
    lines += [f"- **{a.name}**{' (control)' if a.control else ''}: {a.about}" for a in experiment.arms]
    lines += ["", *[f"- {name}: {MEASURES[name].about}." for name in experiment.columns]]
    if failures:
        lines += ["", "## Runs that failed", "", *[f"- {name}: {problem}" for name, problem in failures.items()]]
    lines += ["", f"Made by `ragen-agent experiment {experiment.name}`.", ""]
    return "\n".join(lines)


def comparisons_table(findings: Sequence[Finding]) -> list[str]:
    """The comparisons as rows: what is compared, what was claimed, and the difference."""
    return markdown_table(
        ["question", "first", "second", "measure", "claim", "first \N{MINUS SIGN} second [95 %]"],
        [
            [c.asks, c.first, c.second or "0", c.measure, claimed(c), finding.sentence]
            for finding in findings
            for c in [finding.comparison]
        ],
    )


def judgeable(experiment: Experiment, runs: Runs) -> list[Played]:
    """The runs whose fall would be a collapse; see `Arm.misleading`."""
    misleading = {arm.name for arm in experiment.arms if arm.misleading}
    return [run for arm, seeds in runs.items() if arm not in misleading for run in seeds.values()]


def claimed(comparison: Comparison) -> str:
    """A claim, and whose it is if it is not the source's."""
    return f"{comparison.claim or 'none'}{' (ours)' if comparison.by == 'ours' else ''}"


def alarm_table(judged: Sequence[Judged], factors: Sequence[str] = ()) -> list[str]:
    """The alarm's signs as rows; and by which factors, if they are given.

    How many collapses each announced, how early, how many it told only when they had begun, and in how many of the runs
    that did not collapse it was seen.
    """
    head = ["sign", "collapses announced", "median lead (iterations)", "seen only with or after one", "false alarms"]
    rows = [
        [
            j.sign.replace("_", " "),
            f"{j.announced} of {j.collapses}",
            "\N{EN DASH}" if j.lead is None else f"{j.lead:g}",
            f"{j.late} of {j.collapses}",
            f"{j.false_alarms} of {j.healthy}",
        ]
        for j in judged
    ]
    if factors:
        head.insert(1, "factor")
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
    mean = figure(found.value, name)
    if found.n < 2 or found.low == found.high:
        return mean
    low, high = found.low, found.high
    if MEASURES[name].rate and not MEASURES[name].signed:
        low, high = max(0.0, low), min(1.0, high)
    return f"{mean} [{figure(low, name).removesuffix(' %')}, {figure(high, name).removesuffix(' %')}]"


def _collapses(runs: Runs) -> list[str]:
    rows = []
    for arm, seeds in runs.items():
        kinds = [kind(run) for run in seeds.values()]
        whens = [str(at + 1) for run in seeds.values() if (at := collapse(run)) is not None]
        rows.append([arm, *[str(kinds.count(name)) for name in KINDS], ", ".join(whens) or "\N{EN DASH}"])
    return markdown_table(["arm", *KINDS, "after iteration"], rows)


def _whole(there: int, wanted: int) -> str:
    if there == wanted:
        return f"All {wanted} runs are whole."
    return f"{there} of {wanted} runs are whole: what is said here may change."


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    if not rows:
        return ["(no whole run yet)"]
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
