"""The page of an experiment with its figures, and the tables of comparisons that the overview shares with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from benchmarks.experiments.alarm_evaluation import OUTCOMES, SignScore, collapse_start, outcome, score_signs
from benchmarks.experiments.hypothesis_tests import (
    AT_RANDOM,
    EQUAL,
    MISSING,
    OPEN,
    SUPPORTS,
    VERDICTS,
    Finding,
    Runs,
    by_chance,
    compare,
    conclusion,
    decided_at_random,
    format_measure,
    is_decided,
    summarise,
)
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.plots import draw_arms, draw_curves, draw_sweep
from benchmarks.experiments.records import complete_runs, write_records
from benchmarks.experiments.spec import MEASURES, Experiment, measure, names
from benchmarks.experiments.sweep import Sweep
from ragen_agent.run.alarm import sign_label
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import write_atomic

__all__ = ["alarm_table", "count_claims", "difference_text", "markdown_table", "sweep_tables", "write_page"]

#: Marks a comparison of arms at random play.
DAGGER = "\N{DAGGER}"
QUICK = "Made with --quick: this shows that the experiment runs. It is evidence of nothing."

#: What an interval over seeds does not cover.
LEVELS = "All seeds are measured on the same levels, so an interval over seeds says nothing about other levels."


def write_page(
    experiment: Experiment, planned: Sequence[PlannedRun], failures: Mapping[str, str], out: Path, *, quick: bool
) -> dict[str, Any]:
    """Writes ``<experiment>.md``, the records and the figures; returns measures, comparisons and conclusion for JSON.

    Runs that the folder has recorded are on the page with those on this disk. Other pictures in it are removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = complete_runs(planned, out)
    write_records(planned, runs, experiment.curves, out)
    findings = [compare(runs, comparison) for comparison in experiment.comparisons]
    computed, pictures = resolve_name(experiment.computed)(out) if experiment.computed else ([], [])
    if runs:
        if experiment.curves:
            draw_curves(experiment, runs, out / "curves.png")
            pictures.append("curves.png")
        draw = draw_arms if experiment.sweep is None else draw_sweep
        for name in dict.fromkeys(["end", *(c.measure for c in experiment.comparisons)]):
            draw(experiment, runs, name, out / f"{name}.png")
            pictures.append(f"{name}.png")
    for left in out.glob("*.png"):  # of a measure that the table no longer asks for
        if left.name not in pictures:
            left.unlink()
    measured = [name for name in pictures if f"]({name})" not in "".join(computed)]
    text = _page(experiment, runs, findings, failures, len(planned), measured, computed, note=QUICK if quick else "")
    write_atomic(out / f"{experiment.name}.md", text)
    undecided = {arm for f in findings if not is_decided(f) for arm in (f.comparison.first, f.comparison.second)}
    return {
        "experiment": experiment.name,
        "quick": quick,
        "runs": [
            {"arm": arm, "seed": seed, **{name: measure(run, name) for name in MEASURES}}
            for arm, seeds in runs.items()
            for seed, run in seeds.items()
        ],
        "comparisons": [
            asdict(f.comparison) | {"differences": dict(f.differences), "verdict": f.verdict, "sentence": f.sentence}
            for f in findings
        ],
        "conclusion": conclusion(findings),
        "undecided": [arm.name for arm in experiment.arms if arm.name in undecided],  # more seeds could decide these
        "failures": dict(failures),
        "pictures": pictures,
    }


def _page(
    experiment: Experiment,
    runs: Runs,
    findings: Sequence[Finding],
    failures: Mapping[str, str],
    wanted: int,
    pictures: Sequence[str],
    computed: Sequence[str],
    note: str,
) -> str:
    """The page in Markdown, of the complete runs out of the ``wanted``.

    ``pictures`` are files next to the page, ``computed`` the lines of ``Experiment.computed``.
    """
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
    lines += [f"**Question.** {experiment.question}", "", *computed, "## What was decided", ""]
    sentences = conclusion(findings) if experiment.sweep is None else count_claims(findings)
    lines += [f"- {sentence}" for sentence in sentences] or ["- Nothing was compared."]
    lines += [f"- {whole}", ""]
    lines += _comparisons_table(findings) if experiment.sweep is None else sweep_tables(experiment.sweep, findings)
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
        *alarm_table(score_signs(experiment.without_misleading(runs))),
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


def alarm_table(scores: Sequence[SignScore]) -> list[str]:
    """The alarm's signs as rows.

    How many collapses each predicted, how early, how many it showed only when they had begun, and its false alarms.
    """
    return markdown_table(
        ["sign", "collapses predicted", "median lead (iterations)", "seen only at or after one", "false alarms"],
        [
            [
                sign_label(j.sign),
                f"{j.predicted} of {j.collapses}",
                "\N{EN DASH}" if j.lead is None else f"{j.lead:g}",
                f"{j.late} of {j.collapses}",
                f"{j.false_alarms} of {j.healthy}",
            ]
            for j in scores
        ],
    )


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


def count_claims(findings: Sequence[Finding]) -> list[str]:
    """Numbers of claims decided, supported, contradicted and left open, by whose they are: sentences."""
    claims = [finding for finding in findings if finding.comparison.claim]
    decided = sum(map(is_decided, claims))
    said = [f"**{decided} of {len(claims)} claims are decided.**"]
    for by, whose in (("source", "of the papers"), ("ours", "of this project")):
        verdicts = [f.verdict for f in findings if f.comparison.claim and f.comparison.by == by]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys((*VERDICTS, *verdicts)))
        if verdicts:
            said.append(f"Of {len(verdicts)} comparisons with a claim {whose}: {counts}.")
    return [*said, *decided_at_random(findings), *by_chance(findings)]


def _comparisons_table(findings: Sequence[Finding]) -> list[str]:
    """The comparisons as rows: what is compared, what was claimed, and the difference.

    Decided claims first, those without runs last.
    """
    return markdown_table(
        ["question", "first", "second", "measure", "claim", "first \N{MINUS SIGN} second [95 % over all looks]"],
        [
            [c.asks, c.first, c.second or "0", c.measure, claim, finding.sentence]
            for finding in sorted(
                findings, key=lambda f: (f.verdict == MISSING, not f.comparison.claim, not is_decided(f))
            )
            for c in [finding.comparison]
            for claim in [f"{c.claim or 'none'}{' (ours)' if c.by == 'ours' else ''}"]
        ],
    )


def sweep_tables(sweep: Sweep, findings: Sequence[Finding]) -> list[str]:
    """The comparisons of a sweep: a table for each panel with runs, a row for each line, a column for each comparison.

    Decided ones are in bold.
    """
    found = {(f.comparison.first, f.comparison.measure): f for f in findings}
    lines = [
        f"Each difference is to {sweep.against}: points [95 % over all looks], seeds, and what is decided, in bold if",
        f"anything is. {DAGGER}: {AT_RANDOM}.",
        "",
    ]
    for panel in sweep.panels:
        rows = []
        for line in sweep.lines:
            cells = [
                found[sweep.arm(panel["name"], line["name"], each["factor"]), each["measure"]]
                for each in (sweep.comparisons if line["name"] != sweep.against else ())
            ]
            if any(finding.verdict != MISSING for finding in cells):
                rows.append([line["name"], *map(_sweep_cell, cells)])
        if rows:
            lines += [f"### {panel['name']}", "", *markdown_table(["", *map(_sweep_head, sweep.comparisons)], rows), ""]
        else:
            lines += [f"{panel['name']}: no runs yet.", ""]
    return lines[:-1]


def _sweep_head(comparison: Mapping[str, Any]) -> str:
    claim = f" (claim: {comparison['claim']})" if comparison.get("claim") else ""
    return f"{comparison['measure']} at x{comparison['factor']:g}{claim}"


def _sweep_cell(finding: Finding) -> str:
    found = finding.interval
    if found is None:
        return "\N{EN DASH}"
    if finding.verdict == OPEN:
        decided = "open"
    elif finding.verdict == EQUAL or (finding.verdict == SUPPORTS and finding.comparison.claim == "equal"):
        decided = "**equal**"
    else:
        decided = "**higher**" if found.value > 0 else "**lower**"
    return f"{difference_text(finding)}, {found.n}: {decided}{DAGGER if finding.at_random else ''}"


def difference_text(finding: Finding) -> str:
    """The difference with its interval, as text."""
    found, name = finding.interval, finding.comparison.measure
    if found is None:
        return "\N{EN DASH}"
    value, low, high = (format_measure(end, name, signed=True) for end in (found.value, found.low, found.high))
    return f"{value} [{low} to {high}]" if isfinite(found.low) and found.low < found.high else value


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    if not rows:
        return ["(no complete run yet)"]
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
