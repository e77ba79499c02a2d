"""Levels that training makes possible or impossible, by exact pass@k: ``python -m benchmarks.widening``.

For each seed the model of ``make train`` is warm-started, trained by reinforcement, and, from the same warm start,
trained by more imitation at the same cost. Replies have no thoughts, so ``ragen_agent.exact`` gives the success of each
policy on each held-out level, within each number of turns. The warm start at lower temperatures is a second control.

Records are kept in ``widening.jsonl``, one for each policy and one for each level; a command that was stopped goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t as student

from benchmarks import machine, markdown_table, page_parser, read_records
from benchmarks.experiments.plots import COLOURS, CONTROL
from benchmarks.thoughts import MODELS, trained
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import LevelValue, solve
from ragen_agent.exact.reply_tree import ReplyTexts
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.evaluation import evaluated_levels
from ragen_agent.run.policy import Policy
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.stats import Estimate
from ragen_gym.core.storage import append_json_lines, write_atomic
from ragen_gym.envs.policies import blind_value, random_value
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Table", "entropy", "interval", "level_facts"]

GAME = "FrozenLake"
SETTINGS: Settings = {
    "turns": {"think": False, "history": 0, "max_tokens_per_turn": 12},
    "demonstrations": {"thought": "none", "episodes": 6000},
    "training": {"iterations": 40},
}
START, RL, MORE, COOLED, BEST = "start", "RL", MODELS[2], "start, entropy of RL", "start, best temperature"
POLICIES = (START, RL, MORE, COOLED, BEST)
REFERENCES = ("random", "blind", "optimal")

TRAINED, LONG = 2, 6
MASSES = {TRAINED: 1e-4, LONG: 1e-2}
"""Mass left out, by the turns of an episode: those of training, and more of them."""
COARSE = 1e-2
TEMPERATURE = 0.5  # of evaluation, as in `make train`
TEMPERATURES = (0.1, 0.25, 0.5, 0.75)
TRIED = 32  # levels that the controls' temperatures are chosen on
TOGETHER, NODES = 16, 5_000  # levels solved together; tokens of a level and a turn that are read at most
PLANNED = (0, 1, 2)
IMPOSSIBLE, POSSIBLE = 1e-3, 0.1
SAMPLES = tuple(2**power for power in range(11))
SHOWN = (1, 8, 64, 512)
MOST = {TRAINED: 1024, LONG: 8}  # the largest k at which the mass left out says something
DIGITS = 6  # of a record; ends of intervals are rounded outwards

PAGE = """\
# Levels that training makes possible or impossible

Written by `python -m benchmarks.widening --seeds {flags}`. A model of {parameters:,} parameters imitates a
demonstrator that mostly names one move a turn (*start*).
From there it is trained by reinforcement (*RL*), or by *more imitation* at the same
cost. The chance of success on {levels} held-out FrozenLake levels [is computed](../docs/guides/exact_values.md), so
pass@k needs no sampling for any k.

![widening.png](widening.png)

Figure 1. Mean pass@k over seeds {which} and {levels} levels; bands are the exact bounds. *Entropy of RL*: the start,
sampled at the temperature at which its first reply has the entropy of RL's. *Best temperature*: the start at the one of
{temperatures} with the highest success in {trained} turns;
a higher one was not tried. Grey: random moves, and dash-dotted the blind script. An episode has {trained} turns in the
first two panels and {long} in the others.

## Does RL widen or narrow?

{answers}

**Read both budgets.** An episode of training has {trained} turns, and every level needs three moves or more: there, a
policy that names one move a turn fails. In {long} turns it has time. Above the start RL gains {short_gain} points of
pass@1 in {trained} turns and {long_gain} in {long}. Longer replies may explain part of the gain in {trained}
turns, or all of it. No policy was trained with the prompt of {long} turns, so its figures also show how a policy meets
a new prompt. Large k alone shows little: compare every policy with random moves at the same k.

Levels whose chance of success in {trained} turns rose surely from below {impossible:g} to above {possible:g}, or fell
the other way; of {levels}, for each seed:

{turned}

By seed, {could} levels could become possible by this rule, and {could_not} impossible: the start's chance is
at most {most:.1f} % on any level. RL made {both} levels possible with every seed. Of the levels that it made possible
the blind script wins {blind}.

## Pass@k

Percent, over seeds and levels. Random, blind and optimal play make at most {moves} moves with either number of turns,
and look after each.

{rows}

What RL adds, in points:

{gains}

## By difficulty

Pass@1 in {trained} turns, %; then levels that became possible (+) and impossible (-), mean over seeds; then pass@1 of
scripts.

{difficulty}

## How it was measured

- 95 % intervals treat both seeds and levels as random samples. {seeds} seeds are few for this; the same
  command goes on with more.{unmeasured}
- *Surely*: the interval excludes 0. Intervals are not corrected for the number of comparisons.
- Intervals include the exact bounds, which are at most {mass} apart in {trained} turns and {wide} in {long}: too much
  for large k there. At most {nodes:,} tokens of a level and a turn were read.
- The temperatures of the two controls were chosen on the first {tried} of the measured levels.
- FrozenLake 4x4 without slip, replies without thoughts, temperature {temperature:g}, {episodes:,} demonstrations and
  {iterations} iterations: `make train` has thoughts, 16,000 and 80. *The same cost* counts
  [tokens](recipes.md), not seconds.
{cooled}

- SmolLM2-135M was not measured: `ragen-agent train --recipe smollm2-135m-frozenlake --set turns.think=false --set
  turns.history=0 --set demonstrations.thought=none`, then `ragen-agent exact` of the warm start and of the run.
- Machine: {machine}.
"""

Record = Mapping[str, Any]
Values = NDArray[np.float64]


def config_of(seed: int) -> Config:
    """The settings of a seed's run: those of ``make train``, with replies without thoughts and history."""
    return with_settings(Config(game=GAME, seed=seed), merged(default_settings(GAME), SETTINGS))


def measured_in(turns: int) -> tuple[str, ...]:
    """The policies that are measured in episodes of so many turns."""
    return POLICIES if turns == TRAINED else POLICIES[:3]


def solved(policy: Policy, levels: Sequence[ExactLevel], temperature: float, mass: float) -> list[LevelValue]:
    """Exact values of a policy on levels, some at a time."""
    reader = TreeReader(policy.model, len(policy.tokenizer), temperature)
    texts, found = ReplyTexts(policy.chat, think=False, known_form=True), []
    for first in range(0, len(levels), TOGETHER):
        part = levels[first : first + TOGETHER]
        found += solve(reader, part, mass=mass, most_nodes=NODES * len(part), texts=texts)
    return found


def entropy(found: Sequence[LevelValue]) -> float:
    """Entropy in nats of what the first reply does (its actions, or malformed), averaged over the levels."""
    chances = [each.start.tree.chances for each in found]
    return float(np.mean([-(p[p > 0] * np.log(p[p > 0])).sum() for p in chances]))


def controls(start: Policy, levels: Sequence[ExactLevel], wanted: float) -> dict[str, float]:
    """Temperatures of the warm start: with this entropy, and with the highest success of ``TEMPERATURES``."""
    found = {each: solved(start, levels, each, COARSE) for each in TEMPERATURES}
    success = {each: np.mean([level.of("success") for level in values]) for each, values in found.items()}
    below = [each for each in TEMPERATURES if entropy(found[each]) <= wanted] or [TEMPERATURES[0]]
    above = [each for each in TEMPERATURES if entropy(found[each]) > wanted] or [TEMPERATURES[-1]]
    low, high = below[-1], above[0]
    cooled = low
    if low < high:
        cooled = brentq(lambda each: entropy(solved(start, levels, each, COARSE)) - wanted, low, high, xtol=2e-3)
    return {COOLED: cooled, BEST: max(success, key=lambda each: success[each])}


def level_facts(levels: Sequence[ExactLevel]) -> dict[str, Any]:
    """Lists with an entry a level: its seed, its shortest path, and each of ``REFERENCES`` by turns."""
    found: dict[str, Any] = {name: [] for name in ("seed", "path", *REFERENCES)}
    for level in levels:
        env, start = level.env, level.start
        env.stand_at(start.board, start.integers, turn=0, played=0, earned=None, total=None)
        solution, moves = env.solution(), [turn * env.max_actions_per_turn for turn in range(1, env.max_turns + 1)]
        best = [solution.success(*env.env.state, count) for count in range(env.max_actions + 1)]
        found["seed"].append(level.instance.seed)
        found["path"].append(next(count for count, chance in enumerate(best) if chance > 0))
        found["random"].append([round(random_value(env.env, count)[0], DIGITS) for count in moves])
        found["blind"].append([blind_value(env.env, count)[0] for count in moves])
        found["optimal"].append([best[count] for count in moves])
    return found


def levels_of(config: Config, policy: Policy, count: int, turns: int) -> list[ExactLevel]:
    """The first test levels, with episodes of so many turns."""
    config = with_settings(config, {"evaluation": {"levels": count}, "turns": {"max_turns": turns}})
    env, instances = evaluated_levels(config)
    assert isinstance(env, TurnEnv)
    return [ExactLevel(env, policy.chat, config.turns, each) for each in instances]


def measure(seed: int, options: argparse.Namespace, records: Path) -> None:
    """Append the records of a seed that are missing."""
    known = read_records(records)
    done = {(each.get("seed"), each.get("policy"), each.get("turns")) for each in known}
    missing = [(name, turns) for turns in MASSES for name in measured_in(turns) if (seed, name, turns) not in done]
    if not missing:
        return
    config = config_of(seed)
    checkpoints = dict(zip(POLICIES, trained(config, options.runs / f"seed{seed}").values(), strict=False))
    policies = {name: Policy.build(config, each) for name, each in checkpoints.items()}
    levels = {turns: levels_of(config, policies[START], options.levels, turns) for turns in MASSES}
    native = levels[config.turns.max_turns]
    if not any("levels" in each for each in known):
        about = {"machine": machine("torch", "transformers"), "parameters": policies[RL].model.num_parameters()}
        append_json_lines(records, [about | {"levels": level_facts(native)}])
    rl = solved(policies[RL], native[:TRIED], TEMPERATURE, COARSE)
    temperatures = dict.fromkeys(checkpoints, TEMPERATURE) | controls(policies[START], native[:TRIED], entropy(rl))
    for name, turns in missing:
        found = solved(policies.get(name, policies[START]), levels[turns], temperatures[name], MASSES[turns])
        bounds = np.array([each.success_by_turn for each in found])
        ends = np.floor(bounds[..., 0] * 10**DIGITS), np.ceil(bounds[..., 1] * 10**DIGITS)
        record = {
            "seed": seed,
            "policy": name,
            "turns": turns,
            "temperature": round(temperatures[name], 4),
            "entropy": entropy(found),
            "success": (np.stack(ends, -1) / 10**DIGITS).tolist(),
        }
        append_json_lines(records, [record])


class Table:
    """Records as arrays.

    Attributes:
        facts: by name int64 (levels,) or float64 (levels, turns); see ``level_facts``.
        about: the machine, and the model's parameters.
        heads: by policy its records of episodes as in training, one a seed.
        values: by policy and turns of an episode, float64 (seeds, levels, turns, 2): bounds of success by turn.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        about = next(each for each in records if "levels" in each)
        self.facts = {name: np.array(each) for name, each in about["levels"].items()}
        self.about = {name: about[name] for name in ("machine", "parameters")}
        measured = sorted((each for each in records if "policy" in each), key=lambda each: each["seed"])
        self.heads = {name: [e for e in measured if (e["policy"], e["turns"]) == (name, TRAINED)] for name in POLICIES}
        self.values = {
            (name, turns): np.array([e["success"] for e in measured if (e["policy"], e["turns"]) == (name, turns)])
            for turns in MASSES
            for name in measured_in(turns)
        }

    def chances(self, policy: str, turns: int) -> Values:
        """Bounds of success within so many turns, float64 (seeds or 1, levels, 2); also of ``REFERENCES``."""
        if policy in REFERENCES:
            return self.facts[policy][None, :, min(turns, TRAINED) - 1, None].repeat(2, -1)
        return self.values[policy, min(each for each in MASSES if each >= turns)][:, :, turns - 1]

    def passed(self, policy: str, k: int, turns: int) -> Values:
        """Bounds of pass@k, like ``chances``."""
        return 1 - (1 - self.chances(policy, turns).clip(0, 1)) ** k

    def gain(self, policy: str, base: str, k: int, turns: int) -> Values:
        """Bounds of the difference of two policies' pass@k, float64 (seeds, levels, 2)."""
        return self.passed(policy, k, turns) - self.passed(base, k, turns)[..., ::-1]

    def width(self, turns: int) -> float:
        """The widest bounds of a chance of success in episodes of so many turns."""
        return max(float(np.ptp(self.chances(name, turns), axis=-1).max()) for name in measured_in(turns))

    def turned(self, policy: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Levels that surely became possible, and impossible, since the start; bool (seeds, levels) each."""
        before, after = (self.chances(name, TRAINED) for name in (START, policy))
        possible = (before[..., 1] < IMPOSSIBLE) & (after[..., 0] > POSSIBLE)
        return possible, (before[..., 0] > POSSIBLE) & (after[..., 1] < IMPOSSIBLE)


def interval(bounds: Values) -> Estimate:
    """Mean of a figure with its 95 % interval over seeds and levels, both drawn at random.

    The variance is the sum of both means' variances, which counts their interaction twice and so is rather too large;
    the degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946). A single row is a figure without seeds.
    The interval is widened by half the mean width of the exact bounds.

    Args:
        bounds: float64 (seeds, levels, 2).
    """
    middle, exact = bounds.mean(-1), float(np.ptp(bounds, axis=-1).mean()) / 2
    means = [middle.mean(axis) for axis in (0, 1) if middle.shape[1 - axis] > 1]
    parts = np.array([each.var(ddof=1) / len(each) for each in means])
    free = np.array([len(each) - 1 for each in means])
    total, value = float(parts.sum()), float(middle.mean())
    half = float(student.ppf(0.975, total**2 / (parts**2 / free).sum())) * total**0.5 if total > 0 else 0.0
    return Estimate(value, value - half - exact, value + half + exact, middle.size)


def write_page(folder: Path, records: Sequence[Record]) -> None:
    """The page and its figure."""
    table, config = Table(records), config_of(0)
    rows, gains = [], []
    for turns in MASSES:
        for name in (*measured_in(turns), *REFERENCES):
            ks = [k for k in SHOWN if k <= MOST[turns]]
            empty = [""] * (len(SHOWN) - len(ks))
            found = [_percent(interval(table.passed(name, k, turns)), 0.0) for k in ks]
            rows.append([f"{name}, {turns} turns", *found, *empty])
            if name != RL:
                found = [_percent(interval(table.gain(RL, name, k, turns))) for k in ks]
                gains.append([f"above {name}, {turns} turns", *found, *empty])
    turned = [[name, *map(_counts, table.turned(name))] for name in POLICIES[1:]]
    means = {name: np.mean([(e["temperature"], e["entropy"]) for e in table.heads[name]], 0) for name in POLICIES}
    heads = [f"pass@{k}" for k in SHOWN]
    before, possible = table.chances(START, TRAINED), table.turned(RL)[0]
    seeds, widths = [each["seed"] for each in table.heads[RL]], {turns: table.width(turns) for turns in MASSES}
    left = [str(each) for each in PLANNED if each not in seeds]
    page = PAGE.format(
        **table.about,
        levels=len(table.facts["seed"]),
        seeds=len(seeds),
        flags=" ".join(map(str, seeds)),
        which=" and ".join(map(str, seeds)),
        unmeasured=f" Not measured of the default seeds: {', '.join(left)}." if left else "",
        trained=TRAINED,
        long=LONG,
        mass=f"{widths[TRAINED]:.1g}",
        wide=f"{widths[LONG]:.1g}",
        nodes=NODES,
        tried=min(TRIED, len(table.facts["seed"])),
        moves=config.turns.max_actions,
        short_gain=_percent(interval(table.gain(RL, START, 1, TRAINED))),
        long_gain=_percent(interval(table.gain(RL, START, 1, LONG))),
        could=_counts(before[..., 1] < IMPOSSIBLE),
        could_not=_counts(before[..., 0] > POSSIBLE),
        most=100 * float(before.max()),
        both=int(possible.all(0).sum()),
        blind=_counts(possible & (table.facts["blind"][:, -1] == 1)),
        impossible=IMPOSSIBLE,
        possible=POSSIBLE,
        temperature=TEMPERATURE,
        temperatures=", ".join(map(str, TEMPERATURES)),
        episodes=config.demonstrations.episodes,
        iterations=config.training.iterations,
        answers="\n".join(_answers(table)),
        difficulty=_difficulty(table),
        rows=markdown_table(["policy", *heads], rows),
        gains=markdown_table(["RL", *heads], gains),
        turned=markdown_table(["policy", "became possible", "became impossible"], turned),
        cooled=markdown_table(
            ["policy", "temperature", "entropy of the first reply, nats"],
            [[name, *(f"{each:.2f}" for each in means[name])] for name in POLICIES],
        ),
    )
    _draw(table, folder / "widening.png")
    write_atomic(folder / "widening.md", page)


def _answers(table: Table) -> list[str]:
    """For each budget of turns and each comparison of RL: where it is surely above or below, and a crossing."""
    lines = []
    for turns, base in [(each, name) for each in MASSES for name in measured_in(each) if name != RL]:
        gains = {k: interval(table.gain(RL, base, k, turns)) for k in SAMPLES if k <= MOST[turns]}
        above, below = [k for k, e in gains.items() if e.low > 0], [k for k, e in gains.items() if e.high < 0]
        sure = [f"{word} for k = {ks[0]} to {ks[-1]}" for word, ks in (("above", above), ("below", below)) if ks]
        turn = next((k for k, each in gains.items() if (each.value > 0) != (gains[1].value > 0)), None)
        crossing = f"the means cross between k = {turn // 2} and {turn}" if turn else "the means do not cross"
        where = f"surely {' and '.join(sure)}" if sure else "no sure difference at any k"
        lines.append(f"- **{turns} turns, {RL} against {base}**: {where}; {crossing}, up to k = {MOST[turns]:,}.")
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


def _draw(table: Table, path: Path) -> None:
    """Mean pass@k by k, a panel for each number of turns; bands are the exact bounds."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    styles = dict(zip((*POLICIES, "random", "blind"), ("-", "-", "-", "--", ":", "-", "-."), strict=True))
    for axes, turns in zip(figure.subplots(1, 4, sharey=True), (1, TRAINED, 4, LONG), strict=True):
        for (name, style), colour in zip(styles.items(), (*COLOURS[:5], CONTROL, CONTROL), strict=True):
            if turns > TRAINED and name in (COOLED, BEST):
                continue
            low, high = 100 * np.array([table.passed(name, k, turns).mean((0, 1)) for k in SAMPLES]).T
            axes.plot(SAMPLES, (low + high) / 2, style, color=colour, label=name)
            axes.fill_between(SAMPLES, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", title=f"within {turns} turn{'s' * (turns > 1)}", xlabel="k", ylim=(0, 101))
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("pass@k, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    figure.savefig(path, dpi=90)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and measure what is missing, and write the page."""
    parser = page_parser("widening", __doc__)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/widening"), metavar="DIR", help="folder of the trainings"
    )
    parser.add_argument("--levels", type=int, default=64, metavar="N", help="held-out levels (default 64)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*PLANNED], metavar="N", help="default 0 1 2")
    options = parser.parse_args(arguments)
    if options.levels < 2 or len(set(options.seeds)) < 2 or min(options.seeds) < 0:
        seeds = " ".join(map(str, options.seeds))
        parser.error(f"--levels is {options.levels} and --seeds {seeds}; give at least 2 levels and seeds from 0 on.")
    torch.set_num_threads(1)
    records = options.out / "widening.jsonl"
    for count in (len(each["levels"]["seed"]) for each in read_records(records) if "levels" in each):
        if count != options.levels:
            parser.error(f"{records} has {count} levels: give --levels {count}, or another --out.")
    with ProgressBar("seeds", len(options.seeds)) as bar:
        for seed in options.seeds:
            measure(seed, options, records)
            bar.advance()
    write_page(options.out, read_records(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
