"""Scores of runs as Markdown, the sentences beside them, and the form of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen_gym.core.failures import Failure
from ragen_gym.core.stats import CONFIDENCE, percent
from ragen_gym.envs.reply import Problem, explain_problem

Summary = Mapping[str, Any]

_NONE = "\N{EN DASH}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with that many digits after the point and a true minus; a dash for None."""
    return _NONE if value is None else f"{value:z.{digits}f}".replace("-", "\N{MINUS SIGN}")


def success(split: Summary) -> Summary:
    """The success of a split with the interval to read, Wilson's or the clustered; see ``ragen_gym.bench.score``."""
    plain: Summary = split["success"]
    if plain["n"] <= split["families"]:
        return plain
    return {**plain, **{end: split["clustered"][end] for end in ("low", "high")}}


def episodes_asked(entry: Summary) -> str:
    """Number of scored episodes of a split, or of all, such as ``40 of 48 episodes asked for, 8 excluded``."""
    missing = f", {entry['missing']:,} missing" * bool(entry["missing"])
    return f"{_scored(entry):,} of {entry['asked']:,} episodes asked for, {entry['excluded']:,} excluded{missing}"


def bounds(entry: Summary) -> str:
    """The bounds of success such as ``35.4 to 52.1``, or nothing where every episode asked for is scored."""
    if _scored(entry) == entry["asked"]:
        return ""
    return f"{100 * entry['bounds']['least']:.1f} to {100 * entry['bounds']['most']:.1f}"


def left_out(summary: Summary) -> list[str]:
    """Sentences on the instances and episodes that are not in the score."""
    overall, said = summary["overall"], []
    if overall["unasked"]:
        said.append(
            f"{overall['unasked']:,} of the suite's {overall['suite_instances']:,} instances were not asked for "
            "(--split, --limit): the score is of a part of the suite."
        )
    if overall["episodes"] < overall["asked"]:
        said.append(
            f"{episodes_asked(overall)}: success would be {bounds(overall)} % if all the rest had failed, or had "
            "succeeded. An agent that raises an error where it expects to lose leaves the score like this."
        )
    return said


def overflowed(summary: Summary) -> list[str]:
    """A sentence on the episodes that outgrew the model's context, where there are any."""
    full = sum(split["failures"].get(Failure.CONTEXT_OVERFLOW, 0) for split in summary["splits"].values())
    return [f"Episodes that outgrew the model's context, and count as not solved: {full:,}."] * bool(full)


def seen(split: Summary) -> str:
    """Number of a split's levels that the agent saw in training, such as ``3 of 256``; nothing if unknown."""
    met = split.get("seen")
    return "" if met is None else f"{met:,} of {split['levels']:,}"


def lacks(summary: Summary) -> list[str]:
    """Sentences on the text tasks for which there is no random or no optimal rate."""
    return [f"{name}: {split['lacks']}" for name, split in summary["splits"].items() if "lacks" in split]


def seen_in_training(summary: Summary) -> list[str]:
    """A sentence on the levels that the agent saw in training, or that no record says it."""
    splits = {name: split for name, split in summary["splits"].items() if split.get("seen") is not None}
    met = [f"{seen(split)} of {name}" for name, split in splits.items() if split["seen"]]
    if met:
        return [f"Levels that the agent saw in training, themselves or one of their family: {', '.join(met)}."]
    if splits:
        return ["The agent saw none of these levels in training."]
    return ["Whether the agent saw these levels in training is not known: the run has no record of that (--seen)."]


def above_optimal(summary: Summary) -> list[str]:
    """The splits on which an agent succeeded more often than optimal play is expected to, such as ``x (40 % of 30 %)``.

    They are those above the 95 % interval of optimal play's success, by Bonferroni over the splits.
    """
    known = {name: split for name, split in summary["splits"].items() if split.get("optimal_as_good") is not None}
    return [
        f"{name} ({percent(split['success']['rate'])}, optimal play {percent(split['optimal_expected'])})"
        for name, split in known.items()
        if split["optimal_as_good"] < (1 - CONFIDENCE) / 2 / len(known)
    ]


def too_good(summary: Summary) -> list[str]:
    """A sentence on success above optimal play's interval."""
    if above := above_optimal(summary):
        return [
            f"Success above the 95 % interval of optimal play: {', '.join(above)}. Chance alone does that in 2.5 % of "
            "the splits of an optimal agent; else the agent saw the transition noise to come, or the oracle is wrong."
        ]
    return []


def at_most_blind(summary: Summary) -> list[str]:
    """Sentences on the splits where success is not significantly above the blind script, and could be."""
    low, unclear = list[str](), list[str]()
    for name, split in summary["splits"].items():
        if split.get("above_blind") is not None and success(split)["low"] <= split["blind"]["rate"]:
            above = split["success"]["rate"] > split["blind"]["rate"]
            rates = f"{name} ({percent(split['success']['rate'])}, blind {percent(split['blind']['rate'])})"
            (unclear if above else low).append(rates)
    said = []
    if low:
        said.append(
            f"Not above the blind script, which ignores what is in the way: {', '.join(low)}. Such a score does not "
            "show planning."
        )
    if unclear:
        said.append(
            "Above the blind script, which ignores what is in the way, but not significantly: "
            f"{', '.join(unclear)}. These levels are too few to tell."
        )
    return said


def budgets(summary: Summary) -> list[str]:
    """Sentences on the stated budgets of each split, where its replies state any."""
    said = []
    for name, split in summary["splits"].items():
        if (entry := split.get("budget")) is None:
            continue
        of, impossible = entry["optimal"], entry["impossible"]
        precision, recall = (percent(each and each["rate"]) for each in (impossible["precision"], impossible["recall"]))
        said.append(
            f"Stated budgets of {name}, against optimal play: {percent(of['coverage']['rate'])} hold the actions to "
            f"go; interval score {number(of['score']['mean'])} actions, of the best constant interval "
            f"{number(of['constant']['score'])}, lower is better; impossible has precision {precision}, and recall "
            f"{recall} in {impossible['lost']:,} lost states."
        )
    return said


def common_problems(summary: Summary) -> list[str]:
    """Sentences on the format problems that more than half of the replies of a split share, each with an example."""
    shared: dict[str, dict[str, Summary]] = {}
    for name, split in summary["splits"].items():
        common = split.get("common_problem")
        if common and 2 * common["n"] > split["malformed"]["n"]:
            shared.setdefault(common["problem"], {})[name] = common
    said = []
    for problem, of in shared.items():
        what = explain_problem(Problem(problem)).removeprefix("Malformed: ")
        having, first = sum(common["n"] for common in of.values()), next(iter(of.values()))
        replies = sum(summary["splits"][name]["malformed"]["n"] for name in of)
        said.append(
            f"More than half of the replies share one problem, {problem} ({what}): {having:,} of {replies:,} in "
            f"{', '.join(of)}. An example ({first['episode']}, turn {first['turn'] + 1}): {first['reply']!r}"
        )
    return said


def cut(summary: Summary) -> list[str]:
    """A sentence on malformed replies that a limit of tokens cut, of each split's most frequent problem."""
    of = [split for split in summary["splits"].values() if split.get("common_problem")]
    n = sum(split["common_problem"]["cut"] for split in of)
    replies = sum(split["malformed"]["n"] for split in of)
    return [f"A limit of tokens cut {n:,} of {replies:,} replies, which are malformed: raise it."] if n else []


def sentences(summary: Summary) -> list[str]:
    """All that must be said next to the scores of a run."""
    about = common_problems, cut, seen_in_training, left_out, overflowed, lacks, at_most_blind, too_good, budgets
    return [sentence for each in about for sentence in each(summary)]


def _scored(entry: Summary) -> int:
    scored: int = entry["episodes"] if "episodes" in entry else entry["success"]["n"]
    return scored


def score_table(summaries: Sequence[Summary]) -> list[list[str]]:
    """Scores as a header and a row for each split and agent, split by split."""
    splits = {name: None for summary in summaries for name in summary["splits"]}
    scale = ["random", "blind", "optimal", "normalised", "above blind"]
    return [
        ["split", "agent", "success", "95 %", *scale, "malformed", "n of asked", "bounds"],
        *(
            [name, summary["agent"], *_cells(summary["splits"][name])]
            for name in splits
            for summary in summaries
            if name in summary["splits"]
        ),
    ]


def _cells(split: Summary) -> list[str]:
    solved, malformed = success(split), split["malformed"]
    asked = f"{solved['n']} of {split['asked']}", bounds(split)
    if solved["rate"] is None:
        return ["none", *[""] * 7, *asked]
    return [
        percent(solved["rate"]),
        interval(solved),
        *(percent(split[bound]["rate"]) if bound in split else "" for bound in ("random", "blind", "optimal")),
        *(f"{scale['value']:z.2f}" if scale else "" for scale in (split.get("normalised"), split.get("above_blind"))),
        percent(malformed["rate"]) if malformed else "",
        *asked,
    ]


def interval(estimate: Summary) -> str:
    """An interval in percent such as ``(35.4 to 52.1)``; nothing if unknown."""
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f"({100 * low:.1f} to {100 * high:.1f})"


def indistinct(summary: Summary) -> list[str]:
    """Sentences on the splits whose success does not differ significantly from random play."""
    return [
        f"{name}: {split['sentence']}"
        for name, split in summary["splits"].items()
        if split.get("differs_from_random") is False
    ]


def markdown_tables(summaries: Sequence[Summary]) -> str:
    """``score_table`` as Markdown, with the sentences beside it."""
    head, *rows = score_table(summaries)
    first = summaries[0]
    lines = [f"# {first['suite']} ({first['hash']})", ""]
    lines += map(markdown_row, (head, ["---"] * len(head), *rows))
    notes = [
        f"- {_plain(summary['agent'])}: {said}"
        for summary in summaries
        for said in (*indistinct(summary), *sentences(summary))
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes, ""])


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table, its cells as plain text."""
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in ("\\", "|", "<", "*", "`", "["):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
