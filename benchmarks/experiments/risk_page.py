"""The computed part of the page ``risk``: derivation, figure 1, signs of the drift, slip on lakes, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby, product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binomtest

from benchmarks import markdown_table
from benchmarks.experiments.hypothesis_tests import Runs, format_measure
from benchmarks.experiments.plots import COLOURS, draw_mean, label_ends, save_figure
from benchmarks.experiments.risk import ESTIMATORS, GROUPS, WORLDS, Choice, bandit, bernoulli, drift, worth
from benchmarks.experiments.spec import measure, series
from ragen_gym.core.stats import percent
from ragen_gym.games.registry import find
from ragen_gym.games.values import level_values

SIZES = (8, 16)
SHARES = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Probabilities of the risky arm at which the sign of the drift is looked at."""
NO_DRIFT = 1e-9
LAKES, MOVES = 50, 10

SETTING = """\
A policy takes the risky arm with probability q = sigmoid(theta). The *drift* is the expected gradient that one step
applies to theta. Above 0 the policy moves to the risky arm. The safe arm pays 0.15 for sure; the risky arm pays 1 with
chance p, else 0."""

DERIVATION = """\
1. Let s = d log pi / d theta of an episode: 1 - q for the risky arm, -q for the safe one. Its mean is 0.
2. A group holds n independent episodes with returns R_i and advantages A_i. By symmetry the drift is E[A_1 s_1].
3. The other episodes are independent of the first, so the drift is E[s_1 h(R_1)] with h(r) = E[A_1 | R_1 = r].
4. That is q (1 - q) (E[h(R) | risky] - E[h(R) | safe]). The estimator raises the mean of h(R), not of R.
5. Without division h is a line: (r - E R) times (n - 1) / n for Dr. GRPO, times 1 for RLOO and an exact critic. The
   drift then has the sign of the difference of the arms' means.
6. With division A_i = (R_i - mean) / (std + 1e-6). The std depends on R_i, so h bends. A group without a win has a
   small std, so there the safe arm's small lead becomes a large advantage.
7. In pairs whose returns differ A is 1 / sqrt(2) or -1 / sqrt(2), whatever the difference, but for the 1e-6. The
   drift is q (1 - q) (2 p - 1) / sqrt(2): GRPO moves to the arm that pays more *often*.
8. A filter by std multiplies A_1 by a weight that depends on the group's returns. Groups with a win have a large std,
   so h bends towards the arm with the rare win.
9. If returns are only 0 and 1, h has two values, with h(1) >= 0 >= h(0) for every rule here, filtered or not; a
   critic's value must lie in [0, 1]. The drift is (h(1) - h(0)) q (1 - q) (P(success | risky) - P(success | safe)):
   its sign is never wrong.
10. Line 9 needs no bandit. Let s be the gradient of the log-probability of all replies of an episode, and let the
    level have one baseline. The expected gradient of a group is (h(1) - h(0)) times the gradient of the probability of
    success on its level."""

PRETRAINED = ("before", "end", "invalid_end", "random", "blind", "optimal")
"""Measures in the table of a pretrained model."""

Corner = tuple[str, bool]
"""An estimator, and whether the groups are filtered."""

PAIRS: list[tuple[Corner, Corner]] = [
    (("Dr. GRPO", False), ("GRPO", False)),
    (("GRPO", True), ("GRPO", False)),
    (("Dr. GRPO", True), ("Dr. GRPO", False)),
]
"""Corners whose ends are compared, as was written down before their runs."""

TWO_LAKES = bernoulli(0.65, 0.35), bernoulli(0.0, 0.24)
"""Levels on which a policy chooses by the same parameter; the safe way succeeds more often on average."""


def section(folder: Path, runs: Runs) -> tuple[list[str], list[str]]:
    """The part as lines of Markdown, and the names of its pictures, which are drawn into the folder."""
    draw(folder / "drift.png", runs)
    better, worse = WORLDS["better"], WORLDS["worse"]
    h = worth(better, 0.5, 8, "GRPO")
    risky = 0.25 * h[1.0] + 0.75 * h[0.0]
    pairs = [*lakes()]
    together = {rule: sum(drift(lake, 0.5, 16, rule) for lake in TWO_LAKES) for rule in ("GRPO", "Dr. GRPO")}
    sizes = [2, 4, 8, 16, 32, 64]
    lines = [
        "## The exact drift",
        "",
        SETTING,
        "",
        "In groups of 8 with p = 0.25 the risky arm pays more, and the drift of GRPO points to the safe arm",
        f"{_where(better, 'GRPO', False, 'safe')}. With p = 0.1 the risky arm pays less,",
        "and the drift of Dr. GRPO on the half of the groups with the largest std points to the risky arm",
        f"{_where(worse, 'Dr. GRPO', True, 'risky')}.",
        "",
        *DERIVATION.split("\n"),
        "",
        "![drift.png](drift.png)",
        "",
        "Figure 1. The drift by the share q of risky pulls. Upper row: the risky arm pays 0.25 on average. Lower row:",
        "it pays 0.1. The shaded side is the wrong direction. Each panel has its own scale. Right: success in",
        "training, the share of pulls of the arm that pays more, in groups of 8; means over seeds, smoothed. Dashed:",
        "top half.",
        "",
        f"In numbers: at q = 0.5, in groups of 8 with p = 0.25, h(0) = {h[0.0]:.3f}, h(0.15) = {h[0.15]:.3f} and",
        f"h(1) = {h[1.0]:.3f}. So GRPO values the risky arm at 0.25 h(1) + 0.75 h(0) = {risky:.3f}.",
        "",
        f"The table gives the direction at the same {len(SHARES)} values of q, by world and group size.",
        "Bold: not right everywhere. Without a filter the sums are exact. With it they are exact for batches of",
        f"{GROUPS} groups.",
        "",
        _signs(),
        "",
        "Larger groups shrink the error of the division. In steps of 0.01 the risky arm pays more from p = 0.16 on.",
        "At q = 0.5 GRPO moves to it from this p on:",
        "",
        markdown_table(["group size", *map(str, sizes)], [["p", *[f"{break_even(size):.2f}" for size in sizes]]]),
        "",
        "## Slip on lakes",
        "",
        "**If every episode returns 0 or 1 and the episodes of a group are independent, neither the division nor the",
        "filter turns the expected gradient of one level, however slippery the ice** (lines 9 and 10).",
        "",
        "**Over several levels they can.** Take two lakes that share the parameter: the safe way succeeds with",
        "chance 0.65 and 0, the risky way with 0.35 and 0.24. The safe way is better on average. At q = 0.5, in groups",
        f"of 16, the drifts of both lakes add up to {together['Dr. GRPO']:+.4f} for Dr. GRPO and to",
        f"{together['GRPO']:+.4f} for GRPO. It moves to the worse way: the division gives the harder lake more weight.",
        "",
        "Line 10 is for a loss that sums an episode's tokens, at the policy that played them. It does not cover these",
        "defaults of `ragen-agent`: the mean over tokens (`training.aggregation`), where replies of different lengths",
        "weigh differently, and the penalty for malformed replies (`turns.format_penalty`). It also leaves out a KL",
        "term in the reward, costs of steps, discounts, and noise that a group shares.",
        "",
        f"As a check of this code: exact sums at {_checked_points()} points, over both chances of success, q, group",
        "size, rule and filter, have no wrong sign. With the chances that the solver gives after",
        f"{len(pairs)} pairs of first moves on {LAKES} slippery lakes, one lake at a time, GRPO has",
        f"{sum(map(_wrong, pairs))} wrong signs.",
        "",
        *_pretrained(runs),
        "## How to avoid it",
        "",
        "- Where chance decides between more than two returns, use `training.algo=dr_grpo`, `rloo` or `ppo`.",
        "- Use `training.filter=none` there. The filter's error opposes the division's: in the better world they",
        "  cancel from some share of risky pulls on, as the table shows, and that depends on the rewards.",
        "- `ragen-agent train` warns at its start if a game has such returns and the rule divides by a group's std.",
        "",
    ]
    return lines, ["drift.png"]


def _pretrained(runs: Runs) -> list[str]:
    """The corners with a pretrained model, each seed beside the drift at its start; nothing without runs."""
    rows, ends, malformed, along = [], dict[Corner, dict[int, float]](), [0.0], list[bool]()
    for estimator, filtered in product(("GRPO", "Dr. GRPO"), (False, True)):
        seeds = dict(sorted(runs.get(_corner(estimator, filtered), {}).items()))
        found = {name: [measure(run, name) or 0.0 for run in seeds.values()] for name in PRETRAINED}
        drifts = [drift(WORLDS["better"], q, 8, estimator, filtered=filtered) for q in found["before"]]
        ends[estimator, filtered] = dict(zip(seeds, found["end"], strict=True))
        moved = zip(found["before"], found["end"], drifts, strict=True)
        along += [(end - before) * towards > 0 for before, end, towards in moved]
        malformed += [value for run in seeds.values() for value in series(run, "invalid_rate")]
        cells = [", ".join(format_measure(value, name) for value in found[name]) for name in PRETRAINED]
        groups = "top half" if filtered else "all"
        rows += [[estimator, groups, ", ".join(f"{value:+.3f}" for value in drifts), *cells]] if seeds else []
    if not rows:
        return []
    levels = find("Bandit").game_class().level_count("train")
    return [
        "## A pretrained model",
        "",
        "SmolLM2-135M-Instruct (weights dequantised from 4 bits), after the imitation of its recipe, without",
        "thoughts, in the world in which the risky arm pays more. Each seed has one figure. *before* and *end* are",
        "shares of pulls of that arm; *drift at the start* is the drift of a policy with the share *before* on every",
        f"level, above 0 to the better arm. The model's share differs between the {levels} different levels, so its",
        "own drift is another. *end* is the mean of the last four policies.",
        f"Of {len(along)} runs {sum(along)} end on the side of their start to which that drift points.",
        f"The iteration with the most malformed replies has {percent(max(malformed))} of them.",
        "",
        *(line for pair in PAIRS for line in _paired(*pair, ends)),
        "",
        "The p values are of two-sided sign tests, one by one; these runs are no part of the table's tests.",
        "",
        markdown_table(["estimator", "groups", "drift at the start", *PRETRAINED], rows),
        "",
    ]


def _corner(estimator: str, filtered: bool) -> str:
    """The name of the arm of a pretrained model."""
    return f"better, SmolLM2, {estimator}{', top half' if filtered else ''}"


def _paired(first: Corner, second: Corner, ends: Mapping[Corner, Mapping[int, float]]) -> list[str]:
    """In how many seeds the first corner ends above the second; nothing where no seed has both."""
    both = sorted(ends[first].keys() & ends[second].keys())
    by = [ends[first][seed] - ends[second][seed] for seed in both]
    if not both:
        return []
    names = [
        f"{estimator} on {'the top half' if filtered else 'all groups'}" for estimator, filtered in (first, second)
    ]
    differences = ", ".join(f"{100 * each:+.1f}" for each in by)
    above = sum(each > 0 for each in by)
    p = binomtest(above, len(both)).pvalue
    return [f"- {names[0]} ends above {names[1]} in {above} of {len(both)} seeds ({differences} points; p = {p:g})."]


def _where(choice: Choice, estimator: str, filtered: bool, way: str) -> str:
    """The values of q at which the drift in groups of 8 points this way, in words."""
    signs = [drift(choice, q, 8, estimator, filtered=filtered) > 0 for q in SHARES]
    found = [q for q, risky in zip(SHARES, signs, strict=True) if risky == (way == "risky")]
    if len(found) == len(SHARES):
        return f"at all {len(SHARES)} values of q from {SHARES[0]} to {SHARES[-1]}"
    return f"at {len(found)} of {len(SHARES)} values of q, from {found[0]} to {found[-1]}"


def direction(choice: Choice, size: int, estimator: str, filtered: bool) -> list[tuple[float, str]]:
    """The direction of the drift, "risky", "safe" or "none", from each q on at which it changes."""
    points = []
    for q in SHARES:
        value = drift(choice, q, size, estimator, filtered=filtered)
        points.append((q, "none" if abs(value) < NO_DRIFT else "risky" if value > 0 else "safe"))
    return [next(same) for _, same in groupby(points, key=lambda point: point[1])]


def break_even(size: int) -> float:
    """The smallest chance of a win, in steps of 0.01, at which GRPO moves to the risky arm from q = 0.5."""
    chances = [step / 100 for step in range(1, 100)]
    return next(chance for chance in chances if drift(bandit(chance), 0.5, size, "GRPO") > NO_DRIFT)


def lakes() -> Iterator[tuple[float, float]]:
    """The chances of success after two different first moves, both played on optimally, of slippery test lakes."""
    game = find("FrozenLake").game_class()
    boards = game.generate(np.arange(LAKES, dtype=np.uint64), "test")
    for board, state in zip(map(bytes, boards), game.starts(boards).tolist(), strict=True):
        chances = [value.success for value in level_values(game, board, MOVES).actions(board, state, MOVES)]
        yield from ((a, b) for a, b in combinations(chances, 2) if abs(a - b) > NO_DRIFT)


def draw(path: Path, runs: Runs) -> None:
    """Figure 1: a column for each estimator and one for the runs, a row for each of two worlds."""
    figure = Figure(figsize=(16.8, 5.6), layout="constrained")
    panels = figure.subplots(2, len(ESTIMATORS) + 2, sharex="col", width_ratios=[1] * (len(ESTIMATORS) + 1) + [0.5])
    _draw_training(panels[:, -2], runs)
    for blank in panels[:, -1]:  # where the names of the lines stand
        blank.axis("off")
    panels = panels[:, :-2]
    for row, world in zip(panels, ("better", "worse"), strict=True):
        for axes, estimator in zip(row, ESTIMATORS, strict=True):
            for (size, colour), filtered in product(zip(SIZES, COLOURS, strict=False), (False, True)):
                values = [drift(WORLDS[world], q, size, estimator, filtered=filtered) for q in SHARES]
                label = f"groups of {size}, {'top half by std' if filtered else 'all groups'}"
                axes.plot(SHARES, values, "--" if filtered else "-", color=colour, linewidth=1.6, label=label)
            axes.axhline(0, color="0.3", linewidth=0.8)
            axes.grid(alpha=0.25)
            axes.tick_params(labelsize=8)
            axes.margins(y=0.12)
            if world == "better":
                axes.set_title(estimator, fontsize=10)
            else:
                axes.set_xlabel("share q of risky pulls", fontsize=9)
    for row, wrong in zip(panels, (-1, 1), strict=True):
        for axes in row:
            low, high = axes.get_ylim()
            axes.axhspan(*((low, 0) if wrong < 0 else (0, high)), color="tab:red", alpha=0.07, linewidth=0)
            axes.set_ylim(low, high)
    panels[0, 0].set_ylabel("risky arm better\ndrift to it", fontsize=9)
    panels[1, 0].set_ylabel("risky arm worse\ndrift to it", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    save_figure(figure, path)


def _draw_training(panels: Sequence[Axes], runs: Runs) -> None:
    """Success in training by iteration, a panel for each world."""
    for axes, world in zip(panels, ("better", "worse"), strict=True):
        ends = {}
        for place, (estimator, filtered) in enumerate(product(ESTIMATORS, (False, True))):
            name = estimator + ", top half" * filtered
            if seeds := runs.get(f"{world}, {name}"):
                colour, every = COLOURS[place // 2 + 2], [run for _, run in sorted(seeds.items())]
                ends[name] = draw_mean(axes, every, "success", colour, "--" if filtered else "-"), colour
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=8)
        label_ends(axes, ends)
    panels[0].set_title("trained", fontsize=10)
    panels[-1].set_xlabel("iteration", fontsize=9)


def _signs() -> str:
    """The table of directions."""
    rows = []
    better = {"better": "risky", "worse": "safe", "equal": "none"}
    for estimator, filtered in product(ESTIMATORS, (False, True)):
        cells = []
        for world, size in product(WORLDS, SIZES):
            found = direction(WORLDS[world], size, estimator, filtered)
            text = ", ".join(f"from {q:g} {way}" if place else way for place, (q, way) in enumerate(found))
            cells.append(text if all(way == better[world] for _, way in found) else f"**{text}**")
        rows.append([estimator, "top half" if filtered else "all", *cells])
    return markdown_table(["estimator", "groups", *[f"{w}, {n}" for w, n in product(WORLDS, SIZES)]], rows)


def _checked_points() -> int:
    """Number of points of a grid over both chances of success, q, size, rule and filter; raises if a sign is wrong."""
    chances, count = [step / 5 for step in range(6)], 0
    for safe, risky, q, size in product(chances, chances, (0.1, 0.5, 0.9), (2, 8)):
        for estimator, filtered in product(ESTIMATORS, (False, True)):
            value = drift(bernoulli(safe, risky), q, size, estimator, filtered=filtered)
            if (abs(value) > NO_DRIFT and value * (risky - safe) <= 0) or (abs(value) < NO_DRIFT and risky != safe):
                raise ArithmeticError(f"the drift is {value} at {safe}, {risky}, q = {q}, n = {size}, {estimator}")
            count += 1
    return count


def _wrong(pair: tuple[float, float]) -> bool:
    safe, risky = pair
    return any(drift(bernoulli(safe, risky), 0.5, 8, "GRPO", filtered=f) * (risky - safe) <= 0 for f in (False, True))
