"""Measured rates: sentences, and the table of all numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ragen_agent.report.runs import SeedGroup
from ragen_agent.run.console import ROWS, episode_counts
from ragen_gym.bench.report.plots import COLOURS
from ragen_gym.core.stats import Estimate, mean_interval, percent

BOUNDS = ("random", "optimal")


def group_rate(rates: Mapping[int, Mapping[str, Any]]) -> Estimate | None:
    """A rate of a group over its seeds, ``n`` of them: Wilson's interval for one run, Student's over several.

    What is the same in all runs to the last digit, such as random replies on the same levels, counts as measured once.

    Args:
        rates: by seed, as in ``summary.json``.

    Returns:
        None where no run has it.
    """
    if not rates:
        return None
    first, *others = rates.values()
    if all(other == first for other in others):
        return Estimate(first["rate"], first["low"], first["high"], 1)
    found = mean_interval([rate["rate"] for rate in rates.values()])
    return Estimate(found.value, max(0.0, found.low), min(1.0, found.high), found.n)


def sentences(groups: Sequence[SeedGroup]) -> list[str]:
    """Sentences that follow from the numbers alone, first of each group, then of groups against the first."""
    said = []
    for group in groups:
        said += _of_group(group, "" if len(groups) == 1 else f"{group.name}: ")
    said += [sentence for other in groups[1:] for sentence in _against(groups[0], other)]
    return said


def rates_table(groups: Sequence[SeedGroup]) -> list[dict[str, Any]]:
    """For each group, for each game of a mixture, its rows: name, what it is, mean, interval, rates of the seeds."""
    made = []
    for group in [part for each in groups for part in _games(each)]:
        rows = []
        for row, about in ROWS.items():
            rates = group.rates(row)
            found = group_rate(rates)
            if found is None:
                continue
            failed, overflowed = (
                sum(rate.get(count, 0) for rate in rates.values()) for count in ("failed", "overflowed")
            )
            rows.append(
                {
                    "name": row.replace("_", " "),
                    "bound": row in BOUNDS,
                    "strong": row == "after",
                    "about": about + episode_counts(failed, overflowed),
                    "rate": percent(found.value),
                    "interval": f"{100 * found.low:.1f} to {100 * found.high:.1f}",
                    "episodes": sum(rate["n"] for rate in [*rates.values()][: found.n]),
                    "seeds": [
                        (seed, percent(rate["rate"]), f"{100 * rate['low']:.1f} to {100 * rate['high']:.1f}")
                        for seed, rate in sorted(rates.items())
                        if found.n > 1
                    ],
                }
            )
        config, seeds = group.runs[0].config, [run.config.seed for run in group.runs]
        levels = f"{config.evaluation.levels} fixed levels of the split {config.evaluation.split}"
        named = f"seed{_s(seeds)} {', '.join(map(str, sorted(seeds)))}"
        about = f"{levels}, temperature {config.evaluation.temperature:g}; {named}"
        if rows:
            made.append({"name": group.name, "colour": group.colour % COLOURS, "about": about, "rows": rows})
    return made


def _games(group: SeedGroup) -> list[SeedGroup]:
    """The group, or of a mixture one for each game with its rates, the run's own game first."""
    own = group.runs[0].config.game
    others = dict.fromkeys(game for run in group.runs for game in run.summary.get("games", {}))
    if not others:
        return [group]

    def part(game: str) -> SeedGroup:
        summaries = (
            (run, run.summary if game == own else run.summary.get("games", {}).get(game, {})) for run in group.runs
        )
        runs = [replace(run, summary=summary) for run, summary in summaries]
        return SeedGroup(game if group.name == own else f"{group.name}, {game}", group.colour, runs)

    return [part(game) for game in (own, *others)]


def _of_group(group: SeedGroup, whose: str) -> list[str]:
    said = []
    before, after = group.rates("before"), group.rates("after")
    ends = group_rate(before), group_rate(after)
    random, optimal = (group_rate(group.rates(row)) for row in BOUNDS)
    blind = group_rate(group.rates("blind"))
    if ends[0] and ends[1]:
        between = ""
        if random and optimal:
            script = f"the blind script {percent(blind.value)}, " if blind else ""
            between = f"; random replies {percent(random.value)}, {script}optimal play {percent(optimal.value)}"
        went = f"success went from {percent(ends[0].value)} to {percent(ends[1].value)} by reinforcement{between}."
        said.append(f"{_begin(whose, went)} {_gain(after, before, 'the gain')}")
    if ends[1] and blind and optimal and ends[1].low <= blind.value < optimal.value:
        shows = "success after it is not significantly above the blind script, so it does not show planning."
        said.append(_begin(whose, shows))
    if after and (more := group.rates("more_imitation")):
        reaches = f"more imitation at the same cost reaches {percent(fmean(r['rate'] for r in more.values()))}."
        said.append(f"{_begin(whose, reaches)} {_gain(after, more, 'what reinforcement adds to it')}")
    for run in group.runs:
        wanted = run.config.training.iterations
        if not run.finished:
            said.append(f"{run.name} is not finished: {len(run.metrics)} of {wanted} iterations of reinforcement.")
        elif len(run.metrics) < wanted:
            why = f" {run.summary['stopped']}" if "stopped" in run.summary else ""
            said.append(
                f"{run.name} was stopped after {len(run.metrics)} of {wanted} iterations of reinforcement.{why}"
            )
    raised = sum(bool(run.signs) for run in group.runs)
    if raised:
        said.append(
            f"{whose}{raised} of {len(group.runs)} run{_s(group.runs)} showed a sign of the Echo Trap; see Alarms."
        )
    return said


def _against(first: SeedGroup, other: SeedGroup) -> list[str]:
    ends = first.rates("after"), other.rates("after")
    if not all(ends) or first.runs[0].config.game != other.runs[0].config.game:
        return []
    return [f"{other.name} against {first.name}, after reinforcement. {_gain(ends[1], ends[0], 'the difference')}"]


def _gain(over: Mapping[int, Mapping[str, Any]], under: Mapping[int, Mapping[str, Any]], what: str) -> str:
    """The difference by seed with its interval; of one seed, or of none in both, whether the intervals are apart."""
    seeds = [seed for seed in over if seed in under]
    if len(seeds) > 1:
        found: Estimate = mean_interval([over[seed]["rate"] - under[seed]["rate"] for seed in seeds])
        low, high = max(-1.0, found.low), min(1.0, found.high)  # rates differ by no more
        ends = f"{points(found.value)} points ({points(low)} to {points(high)} over {found.n} seeds)"
        return f"{what[0].upper()}{what[1:]} is {ends}, {'significant' if found.significant else 'not significant'}."
    if seeds:
        over, under = ({seed: rates[seed] for seed in seeds} for rates in (over, under))
    one, two = group_rate(over), group_rate(under)
    assert one is not None
    assert two is not None
    apart = one.low > two.high or two.low > one.high
    verdict = "do not overlap" if apart else "overlap"
    alone = len(over) == len(under) == 1
    limit = "one seed says nothing of how seeds differ" if alone else "no seed is in both, so it has no interval"
    return (
        f"{what[0].upper()}{what[1:]} is {points(one.value - two.value)} points, and the intervals"
        f"{' over levels' * alone} {verdict}; {limit}."
    )


def _begin(whose: str, words: str) -> str:
    return whose + words if whose else words[0].upper() + words[1:]


def _s(things: Sequence[Any]) -> str:
    return "s" * (len(things) != 1)


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign; 0 has none."""
    text = f"{100 * share:+z.1f}".replace("-", "\N{MINUS SIGN}")
    return "0.0" if text == "+0.0" else text
