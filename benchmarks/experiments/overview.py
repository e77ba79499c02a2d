"""The page over all experiments, which begins with what they say in five sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.experiments.collapse import collapse_sentence, without_copies
from benchmarks.experiments.hypothesis_tests import (
    DECIDED,
    MISSING,
    UNLEARNED,
    VERDICTS,
    Finding,
    format_difference,
    stopped_early,
)
from benchmarks.experiments.pages import P_OF_LOOKS, comparisons_table
from benchmarks.experiments.spec import Experiment
from ragen_agent.report.runs import RecordedRun
from ragen_gym.core.stats import CONFIDENCE

#: What every verdict rests on.
RULES = f"""\
Two arms differ where an interval over seeds, paired, excludes 0 and the difference survives Benjamini and Hochberg's
correction at 5 %. They are equivalent where the interval lies within 5 points. A claim needs an arm that learned. It
gains more than 5 points over its own start, in the compared measure where that is success, and ends significantly above
random play. A difference of arms that did not learn is counted apart. Everything else is open.
{P_OF_LOOKS}"""


def markdown_overview(
    experiments: Sequence[Experiment],
    findings: Mapping[str, Sequence[Finding]],
    runs: Mapping[str, Sequence[RecordedRun]],
    dropped: int = 0,
) -> str:
    """The page ``README.md`` in Markdown; pages of the experiments are in folders beside it.

    Args:
        experiments: all of them.
        findings: the adjusted findings of every table, by its name.
        runs: complete runs by experiment.
        dropped: number of other tests that the findings were adjusted for.
    """
    there = [experiment for experiment in experiments if runs[experiment.name]]
    every = without_copies([run for name in runs for run in runs[name]])
    claims = [(e, f) for e in there for f in findings[e.name] if f.comparison.claim or f.directional]
    lines = ["# Experiments on small models", ""]
    lines += [f"{place}. {said}" for place, said in enumerate(_sentences(claims, every), 1)]
    lines += ["", RULES, "", *_family(findings, dropped), ""]
    for experiment in there:
        measures = dict.fromkeys(c.measure for c in experiment.comparisons if c.claim)
        link = f"{experiment.name}/{experiment.name}.md"
        lines += [f"## [{experiment.title}]({link})", "", experiment.question, ""]
        lines += [*[f"![{experiment.name}, {name}]({experiment.name}/{name}.png)" for name in [*measures][:1]], ""]
        lines += [comparisons_table([f for e, f in claims if e is experiment]), ""]
    command = "python -m benchmarks.experiments all --jobs 2 --pages benchmarks/experiments"
    lines += [f"Written by `{command}`, with the pages that it links; stopped, the same command goes on.", ""]
    return "\n".join(lines)


def _sentences(claims: Sequence[tuple[Experiment, Finding]], runs: Sequence[RecordedRun]) -> list[str]:
    """Five sentences: the count of verdicts, differences, equivalences, what is open and why, and collapses."""
    found = [finding for _, finding in claims if finding.comparison.claim]
    verdicts = [finding.verdict for finding in found]
    numbers = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (*VERDICTS, MISSING))
    decided = sum(verdict in DECIDED for verdict in verdicts)
    said = [f"**{decided} of {len(found)} claims are decided**: {numbers}."]
    differing = sorted((claim for claim in claims if _differs(claim[1])), key=lambda claim: claim[1].adjusted or 0.0)
    equal = [claim for claim in claims if claim[1].equivalent and claim[1].comparison.second]
    unclaimed = sum(not finding.comparison.claim for _, finding in differing)
    differ = f"differ, in {unclaimed} of which nothing had been claimed" if unclaimed else "differ"
    for words, chosen in ((differ, differing), ("are equivalent", equal)):
        named = "; ".join(f"{_linked(e, f)} {format_difference(f)}" for e, f in chosen[:6])
        more = f", and {len(chosen) - 6} more below" if len(chosen) > 6 else ""
        said.append(f"In {len(chosen)} comparisons the arms {words}{': ' if named else ''}{named}{more}.")
    said.append(stopped_early(found) or "All comparisons were made once, without looks.")
    said.append(collapse_sentence(runs))
    return said


def _differs(finding: Finding) -> bool:
    return finding.directional and finding.verdict != UNLEARNED


def _family(findings: Mapping[str, Sequence[Finding]], dropped: int) -> list[str]:
    """The tests of the correction, what is not among them, and what a stricter correction leaves."""
    tested = [finding for row in findings.values() for finding in row if finding.adjusted_by is not None]
    differing = [finding for finding in tested if _differs(finding)]
    left = sum((finding.adjusted_by or 0.0) <= 1 - CONFIDENCE for finding in differing)
    return [
        f"The correction is over {len(tested) + dropped} tests of no difference: {len(tested)} comparisons of these",
        f"tables, and {dropped} that were [dropped](claims.md) or made anew, of which those without a recorded",
        "p-value count as p = 1. Not among them are tests of equivalence, intervals of single arms or other",
        "benchmarks. Equivalences are not corrected for their number, so a few may hold by chance. The",
        "correction assumes independent or positively dependent tests, which shared controls do not guarantee.",
        f"Without that assumption (Benjamini and Yekutieli) {left} of the {len(differing)} differences remain.",
    ]


def _linked(experiment: Experiment, finding: Finding) -> str:
    return f"[{finding.comparison.compared}]({experiment.name}/{experiment.name}.md)"
