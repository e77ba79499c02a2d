"""The reach of one reply before and after training, by exact pass@k: ``python -m benchmarks.widening``.

For each seed the model of ``make train`` is warm-started, trained by reinforcement, and, from the same warm start,
trained by more imitation at the same cost. Replies have no thoughts, so ``ragen_agent.exact`` gives the success of each
policy on each held-out level, within each number of turns. The warm start at its best temperature is a second control.
``--model smollm2-135m`` measures a pretrained model, without that control and in episodes of two turns alone.

Records are kept in ``widening.jsonl``, one for each policy and one of the levels; a command that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks import markdown_table, page_parser, read_records
from benchmarks.experiments.plots import COLOURS, CONTROL, save_figure
from benchmarks.widening_values import (
    BEST,
    IMPOSSIBLE,
    LONG,
    MORE,
    PLANS,
    POLICIES,
    POSSIBLE,
    PRETRAINED,
    REFERENCES,
    RL,
    SMALL,
    START,
    TEMPERATURES,
    TRAINED,
    TRIED,
    Record,
    Table,
    interval,
    measure,
)
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import write_atomic

SAMPLES = tuple(2**power for power in range(11))
SHOWN = (1, 8, 64, 512)

PAGE = """\
# The reach of one reply, before and after training

Written by `python -m benchmarks.widening`. A model of {parameters:,} parameters imitates a
demonstrator that mostly names one move a turn (*start*). From there it is trained by reinforcement (*RL*), or by *more
imitation* at the same cost. The chance of success on {levels} held-out FrozenLake levels
[is computed](../docs/guides/exact_values.md), so pass@k needs no sampling for any k.

![widening.png](widening.png)

Figure 1. Mean pass@k over seeds and levels; bands are the exact bounds. *Best temperature*: the start at the one of
{temperatures} with the highest success on the first {tried} of these levels: {chosen}, by seed.
A temperature above {hottest} was not tried, and may reach RL at large k. Grey: random moves, and dash-dotted the blind
script. An episode has {trained} turns in the first two panels and {long} in the others.

## What training changes

**Mostly how far one reply reaches.** An episode of training has {trained} turns, and every level needs three moves or
more: there, a policy that names one move a turn fails. In {long} turns it has time. Above the start RL gains
{short_gain} points of pass@1 in {trained} turns and {long_gain} in {long}.

Levels whose chance of success in {trained} turns rose from below {impossible:g} to above {possible:g} (by the exact
bounds), or fell the other way; of {levels}, for each seed:

{turned}

- By seed {could} levels could rise by this rule, and {could_not} could fall.
- Of the levels that rose by RL, the start has in {long} turns a chance above {impossible:g} on {reached}, and above
  {possible:g} on {often}. The blind script wins {blind} of them, and {blind_could} of those that could rise.

No policy was trained with the prompt of {long} turns, so its figures also show how a policy meets a new prompt. Large k
alone shows little: compare every policy with random moves at the same k.

## Pass@k

Percent, over seeds and levels. Random, blind and optimal play make as many moves with either number of turns,
and look after each.

{rows}

What RL adds, in points:

{gains}

## By difficulty

Pass@1 in {trained} turns, %; then levels that rose (+) and fell (-), mean over seeds; then pass@1 of scripts.

{difficulty}

{pretrained}## How it was measured

- 95 % intervals treat seeds and levels as random samples, and are not corrected for the number of comparisons. They
  include the exact bounds, at most {mass} apart in {trained} turns and {wide} in {long}: too much for large k there.
- {seeds} seeds are few; `--seeds` takes more, and goes on from the records.
- FrozenLake 4x4 without slip, replies without thoughts, temperature {temperature:g}, {episodes:,} demonstrations and
  {iterations} iterations: `make train` has thoughts, 16,000 and 80. *The same cost* counts
  [tokens](recipes.md), not seconds.
- Machine: {machine}.
"""

PRETRAINED_PAGE = """\
## A pretrained model

`python -m benchmarks.widening --model {model}`: SmolLM2-135M-Instruct (weights dequantised from 4 bits),
**one seed**, {levels} held-out lakes shown as coordinates, with shortest paths of two moves or more. It imitates
{episodes} demonstrations of one or two moves a reply and has {iterations} iterations of reinforcement, half and a third
of [its recipe](recipes.md).

**In this run RL ends narrower than its start.** Whether it ends narrower than any policy as peaked is open: more
imitation has nearly the same entropy, and RL is not surely below it. No other temperature was tried. RL
less each, in points, with 95 % intervals over levels by Bonferroni's correction for these {tests} comparisons:

{gains}

More imitation ends below the start at k = {most}, too: {more_gain} in {trained} turns, not corrected.
Within one reply RL wins next to nothing (table). After RL {hopeless} of {levels} levels have a chance below
{impossible:g} in {trained} turns, so its pass@1 comes from the other {hopeful}. Pass@1 of all three is below random
moves on average, and far below the blind script. Another seed may end elsewhere.

{rows}

By the rule above {could} levels could rise, and {could_not} fall:

{turned}

{difficulty}

Exact bounds are at most {narrow} apart. {long} turns were not measured: the start's replies vary so much that a level
takes half a minute of a core for bounds that are still 0.08 apart, and large k need narrower ones. Machine: {machine}.

"""


def write_page(folder: Path, records: Sequence[Record]) -> None:
    """The page and its figure."""
    whole = any((each.get("model"), each.get("policy")) == (PRETRAINED, MORE) for each in records)
    tables = [Table(records), *([Table(records, PRETRAINED)] if whole else [])]
    table = tables[0]
    page = PAGE.format(
        **_facts(table),
        **_reach(table),
        seeds=len(table.heads[RL]),
        mass=f"{table.width(TRAINED):.1g}",
        wide=f"{table.width(LONG):.1g}",
        tried=TRIED,
        temperatures=", ".join(map(str, TEMPERATURES)),
        chosen=", ".join(f"{each['temperature']:g}" for each in table.heads[BEST]),
        hottest=max(TEMPERATURES),
        short_gain=_percent(interval(table.gain(RL, START, 1, TRAINED))),
        long_gain=_percent(interval(table.gain(RL, START, 1, LONG))),
        rows=_passed(table, (TRAINED, LONG)),
        gains=_gains(table),
        pretrained="".join(map(_pretrained, tables[1:])),
    )
    _draw(tables, folder / "widening.png")
    write_atomic(folder / "widening.md", page)


def _pretrained(table: Table) -> str:
    """The section of the pretrained model."""
    shown = [k for k in SHOWN if k <= table.most[TRAINED]]
    tests, hopeless = 2 * len(shown), int((table.chances(RL, TRAINED)[..., 1] < IMPOSSIBLE).sum())
    return PRETRAINED_PAGE.format(
        **_facts(table),
        tests=tests,
        most=shown[-1],
        more_gain=_percent(interval(table.gain(MORE, START, shown[-1], TRAINED))),
        hopeless=hopeless,
        hopeful=table.about["levels"] - hopeless,
        gains=_gains(table, tests),
        rows=_passed(table, (1, TRAINED)),
        narrow=f"{table.width(TRAINED):.1g}",
    )


def _facts(table: Table) -> dict[str, Any]:
    """Fields of both sections: the measurement, and the levels that could rise or fall and did."""
    before = table.chances(START, TRAINED)
    return {
        **table.about,
        "could": _counts(before[..., 1] < IMPOSSIBLE),
        "could_not": _counts(before[..., 0] > POSSIBLE),
        "turned": _turned(table),
        "difficulty": _difficulty(table),
    }


def _reach(table: Table) -> dict[str, str]:
    """Counts, seed by seed, of levels that rose by RL: by the start's chance in long episodes, and the blind script."""
    rose, could = table.turned(RL)[0], table.chances(START, TRAINED)[..., 1] < IMPOSSIBLE
    start, blind = table.chances(START, LONG)[..., 0], table.facts["blind"][:, -1] == 1
    return {
        "reached": _counts(rose & (start > IMPOSSIBLE)),
        "often": _counts(rose & (start > POSSIBLE)),
        "blind_could": _counts(could & blind),
        "blind": _counts(rose & blind),
    }


def _passed(table: Table, budgets: Sequence[int]) -> str:
    """Pass@k of policies and scripts in percent, where the mass left out does not hide it."""
    rows = []
    for turns in budgets:
        most = table.most[table.budget(turns)]
        for name in (*table.measured[table.budget(turns)], *REFERENCES):
            found = [_percent(interval(table.passed(name, k, turns)), 0.0) if k <= most else "" for k in SHOWN]
            rows.append([f"{name}, {turns} turn{'s' * (turns > 1)}", *found])
    return markdown_table(["policy", *(f"pass@{k}" for k in SHOWN)], rows)


def _gains(table: Table, tests: int = 1) -> str:
    """What RL adds to pass@k of the other policies, in points; see ``interval``."""
    rows = []
    for turns, name in ((turns, name) for turns, names in table.measured.items() for name in names if name != RL):
        ks = [k for k in SHOWN if k <= table.most[turns]]
        found = [_percent(interval(table.gain(RL, name, k, turns), tests)) for k in ks]
        rows.append([f"{name}, {turns} turns", *found, *[""] * (len(SHOWN) - len(ks))])
    return markdown_table([f"{RL} above", *(f"pass@{k}" for k in SHOWN)], rows)


def _turned(table: Table) -> str:
    """Levels that rose and fell, temperatures and entropies, seed by seed."""
    rows = []
    for name in table.measured[TRAINED]:
        shown = [", ".join(f"{each[key]:.2f}" for each in table.heads[name]) for key in ("temperature", "entropy")]
        rows.append([name, *map(_counts, table.turned(name)), *shown])
    return markdown_table(["policy", "rose", "fell", "temperature", "entropy of the first reply, nats"], rows)


def _difficulty(table: Table) -> str:
    """Success and turned levels in parts of the levels."""
    path, blind = table.facts["path"], table.facts["blind"][:, -1]
    parts = {
        **{f"shortest path {length}": path == length for length in (2, 3, 4)},
        "shortest path 5 or more": path >= 5,
        "blind script wins": blind == 1,
        "blind script loses": blind < 1,
    }
    rows = []
    for name, part in ((name, part) for name, part in parts.items() if part.sum() > 1):
        known = [_percent(interval(table.passed(each, 1, TRAINED)[:, part]), 0.0) for each in (START, RL, MORE)]
        counts = [f"{each[:, part].sum(1).mean():.1f}" for policy in (RL, MORE) for each in table.turned(policy)]
        fixed = [f"{100 * table.facts[each][part, -1].mean():.0f}" for each in REFERENCES]
        rows.append([name, str(part.sum()), *known, *counts, *fixed])
    head = ("levels", "n", START, RL, MORE, "RL +", "RL -", "more +", "more -", *REFERENCES)
    return markdown_table(head, rows)


def _counts(levels: NDArray[np.bool_]) -> str:
    """The number of these levels, seed by seed."""
    return ", ".join(map(str, levels.sum(1)))


def _percent(each: Estimate, least: float = -1.0) -> str:
    low, high = max(least, each.low), min(1.0, each.high)
    return f"{100 * each.value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _draw(tables: Sequence[Table], path: Path) -> None:
    """Mean pass@k by k: a row for each model, a panel for each number of turns; bands are the exact bounds."""
    figure = Figure(figsize=(11, 0.6 + 2.8 * len(tables)), layout="constrained")
    styles = dict(zip((*POLICIES, "random", "blind"), ("-", "-", "-", ":", "-", "-."), strict=True))
    grid = figure.subplots(len(tables), 4, sharey=True, squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        table, turns = tables[row], (1, TRAINED, 4, LONG)[column]
        if turns > max(table.measured):
            axes.set_visible(False)
            continue
        for (name, style), colour in zip(styles.items(), (*COLOURS[:4], CONTROL, CONTROL), strict=True):
            if name not in (*table.measured[table.budget(turns)], *REFERENCES):
                continue
            low, high = 100 * np.array([table.passed(name, k, turns).mean((0, 1)) for k in SAMPLES]).T
            axes.plot(SAMPLES, (low + high) / 2, style, color=colour, label=name)
            axes.fill_between(SAMPLES, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", title=f"within {turns} turn{'s' * (turns > 1)}", xlabel="k", ylim=(0, 101))
        axes.grid(alpha=0.25)
    for axes, name in zip(grid[:, 0], ("small model", PRETRAINED), strict=False):
        axes.set_ylabel(f"{name}: pass@k, %")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and measure what is missing, and write the page."""
    parser = page_parser("widening", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/widening"), metavar="DIR", help="of the trainings")
    parser.add_argument("--model", choices=PLANS, default=SMALL, help=f"{PRETRAINED}, or by default the small model")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="default 0 1 2; of a pretrained model 0")
    parser.add_argument("--quick", action="store_true", help="two levels alone, as a check")
    options = parser.parse_args(arguments)
    plan, records = PLANS[options.model], options.out / "widening.jsonl"
    levels, seeds = 2 if options.quick else plan.levels, options.seeds or plan.seeds
    torch.set_num_threads(1)
    known = [each for each in read_records(records) if each.get("model", SMALL) == options.model]
    for count in (len(each["levels"]["seed"]) for each in known if "levels" in each):
        if count != levels:
            parser.error(f"{records} has {count} levels, and this command measures {levels}: give another --out.")
    with ProgressBar("seeds", len(seeds)) as bar:
        for seed in seeds:
            measure(seed, options.model, levels, options.runs, records)
            bar.advance()
    write_page(options.out, read_records(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
