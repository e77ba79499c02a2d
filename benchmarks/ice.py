"""The policy's part and the ice's part of a group's spread of returns: ``python -m benchmarks.ice``.

Small models are trained on lakes of several slip probabilities. At three moments of training
``ragen_agent.exact.advantages.return_variance`` divides the variance of each level's returns. Records are kept in
``ice.jsonl``, one for each slip and moment; a command that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks import markdown_table, page_parser, read_records
from benchmarks.credit import MOMENTS, config_of, trained
from benchmarks.experiments.plots import COLOURS
from ragen_agent.algo.filters import keep_top
from ragen_agent.exact.advantages import return_variance
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import solve
from ragen_agent.exact.results import REFERENCES, references
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.storage import append_json_lines, write_atomic

SLIPS = (0.0, 0.1, 0.2)
"""Probabilities of another direction than the intended one."""
LEVELS, MASS = 32, 1e-2
KEPT = 0.5
"""The share of the levels that the filter keeps."""
GROUP, DRAWS = 8, 2000
"""Episodes of a sampled group, and how often a group of every level is drawn."""

COLUMNS = (
    *("slip, %", "moment", "variance", "ice", "ice at least", "ice on kept levels", "kept by the exact std"),
    *("kept at best", f"levels by {GROUP} episodes", "kept by them", "exact std, as many levels", "success"),
)

PAGE = """\
# How much of a group's spread is the ice?

Written by `python -m benchmarks.ice`. A filter by the std of returns keeps the levels whose episodes differ most. On
slippery lakes episodes differ by the policy's replies, which training can use, and by the ice, which it cannot.

![ice.png](ice.png)

Figure 1. The ice's share of the variance of returns on a level, by slip probability. Lines: moments of training. Over
{levels} training levels of one training each, with the 95 % interval for other levels.

The division needs no sampled episode. It follows from the values of states and of replies
([the formula](../ragen_agent/exact/advantages.py)), in the order of play. It leaves out rare replies, which hold up to
{mass:.0%} of the probability of an episode; they could add up to {mass:g} to the policy's variance of a level. *Ice at
least* counts all of that as the policy's.

**What the filter should keep**, if the policy's part is the signal and the ice's part the noise, is the levels with
the largest *policy's* part, which the std of returns shows only together with the ice. The filter by {group} episodes
keeps no level whose episodes all end alike; such a level gives no gradient without a filter either. At the end of
training:

{findings}

There the ice accounts for most of the variance in both trainings on ice. The ice's share is no larger on the levels
that the exact std keeps. Whether the ice or the few episodes cost the filter more is not told: the ice is also part of
what makes {group} returns vary. On ice all policies are below the blind script, which looks after every move and not
after two.

*Kept* is the part of the policy's variance that is on the kept levels: on {kept:.0%} of the {levels} levels by the
largest exact std, as an infinite group would show it, or by the largest policy's part, the best choice; and by the std
of {group} episodes a level on at most as many, with the number of levels beside it and what the largest exact std holds
on that number. A random choice holds the share of the levels that it keeps. Only the columns of {group} episodes are
sampled, the mean of {draws:,} draws. These take each return as 0 or 1; a malformed reply also costs 0.1, which they
leave out. These shares have no intervals. The policy's part is what replies decide, not the length of the gradient.
Success is exact, on the same levels as random, blind and optimal play.

*Variance* is the mean over levels; *levels* are of {levels}; all other figures are in %.

{table}

Limits: FrozenLake 3x3, two turns of two moves, one model of {parameters:,} parameters, temperature 0.7, no thoughts.
One training a slip.
"""


def measured(slip: float, runs: Path) -> list[dict[str, Any]]:
    """The records of one training, a moment each."""
    changes = {"env_options": {"success_rate": 1 - slip}}
    config, found = config_of("lake", changes), []
    env = make_game_env(config, "train")
    lines: list[Mapping[str, float]] = []
    for moment, checkpoint in trained("lake", runs / f"slip-{slip:.3f}", changes).items():
        policy = Policy.build(config, checkpoint)
        reader = TreeReader(policy.model, len(policy.tokenizer), config.training.temperature)
        levels = [ExactLevel(env, policy.chat, config.turns, Instance(number, 0)) for number in range(LEVELS)]
        solved = solve(reader, levels, mass=MASS)
        parts = [return_variance(each) for each in solved]
        success = float(np.mean([each.of("success") for each in solved]))
        lines = lines or [references(level) for level in levels]
        found.append(
            {"slip": slip, "moment": moment, "success": success}
            | {name: float(np.mean([each[name] for each in lines])) for name in REFERENCES}
            | {"policy": [policy for policy, _ in parts], "ice": [ice for _, ice in parts]}
            | {"parameters": policy.model.num_parameters()}
        )
    return found


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """``ice``, its share of the variance, and ``half`` of its interval; ``chosen``, its share on the kept levels.

    ``filter``, ``best``, ``sampled`` and ``as_many`` are the parts of the policy's variance that are kept: by the exact
    std, at best, by a few episodes, and by the exact std on as many levels as these. All in %, but for ``levels``, how
    many these are. The shares ``least_ice`` and ``least_filter`` hold if all that the solution leaves out is the
    policy's, on all levels and on those that are not chosen.
    """
    policy, ice = np.array(record["policy"]), np.array(record["ice"])
    total = policy + ice
    order = np.argsort(-total, kind="stable")
    chosen = order[: round(KEPT * len(total))]
    share = ice.sum() / total.sum()
    # The error of a ratio of two means (Cochran, Sampling Techniques, third edition, section 2.11).
    error = np.sqrt(len(total) / (len(total) - 1) * ((ice - share * total) ** 2).sum()) / total.sum()
    counts, sampled = _kept_by_samples(policy, total)
    found = {
        "ice": share,
        "least_ice": ice.sum() / (total.sum() + MASS * len(total)),
        "half": 1.96 * error,
        "chosen": ice[chosen].sum() / total[chosen].sum(),
        "filter": policy[chosen].sum() / policy.sum(),
        "least_filter": policy[chosen].sum() / (policy.sum() + MASS * (len(total) - len(chosen))),
        "sampled": sampled.mean() / policy.sum(),
        "as_many": np.append(0, policy[order].cumsum())[counts].mean() / policy.sum(),
        "best": np.sort(policy)[-len(chosen) :].sum() / policy.sum(),
    }
    return {name: 100 * float(value) for name, value in found.items()} | {"levels": float(counts.mean())}


def _kept_by_samples(
    policy: NDArray[np.float64], variance: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The number of levels with the largest std of a few returns that are 0 or 1, and the policy's variance on them.

    Both of shape (draws,). Levels whose returns are all equal are not kept.
    """
    rng = np.random.default_rng(0)
    chances = (1 - np.sqrt(np.maximum(0, 1 - 4 * variance))) / 2  # of 0 or of 1: both have the same std
    numbers, kept = [], []
    for _ in range(DRAWS):
        order = rng.permutation(len(policy))  # the filter breaks ties by the place
        won = rng.binomial(GROUP, chances[order])
        mask = keep_top(torch.from_numpy(np.sqrt(won * (GROUP - won))), KEPT).numpy()
        numbers.append(mask.sum())
        kept.append(policy[order][mask].sum())
    return np.array(numbers), np.array(kept)


def write_page(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """The page and its figure."""
    found = {(each["slip"], each["moment"]): figures(each) for each in records}
    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for moment, colour in zip(MOMENTS, COLOURS, strict=False):
        points = [(slip, each["ice"], each["half"]) for (slip, at), each in found.items() if at == moment]
        slips, values, halves = zip(*points, strict=True)
        axes.errorbar(slips, values, yerr=halves, color=colour, label=moment, capsize=3, marker="o", markersize=4)
    axes.set(xticks=SLIPS, xlabel="probability of another direction", ylabel="ice, % of the variance", ylim=(-3, 103))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(folder / "ice.png", dpi=90)
    rows = []
    for record, each in zip(records, found.values(), strict=True):
        shares = [f"{each[name]:.0f}" for name in ("least_ice", "chosen", "filter", "best")]
        shares += [f"{each['levels']:.1f}", f"{each['sampled']:.0f}", f"{each['as_many']:.0f}"]
        rates = [f"{100 * record[name]:.1f}" for name in ("success", *REFERENCES)]
        variance = f"{np.add(record['policy'], record['ice']).mean():.3f}"
        ice = f"{each['ice']:.0f} \u00b1 {each['half']:.0f}"
        rows.append([f"{100 * record['slip']:.0f}", record["moment"], variance, ice, *shares, *rates])
    page = PAGE.format(
        table=markdown_table((*COLUMNS, *REFERENCES), rows),
        findings=_findings(found),
        levels=LEVELS,
        kept=KEPT,
        group=GROUP,
        draws=DRAWS,
        parameters=records[0]["parameters"],
        mass=MASS,
    )
    write_atomic(folder / "ice.md", page)


def _findings(found: Mapping[tuple[float, str], Mapping[str, float]]) -> str:
    """One line for each slip: the ice's share, and what a filter keeps, at the end."""
    return "\n".join(
        f"- **Slip {100 * slip:.0f} %**: the ice is {end['ice']:.0f} % of the variance (at least "
        f"{end['least_ice']:.0f} %). The best half of the levels holds {end['best']:.0f} % of the policy's part, and "
        f"the half with the largest exact std {end['filter']:.0f} % ({end['least_filter']:.0f} % if what is left out "
        f"is all on the other half). The filter by {GROUP} episodes keeps {end['levels']:.1f} of {LEVELS} levels with "
        f"{end['sampled']:.0f} %; on as many the largest exact std holds {end['as_many']:.0f} % and a random choice "
        f"{100 * end['levels'] / LEVELS:.0f} %."
        for (slip, moment), end in found.items()
        if moment == "end"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write the page."""
    parser = page_parser("ice", __doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/ice"), metavar="DIR", help="folder of the trainings")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    path = options.out / "ice.jsonl"
    done = {each["slip"] for each in read_records(path)}
    with ProgressBar("trainings", len(SLIPS)) as bar:
        for slip in SLIPS:
            if slip not in done:
                append_json_lines(path, measured(slip, options.runs))
            bar.advance()
    write_page(options.out, read_records(path))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
