"""The reach of one reply before and after training, by exact pass@k: ``python -m benchmarks.widening``.

For each seed the model of ``make train`` is warm-started, trained by reinforcement, and, from the same warm start,
trained by more imitation at the same cost. Replies have no thoughts, so ``ragen_agent.exact`` gives the success of each
policy on each held-out level, within each number of turns. The warm start at other temperatures is a second control.
``--model smollm2-135m`` measures a pretrained model, without that control.

Records are kept in ``widening.jsonl``, one for each policy and one of the levels; a command that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks import markdown_table, page_parser, read_records
from benchmarks.experiments.plots import COLOURS, CONTROL, save_figure
from benchmarks.widening_values import (
    COOLED,
    IMPOSSIBLE,
    LONG,
    MORE,
    NODES,
    PLANS,
    POLICIES,
    POSSIBLE,
    PRETRAINED,
    REFERENCES,
    RL,
    SMALL,
    START,
    TEMPERATURE,
    TEMPERATURES,
    TRAINED,
    TRIED,
    Record,
    Table,
    config_of,
    interval,
    measure,
)
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import write_atomic

__all__ = ["main", "write_page"]

SAMPLES = tuple(2**power for power in range(11))
SHOWN = (1, 8, 64, 512)

PAGE = """\
# The reach of one reply, before and after training

Written by `python -m benchmarks.widening --seeds {flags}`. A model of {parameters:,} parameters imitates a
demonstrator that mostly names one move a turn (*start*).
From there it is trained by reinforcement (*RL*), or by *more imitation* at the same
cost. The chance of success on {levels} held-out FrozenLake levels [is computed](../docs/guides/exact_values.md), so
pass@k needs no sampling for any k.

![widening.png](widening.png)

Figure 1. Mean pass@k over seeds {which} and {levels} levels; bands are the exact bounds. *Entropy of RL*: the start,
sampled at the temperature at which its first reply has the entropy of RL's, if that is at most
{hottest:g}. *Best temperature*: the start at the one of {temperatures} with the highest success in {trained} turns;
a higher one was not tried. Grey: random moves, and dash-dotted the blind script. An episode has {trained} turns in the
first two panels and {long} in the others.

## What training changes

**Mostly how far one reply reaches.** An episode of training has {trained} turns, and every level needs three moves or
more: there, a policy that names one move a turn fails. In {long} turns it has time. Above the start RL gains
{short_gain} points of pass@1 in {trained} turns and {long_gain} in {long}.

Levels whose chance of success in {trained} turns rose from below {impossible:g} to above {possible:g} (by the exact
bounds), or fell the other way; of {levels}, for each seed:

{turned}

- By seed {could} levels could rise by this rule, and {could_not} could fall.
- Of the levels that rose by RL, the start has in {long} turns a chance above {impossible:g} on {reached}, and above
  {possible:g} on {often}; on average {means} %.
- By the same rule in {long} turns RL raised {long_rose} levels, of {long_could} that could rise.
- The blind script wins {blind_could} of the levels that could rise, and {blind} of those that rose by RL. Random moves
  have a chance above {possible:g} on {random_could} and {random}.

Gains of RL in points, seed by seed:

{answers}

No policy was trained with the prompt of {long} turns, so its figures also show how a policy meets a new prompt. Large k
alone shows little: compare every policy with random moves at the same k.

## Pass@k

Percent, over seeds and levels. Random, blind and optimal play make at most {moves} moves with either number of turns,
and look after each.

{rows}

What RL adds, in points:

{gains}

## By difficulty

Pass@1 in {trained} turns, %; then levels that rose (+) and fell (-), mean over seeds; then pass@1 of scripts.

{difficulty}

{pretrained}## How it was measured

- 95 % intervals treat both seeds and levels as random samples. {seeds} seeds are few for this; the same
  command goes on with more.{unmeasured}
- Intervals are not corrected for the number of comparisons.
- Intervals include the exact bounds, which are at most {mass} apart in {trained} turns and {wide} in {long}: too much
  for large k there. At most {nodes:,} tokens of a level and a turn were read.
- The temperatures of the two controls were chosen on the first {tried} of the measured levels. The entropy of RL was
  sought up to temperature {hottest:g} and {unmatched}.
- FrozenLake 4x4 without slip, replies without thoughts, temperature {temperature:g}, {episodes:,} demonstrations and
  {iterations} iterations: `make train` has thoughts, 16,000 and 80. *The same cost* counts
  [tokens](recipes.md), not seconds.
- Machine: {machine}.

By seed:

{cooled}
"""

PRETRAINED_PAGE = """\
## A pretrained model

`python -m benchmarks.widening --model {model}`: SmolLM2-135M-Instruct, one seed, {levels} held-out lakes shown as
coordinates, with shortest paths of two moves or more. It imitates {episodes} demonstrations of one or two moves a reply
and has {iterations} iterations of reinforcement, half and a third of [its recipe](recipes.md). One seed of training:
the intervals are over levels alone, and another seed may end elsewhere.

{answers}

By the rule above {could} of the levels could rise, and {could_not} fall:

{turned}

{rows}

What RL adds, in points:

{gains}

Exact bounds are at most {narrow} apart in episodes of two turns and {wide} in longer ones. Machine: {machine}.

"""


def write_page(folder: Path, records: Sequence[Record]) -> None:
    """The page and its figure."""
    table, config = Table(records), config_of(0)
    last = PRETRAINED, MORE, LONG
    whole = any((each.get("model"), each.get("policy"), each.get("turns")) == last for each in records)
    pretrained = Table(records, PRETRAINED) if whole else None
    seeds, widths = [each["seed"] for each in table.heads[RL]], {turns: table.width(turns) for turns in table.measured}
    left = [f"seed {each}" for each in PLANS[SMALL].seeds if each not in seeds]
    unmatched = [str(each["seed"]) for each in table.heads[COOLED] if each["temperature"] >= TEMPERATURES[-1]]
    left += [] if pretrained else [f"SmolLM2-135M (`python -m benchmarks.widening --model {PRETRAINED}`)"]
    page = PAGE.format(
        **table.about,
        levels=len(table.facts["seed"]),
        seeds=len(seeds),
        flags=" ".join(map(str, seeds)),
        which=f"{', '.join(map(str, seeds[:-1]))} and {seeds[-1]}",
        unmeasured=f"\n- Not measured yet: {', '.join(left)}." if left else "",
        trained=TRAINED,
        long=LONG,
        mass=f"{widths[TRAINED]:.1g}",
        wide=f"{widths[LONG]:.1g}",
        nodes=NODES,
        tried=min(TRIED, len(table.facts["seed"])),
        moves=config.turns.max_actions,
        short_gain=_percent(interval(table.gain(RL, START, 1, TRAINED))),
        long_gain=_percent(interval(table.gain(RL, START, 1, LONG))),
        **_reach(table),
        impossible=IMPOSSIBLE,
        possible=POSSIBLE,
        temperature=TEMPERATURE,
        temperatures=", ".join(map(str, TEMPERATURES)),
        episodes=config.demonstrations.episodes,
        iterations=config.training.iterations,
        answers="\n".join(_answers(table)),
        difficulty=_difficulty(table),
        rows=_by_k(table, (TRAINED, LONG), gains=False),
        gains=_by_k(table, (TRAINED, LONG), gains=True),
        turned=_turned(table),
        pretrained=_pretrained(pretrained) if pretrained else "",
        hottest=TEMPERATURES[-1],
        unmatched=f"not reached there with seed {' and '.join(unmatched)}" if unmatched else "reached with every seed",
        cooled=_cooled(table),
    )
    _draw([table, pretrained] if pretrained else [table], folder / "widening.png")
    write_atomic(folder / "widening.md", page)


def _reach(table: Table) -> dict[str, str]:
    """Counts, seed by seed, of the levels that rose by RL and that could: the start in long episodes, and scripts."""
    before, rose = table.chances(START, TRAINED), table.turned(RL)[0]
    start, after = (table.chances(name, LONG) for name in (START, RL))
    could, unlikely = before[..., 1] < IMPOSSIBLE, start[..., 1] < IMPOSSIBLE
    blind, random = table.facts["blind"][:, -1] == 1, table.facts["random"][:, -1] > POSSIBLE
    means = [
        f"{100 * each[levels].mean():.0f}" if levels.any() else "-" for each, levels in zip(start, rose, strict=True)
    ]
    return {
        "could": _counts(could),
        "could_not": _counts(before[..., 0] > POSSIBLE),
        "reached": _counts(rose & (start[..., 0] > IMPOSSIBLE)),
        "often": _counts(rose & (start[..., 0] > POSSIBLE)),
        "means": ", ".join(means),
        "long_could": _counts(unlikely),
        "long_rose": _counts(unlikely & (after[..., 0] > POSSIBLE)),
        "blind_could": _counts(could & blind),
        "blind": _counts(rose & blind),
        "random_could": _counts(could & random),
        "random": _counts(rose & random),
    }


def _cooled(table: Table) -> str:
    """Temperatures and entropies of the policies, seed by seed."""
    rows = []
    for name in POLICIES:
        shown = [", ".join(f"{each[key]:.2f}" for each in table.heads[name]) for key in ("temperature", "entropy")]
        rows.append([name, *shown])
    return markdown_table(["policy", "temperature", "entropy of the first reply, nats"], rows)


def _pretrained(table: Table) -> str:
    """The section of the pretrained model."""
    config = config_of(0, PRETRAINED)
    return PRETRAINED_PAGE.format(
        **table.about,
        model=PRETRAINED,
        levels=len(table.facts["seed"]),
        episodes=config.demonstrations.episodes,
        iterations=config.training.iterations,
        answers="\n".join(_answers(table)),
        rows=_by_k(table, (1, TRAINED, LONG), gains=False),
        gains=_by_k(table, (1, TRAINED, LONG), gains=True),
        turned=_turned(table),
        could=_counts(table.chances(START, TRAINED)[..., 1] < IMPOSSIBLE),
        could_not=_counts(table.chances(START, TRAINED)[..., 0] > POSSIBLE),
        narrow=f"{table.width(TRAINED):.1g}",
        wide=f"{table.width(LONG):.1g}",
    )


def _by_k(table: Table, budgets: Sequence[int], *, gains: bool) -> str:
    """Pass@k of policies and scripts in percent, or RL's gain over each in points.

    A cell is empty where the mass left out hides it.
    """
    rows = []
    for turns, name in ((t, name) for t in budgets for name in (*table.measured[table.budget(t)], *REFERENCES)):
        if gains and name == RL:
            continue
        figure, least = (partial(table.gain, RL, name), -1.0) if gains else (partial(table.passed, name), 0.0)
        ks = [k for k in SHOWN if k <= table.most[table.budget(turns)]]
        found = [_percent(interval(figure(k, turns)), least) for k in ks]
        label = f"{'above ' * gains}{name}, {turns} turn{'s' * (turns > 1)}"
        rows.append([label, *found, *[""] * (len(SHOWN) - len(ks))])
    return markdown_table([RL if gains else "policy", *(f"pass@{k}" for k in SHOWN)], rows)


def _turned(table: Table) -> str:
    """Levels that rose and fell, seed by seed."""
    rows = [[name, *map(_counts, table.turned(name))] for name in table.measured[TRAINED] if name != START]
    return markdown_table(["policy", "rose", "fell"], rows)


def _answers(table: Table) -> list[str]:
    """For each budget of turns and each comparison of RL: the gains by seed at both ends of k, and a crossing."""
    lines = []
    for turns, base in [(each, name) for each, names in table.measured.items() for name in names if name != RL]:
        most = table.most[turns]
        gains = {k: table.gain(RL, base, k, turns).mean((1, 2)) for k in SAMPLES if k <= most}
        ends = [(1, gains[1]), max((k, each) for k, each in gains.items() if k in SHOWN)]
        shown = "; ".join(f"{', '.join(f'{100 * each:.0f}' for each in found)} at k = {k}" for k, found in ends)
        turn = next((k for k, each in gains.items() if (each.mean() > 0) != (gains[1].mean() > 0)), None)
        crossing = f"the means cross between k = {turn // 2} and {turn}" if turn else "the means do not cross"
        lines.append(f"- **{turns} turns, {RL} against {base}**: {shown}; {crossing}, up to k = {most:,}.")
    return lines


def _difficulty(table: Table) -> str:
    """Success and turned levels in parts of the levels."""
    path, blind = table.facts["path"], table.facts["blind"][:, -1]
    parts = {
        **{f"shortest path {length}": path == length for length in (3, 4)},
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
    styles = dict(zip((*POLICIES, "random", "blind"), ("-", "-", "-", "--", ":", "-", "-."), strict=True))
    grid = figure.subplots(len(tables), 4, sharey=True, squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        table, turns = tables[row], (1, TRAINED, 4, LONG)[column]
        for (name, style), colour in zip(styles.items(), (*COLOURS[:5], CONTROL, CONTROL), strict=True):
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
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/widening"), metavar="DIR", help="folder of the trainings"
    )
    parser.add_argument("--model", choices=PLANS, default=SMALL, help=f"{PRETRAINED}, or by default the small model")
    parser.add_argument(
        "--levels", type=int, metavar="N", help="held-out levels (default 64; of a pretrained model 32)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="default 0 1 2; of a pretrained model 0")
    options = parser.parse_args(arguments)
    plan, records = PLANS[options.model], options.out / "widening.jsonl"
    levels, seeds = options.levels or plan.levels, options.seeds or [*plan.seeds]
    if levels < 2 or len(set(seeds)) < min(2, len(plan.seeds)) or min(seeds) < 0:
        found = " ".join(map(str, seeds))
        parser.error(f"--levels is {levels} and --seeds {found}; give at least 2 levels and 2 seeds from 0 on.")
    torch.set_num_threads(1)
    known = [each for each in read_records(records) if each.get("model", SMALL) == options.model]
    for count in (len(each["levels"]["seed"]) for each in known if "levels" in each):
        if count != levels:
            parser.error(f"{records} has {count} levels: give --levels {count}, or another --out.")
    with ProgressBar("seeds", len(seeds)) as bar:
        for seed in seeds:
            measure(seed, options.model, levels, options.runs, records)
            bar.advance()
    write_page(options.out, read_records(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
