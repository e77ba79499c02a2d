"""Tables of comparisons in Markdown: one a row, or those of a sweep as a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from benchmarks.experiments.hypothesis_tests import (
    AT_RANDOM,
    EQUAL,
    MISSING,
    OPEN,
    SUPPORTS,
    VERDICTS,
    Finding,
    by_chance,
    decided_at_random,
    format_measure,
    is_decided,
)
from benchmarks.experiments.sweep import Sweep

__all__ = ["comparisons_table", "count_claims", "difference_text", "markdown_table", "sweep_tables"]

#: Marks a comparison of arms at random play.
DAGGER = "\N{DAGGER}"


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


def comparisons_table(findings: Sequence[Finding]) -> list[str]:
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
