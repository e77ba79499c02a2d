"""The page of an experiment with its figures, and the tables that the overview shares with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from statistics import stdev

from benchmarks import markdown_table
from benchmarks.experiments.collapse import (
    OUTCOMES,
    collapse_sentence,
    collapse_start,
    learned,
    not_excluded,
    outcome,
    without_copies,
)
from benchmarks.experiments.hypothesis_tests import (
    MISSING,
    Finding,
    Runs,
    answer,
    format_difference,
    format_measure,
    is_decided,
    stopped_early,
    summarise,
)
from benchmarks.experiments.plan import PlannedRun
from benchmarks.experiments.plots import draw_arms, draw_curves
from benchmarks.experiments.records import write_records
from benchmarks.experiments.spec import MEASURES, Experiment, measure, names
from ragen_gym.core.stats import Estimate, percent
from ragen_gym.core.storage import write_atomic

QUICK = "Made with --quick: this shows that the experiment runs. It is evidence of nothing."

#: Which look a p-value is of.
P_OF_LOOKS = """\
An adjusted p is of the smallest p over the looks so far, corrected for their number: it may belong to an earlier look
than the difference beside it."""

#: What an interval over seeds does not cover.
LEVELS = "All seeds are measured on the same levels, so an interval over seeds says nothing about other levels."

#: Columns of every table of arms.
BOUNDS = ("before", "end", "gain", "random", "blind", "optimal")


def write_page(
    experiment: Experiment,
    planned: Sequence[PlannedRun],
    runs: Runs,
    findings: Sequence[Finding],
    failures: Mapping[str, str],
    out: Path,
    *,
    quick: bool,
) -> None:
    """Writes ``<experiment>.md``, the records and the figures; other pictures in the folder are removed.

    Args:
        experiment: the table.
        planned: the runs that the page is of.
        runs: those that are complete, on this disk or in the folder's records.
        findings: the table's comparisons of these runs, adjusted.
        failures: what went wrong, by the name of the run.
        out: the experiment's folder.
        quick: whether the page is to say that it is evidence of nothing.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_records(planned, runs, experiment.curves, out)
    computed, pictures = resolve_name(experiment.computed)(out, runs) if experiment.computed else ([], [])
    if runs:
        for name in dict.fromkeys(["end", *(c.measure for c in experiment.comparisons)]):
            draw_arms(experiment, runs, name, out / f"{name}.png")
            pictures.append(f"{name}.png")
        if experiment.curves:
            draw_curves(experiment, runs, out / "curves.png")
            pictures.append("curves.png")
    for left in out.glob("*.png"):  # of a measure that the table no longer asks for
        if left.name not in pictures:
            left.unlink()
    measured = [name for name in pictures if f"]({name})" not in "".join(computed)]
    text = _page(experiment, runs, findings, failures, planned, measured, computed, note=QUICK if quick else "")
    write_atomic(out / f"{experiment.name}.md", text)


def _page(
    experiment: Experiment,
    runs: Runs,
    findings: Sequence[Finding],
    failures: Mapping[str, str],
    planned: Sequence[PlannedRun],
    pictures: Sequence[str],
    computed: Sequence[str],
    note: str,
) -> str:
    """The page in Markdown, of those of the planned runs that are complete.

    ``pictures`` are files next to the page, ``computed`` the lines of ``Experiment.computed``.
    """
    missing = [run.arm for run in planned if run.config.seed not in runs.get(run.arm.name, {})]
    whole = f"All {len(planned)} runs are complete."
    if missing:
        whole = f"{len(planned) - len(missing)} of {len(planned)} runs are complete: "
        left = "; ".join(f"{name}: {count}" for name, count in Counter(arm.name for arm in missing).items())
        described = all(arm.seeds for arm in missing)
        whole += f"no comparison rests on the others ({left})." if described else "the conclusions may change."
    places = Counter(run.summary.get("gpu", "CPUs") for seeds in runs.values() for run in seeds.values())
    if set(places) - {"CPUs"}:
        whole += f" Runs {', '.join(f'on {name}: {count}' for name, count in places.items())}."
    lines = [f"# {experiment.title}", ""]
    if note:
        lines += [f"> {note}", ""]
    lines += [f"**Question.** {experiment.question}", "", f"**Answer.** {answer(findings)}", "", *computed]
    lines += [f"![{name}]({name})\n" for name in pictures if name != "curves.png"]
    looks = stopped_early(findings)
    said = [looks, whole, P_OF_LOOKS.replace("\n", " ") if looks else ""]
    lines += [" ".join(sentence for sentence in said if sentence), "", comparisons_table(findings)]
    lines += ["", "## What it means", "", f"**Claim.** {experiment.claim} ({experiment.source})", ""]
    lines += [f"**Evidence.** {experiment.evidence}", "", f"**Limits.** {experiment.limits} {LEVELS}"]
    lines += [
        "",
        "## Arms",
        "",
        "Means over seeds with 95 % intervals (Student's t), clipped to 0 and 100 % for shares; *spread* is the",
        "standard deviation of *end* over seeds, in points.",
        "",
    ]
    lines += [_arms(experiment, runs), "", *starts_below_random(runs)]
    lines += [f"![{name}]({name})\n" for name in pictures if name == "curves.png"]
    lines += ["## Collapse", "", *_collapses(runs), "", "## Descriptions of the arms", ""]
    lines += [f"- **{a.name}**{' (control)' if a.control else ''}: {a.about}" for a in experiment.arms]
    lines += ["", *[f"- {name}: {MEASURES[name].about}." for name in _columns(experiment)]]
    if failures:
        lines += ["", "## Runs that failed", "", *[f"- {name}: {problem}" for name, problem in failures.items()]]
    name = experiment.name if experiment.name in names() else f"{experiment.name}.toml"
    lines += ["", f"Made by `python -m benchmarks.experiments {name}`.", ""]
    return "\n".join(lines)


def _columns(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys((*BOUNDS, *experiment.columns)))


def _arms(experiment: Experiment, runs: Runs) -> str:
    rows = []
    for arm in experiment.arms:
        if arm.name in runs:
            cells = [_cell(summarise(runs, arm.name, name), name) for name in _columns(experiment)]
            ends = [end for run in runs[arm.name].values() if (end := measure(run, "end")) is not None]
            spread = f"{100 * stdev(ends):.1f}" if len(ends) > 1 else "\N{EN DASH}"
            rows.append([arm.name + (" (control)" if arm.control else ""), str(len(runs[arm.name])), *cells, spread])
    return markdown_table(["arm", "seeds", *_columns(experiment), "spread"], rows) if rows else "(no complete run yet)"


def starts_below_random(runs: Runs) -> list[str]:
    """The arms whose start is surely below random play, as a sentence and an empty line, if there are any."""
    pairs = {arm: (summarise(runs, arm, "before"), summarise(runs, arm, "random")) for arm in runs}
    below = [arm for arm, (start, random) in pairs.items() if start and random and start.high < random.value]
    if not below:
        return []
    named = "" if len(below) == len(runs) else f": {'; '.join(below)}"
    many = f"{len(below)} of {len(runs)} arms start surely below random play"
    return [f"{many}, so part of their gain may be learning the format of replies{named}.", ""]


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
    """The collapses as a sentence, and as rows by arm where there are any."""
    rows = []
    for arm, seeds in runs.items():
        outcomes = [outcome(run) for run in seeds.values()]
        whens = [str(at + 1) for run in seeds.values() if (at := collapse_start(run)) is not None]
        rose = [outcome(run) for run in seeds.values() if learned(run)]
        share = percent(not_excluded(rose.count("Echo Trap"), len(rose))) if rose else "\N{EN DASH}"
        cells = [str(outcomes.count(name)) for name in OUTCOMES]
        rows.append([arm, *cells, ", ".join(whens) or "\N{EN DASH}", str(len(rose)), share])
    said = collapse_sentence(without_copies([run for seeds in runs.values() for run in seeds.values()]))
    if all(collapse_start(run) is None for seeds in runs.values() for run in seeds.values()):
        return [said]
    fallen = {
        arm: count
        for arm, seeds in runs.items()
        if (count := sum(collapse_start(run) is not None for run in seeds.values()))
    }
    of = sum(len(runs[arm]) for arm in fallen)
    said += f" Arms with collapses are {'; '.join(fallen)}: {sum(fallen.values())} of {of} runs."
    head = ["arm", *OUTCOMES, "after iteration", "rose 20 points", "Echo Trap not excluded up to (one-sided 95 %)"]
    return [said, "", markdown_table(head, rows)]


def comparisons_table(findings: Sequence[Finding]) -> str:
    """Adjusted findings as rows, decided claims first, those without runs last."""
    rows = []
    for finding in findings:
        c, found = finding.comparison, finding.interval
        claim = f"{c.claim or 'none'}{' (ours)' if c.claim and c.by == 'ours' else ''}"
        adjusted = "\N{EN DASH}" if finding.adjusted is None else f"{max(finding.adjusted, 0.001):.3f}"
        rank = (finding.verdict == MISSING, not c.claim, not is_decided(finding))
        row = [c.asks, c.compared, claim, format_difference(finding), str(found.n if found else 0), adjusted]
        rows.append((rank, [*row, f"**{finding.verdict}**: {finding.decision}"]))
    head = ["question", "compared", "claim", "difference [95 % over all looks]", "seeds", "adjusted p", "decision"]
    return markdown_table(head, [row for _, row in sorted(rows, key=lambda each: each[0])])
