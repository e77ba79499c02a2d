"""Tables, figures and page of ``benchmarks.credit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from benchmarks import markdown_table
from benchmarks.experiments.hypothesis_tests import p_value
from benchmarks.experiments.plots import COLOURS, CONTROL, save_figure
from ragen_gym.core.stats import CONFIDENCE, Estimate, mean_interval
from ragen_gym.core.storage import write_atomic

Record = Mapping[str, Any]

TRUE, TREE = "true advantages", "rollout tree"
SHOWN = ("grpo", "dr_grpo", "arpo", "ppo, turn", "dr_grpo, history", TREE)
"""The lines of the figure."""
BASE, SAME = "dr_grpo", 1e-3
"""The rule that others are compared with, and cosines that count as equal."""
_RATIOS = ("bias", "noise")
_FIGURES = ("cosine", *_RATIOS, "sign", "rank")
BIASED = (("bandit", "start"), ("sokoban", "end"))
"""The panels of a smaller figure: policies on which dividing by the group's std points elsewhere."""
FAINT = 0.1
"""Policies whose exact gradient is shorter than this part of the game's longest are left out of all but one table."""

PAGE = """\
# Credit estimators and the exact policy gradient

Written by `python -m benchmarks.credit`; its last section by
`python -m benchmarks.credit --games bandit --steps 30`. For replies without thoughts and prompts of the current turn
alone the gradient of the expected return [can be computed](../docs/guides/exact_values.md). This page compares it with
the gradients that the trainer's estimators make of sampled episodes.

![credit.png](credit.png)

Figure 1. Cosine of an estimator's gradient with the exact one, by sampled tokens of a batch: mean over batches with its
95 % interval. Grey: the same samples weighted by their true advantages. RLOO has the line of Dr. GRPO, since the two
differ by a factor alone.

## Which estimator to use, by these policies

- **Bandit: do not divide by the group's std while both arms are pulled.** At the start GRPO's expected step goes to the
  arm that pays less; [the drift computed without a model](experiments/risk/risk.md) says the same. Dr. GRPO, RLOO,
  REINFORCE, ARPO and PPO go the right way. {faint}
- **Sokoban: dividing by the group's std biases the gradient.** The expected gradient of GRPO has a cosine of
  {sokoban} with the exact one at the start, middle and end of training,
  with any number of groups of {size}. It still raises the return. Dr. GRPO has no bias that can be measured, nor has
  BRPO, which divides by the batch's std. The cause is open.
- **Lakes: take more episodes before another rule.** No rule is surely above Dr. GRPO there, with states (GiGPO) or
  histories (HGPO, arXiv 2602.22817) as groups neither. Four times the tokens raise its mean cosine by
  {more} (not tested), and no other rule by more than {best} with {middle} groups.
- **Slippery lake: better credit has room.** True advantages are above Dr. GRPO by {slippery}
  at the start, middle and end.

By policy, the cosine of Dr. GRPO with {middle} groups, and what is surely above or below it, with the mean difference:

{answers}

## What cannot be concluded

- One model size ({parameters:,} parameters), one training seed, {levels} fixed levels a game, three turns at most and
  replies of at most six tokens without thoughts, at temperature 0.7. Lakes have 3x3 cells. Rooms of Sokoban have 3x3
  cells inside their walls and solutions of at most four moves. Larger games and long episodes may differ.
- Only the first step on fresh episodes: nothing is clipped, and there is no filter, KL term or entropy bonus. The
  aggregation is `sequence_sum` for all. Rules with advantages of turns have `training.gamma_turn=1`; with the default
  of 0.95 they follow the gradient of a discounted return, which is not measured here.
- A high cosine is the right direction of one step, not a measured end of training. Critics are fitted to {critic}
  further episodes, whose tokens the figure does not count.
- *Surely*: the paired difference over the same {batches} batches differs from 0 at 5 % by Student's t, after the
  correction of Benjamini and Yekutieli for {tests} comparisons, which holds for dependent tests. It misses small
  differences. Trees play other episodes, so they are not compared this way.
- A mean is over {batches} batches, and over {few} of {largest} groups.
- Prompts show the present turn alone. The inconsistent contexts that HGPO was made for cannot arise here.

## Tables

Estimates with half of their 95 % intervals over batches. In the tables of bias and noise an empty cell is too noisy to
measure. The rollout tree is `training.groups_by=tree` with `training.algo=rloo`. It has four first replies and two
replies after each (`training.branches=[4,2]`; in Sokoban two at each turn). It takes part with as many groups but
draws some 70 % of the tokens (in Sokoban half); Figure 1 compares by tokens. Its rows were measured by an earlier
implementation of the same formula.

**Policies.** *Left out* is the mean share of replies in a state that the exact solution does not follow; their return
counts as the middle of its bounds.

{policies}

**Cosine with the exact gradient**, for batches of {largest} groups of {size} episodes.

{cosine}

**Bias**: cosine of the expected gradient with the exact one, the noise of sampling removed (mean product of different
batches of {middle} groups; jackknife). Below 0 the expected step lowers the return. The correction for noise is itself
noisy, so an estimate can pass 1 or -1.

{bias}

**Noise**: variance of the gradient, summed over parameters, by the squared length of its mean, for {middle} groups. It
halves when the batch doubles.

{noise}

**Right signs**: share of tokens whose advantage has the true sign, for {middle} groups; 0 counts half. Only tokens
whose true advantage is surely beyond {least} on either side of 0.

{sign}

**Rank correlation** (Spearman) with the true advantage, over the same tokens.

{rank}
"""

IDEAL = """
## The ideal run

![credit_ideal.png](credit_ideal.png)

Figure 2. Exact return on the {levels} levels of the {game} by steps of AdamW from one start: along the exact gradient,
and along gradients from {batch} groups a step. One seed each. After {step} steps: {ends}.
"""


def cosines(each: Mapping[str, Sequence[float]]) -> list[float]:
    """Each batch's cosine with the exact gradient; 0 for a batch without a gradient."""
    along, norm = np.array(each["along"]), np.sqrt(each["norm2"])
    return list(np.divide(along, norm, out=np.zeros_like(along), where=norm > 0))


def expected(each: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """The expected gradient: ``bias``, its cosine with the exact one, and ``noise``.

    Its squared length is the mean product of two different batches' gradients, a U-statistic. Each figure has half of
    its interval by the jackknife over batches, at least three; nan where noise hides it.
    """
    along, norm2, with_sum = (np.array(each[key]) for key in ("along", "norm2", "with_sum"))
    n = len(along)

    def figures(along: Any, norm2: Any, total: Any, n: int) -> Any:
        square = (total - norm2) / (n * (n - 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.array([along / n / np.sqrt(square), norm2 / n / square - 1])

    whole = figures(along.sum(), norm2.sum(), with_sum.sum(), n)
    less = figures(along.sum() - along, norm2.sum() - norm2, with_sum.sum() - 2 * with_sum + norm2, n - 1)
    error = np.sqrt((n - 1) / n * ((less - less.mean(1, keepdims=True)) ** 2).sum(1))
    half = float(student.ppf(0.975, n - 1)) * error
    return dict(zip(_RATIOS, zip(whole.tolist(), half.tolist(), strict=True), strict=True))


def write_page(folder: Path, records: Sequence[Record]) -> None:
    """The page and its figures."""
    every = _merged([each for each in records if "groups" in each])
    middle, largest = sorted({each["groups"] for each in every})[-2:]
    facts = [each for each in records if "parameters" in each]
    longest: dict[str, float] = {}
    for each in facts:
        longest[each["game"]] = max(longest.get(each["game"], 0.0), each["gradient"])
    faint = [_policy(each) for each in facts if each["gradient"] < FAINT * longest[each["game"]]]
    measured = [each for each in every if _policy(each) not in faint]
    games, moments = (list(dict.fromkeys(each[key] for each in measured)) for key in ("game", "moment"))
    _draw(measured, folder / "credit.png", [[(game, moment) for game in games] for moment in moments], 3.2)
    if "sokoban" in games:
        _draw(measured, folder / "credit_small.png", [BIASED], 2.7, ("grpo", "dr_grpo", "ppo, turn", TRUE))
    cells = {name: [each for each in measured if each["groups"] == middle] for name in _FIGURES}
    cells["cosine"] = [each for each in measured if each["groups"] == largest]
    gaps = paired(cells["bias"])
    slippery = [gap[TRUE][0] for each, gap in zip(cells["bias"], gaps, strict=True) if each["game"] == "slippery lake"]
    biases = [_figure(each["estimators"]["grpo"], "bias") for each in cells["bias"] if each["game"] == "sokoban"]
    page = PAGE.format(
        **{name: _table(columns, name) for name, columns in cells.items()},
        answers=_answers(cells["bias"], gaps),
        faint=_faint([each for each in every if _policy(each) in faint], middle, largest),
        **_on_lakes(cells["bias"], cells["cosine"]),
        tests=sum(map(len, gaps)),
        slippery=", ".join(_shown((each.value, each.half_width), False) for each in slippery) or "not measured",
        sokoban=", ".join(_shown(each, True) for each in biases) or "not measured",
        policies=_policies(facts),
        largest=largest,
        middle=middle,
        batches=len(cells["bias"][0]["estimators"][TRUE]["along"]),
        few=len(cells["cosine"][0]["estimators"][TRUE]["along"]),
        **{key: facts[0][key] for key in ("parameters", "levels", "size", "least", "critic")},
    )
    ideal = [each for each in records if "method" in each]
    write_atomic(folder / "credit.md", page + (_ideal(ideal, folder / "credit_ideal.png") if ideal else ""))


def _merged(records: Sequence[Record]) -> list[Record]:
    """One record of each policy and batch size: an estimator that came later has a record of its own."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in records:
        key = each["game"], each["moment"], each["groups"]
        whole = found.setdefault(key, {**each, "estimators": {}})
        whole["estimators"] = whole["estimators"] | each["estimators"]
    for whole in found.values():  # true advantages last
        whole["estimators"][TRUE] = whole["estimators"].pop(TRUE)
    return [*found.values()]


def _draw(
    measured: Sequence[Record],
    path: Path,
    panels: Sequence[Sequence[tuple[str, str]]],
    inches: float,
    names: Sequence[str] = (*SHOWN, TRUE),
) -> None:
    """Cosine of these estimators by sampled tokens, in rows of panels of a game and a moment, each so wide."""
    figure = Figure(figsize=(inches * len(panels[0]), 0.7 * inches * len(panels) + 0.8), layout="constrained")
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharey=True)
    for (row, column), axes in np.ndenumerate(grid):
        here = [each for each in measured if (each["game"], each["moment"]) == panels[row][column]]
        if not here:
            axes.set_visible(False)
            continue
        for name in names:
            means = [mean_interval(cosines(each["estimators"][name])) for each in here]
            at = [float(np.mean(each["estimators"][name].get("tokens", each["tokens"]))) for each in here]
            colour, style = (CONTROL, "--") if name == TRUE else (COLOURS[SHOWN.index(name)], "-")
            values, halves = [each.value for each in means], [each.half_width for each in means]
            axes.errorbar(at, values, yerr=halves, color=colour, linestyle=style, label=name, capsize=2)
        axes.set(xscale="log", title=", ".join(panels[row][column]), xlabel="sampled tokens", ylim=(-1.05, 1.05))
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.grid(alpha=0.25)
    for axes in grid[:, 0]:
        axes.set_ylabel("cosine")
    shown = grid[0, 0].get_legend_handles_labels()
    figure.legend(*shown, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path)


def _figure(each: Mapping[str, Sequence[float]], name: str) -> tuple[float, float]:
    if name in _RATIOS:
        return expected(each)[name]
    found = mean_interval(cosines(each) if name == "cosine" else each[name])
    return found.value, found.half_width


def _table(columns: Sequence[Record], name: str) -> str:
    """Estimators by game and moment."""
    rows = [
        [estimator, *(_shown(_figure(each["estimators"][estimator], name), name in _RATIOS) for each in columns)]
        for estimator in columns[0]["estimators"]
    ]
    return markdown_table(["", *map(_policy, columns)], rows)


def _policy(each: Record) -> str:
    return f"{each['game']}, {each['moment']}"


def _shown(cell: tuple[float, float], ratio: bool) -> str:
    """A cell; empty where noise hides a ratio, whose denominator may then be 0."""
    value, half = cell
    hidden = ratio and not (np.isfinite(half) and half <= max(0.5, abs(value)))
    return "" if hidden else f"{value:.2f} ± {half:.2f}"


def paired(columns: Sequence[Record]) -> list[dict[str, tuple[Estimate, float]]]:
    """For each policy, by rule: its cosine minus Dr. GRPO's over the same batches, and p adjusted over all of these.

    Rules that point where Dr. GRPO does are left out, and trees, which play other episodes.
    """
    found: list[dict[str, list[float]]] = []
    for each in columns:
        base = np.array(cosines(each["estimators"][BASE]))
        less = {name: np.array(cosines(e)) - base for name, e in each["estimators"].items() if name != TREE}
        found.append({name: gaps.tolist() for name, gaps in less.items() if np.abs(gaps).max() > SAME})
    p_values = [p_value(gaps) for policy in found for gaps in policy.values()]
    adjusted = iter(false_discovery_control(p_values, method="by") if p_values else ())
    return [{name: (mean_interval(gaps), float(next(adjusted))) for name, gaps in each.items()} for each in found]


def _answers(columns: Sequence[Record], gaps: Sequence[Mapping[str, tuple[Estimate, float]]]) -> str:
    """For each policy the rules above and below Dr. GRPO, and those whose expected step goes the wrong way."""
    lines, wrong = [], []
    for each, found in zip(columns, gaps, strict=True):
        sure = {name: gap.value for name, (gap, p) in found.items() if p < 1 - CONFIDENCE}
        told = []
        for side, sign in (("Above", 1), ("Below", -1)):
            if there := [f"`{name}` ({value:+.2f})" for name, value in sure.items() if sign * value > 0]:
                told.append(f"{side}: {', '.join(there)}.")
        cosine = _shown(_figure(each["estimators"][BASE], "cosine"), False)
        lines.append(f"- **{_policy(each)}**: {cosine}. {' '.join(told) or 'No sure difference.'}")
        steps = {name: mean_interval(estimator["along"]) for name, estimator in each["estimators"].items()}
        wrong += [f"`{name}` ({_policy(each)})" for name, step in steps.items() if step.high < 0]
    lines.append(f"- Expected steps against the exact gradient (95 % intervals below 0): {', '.join(wrong) or 'none'}.")
    return "\n".join(lines)


def _faint(left_out: Sequence[Record], *sizes: int) -> str:
    """A sentence on the policies whose gradient is nearly 0, with what was found there."""
    if not left_out:
        return "No later policy has a gradient near 0."
    found, policies = [], len({_policy(each) for each in left_out})
    for groups in sizes:
        of = [each["estimators"] for each in left_out if each["groups"] == groups]
        gaps = [mean_interval(list(np.subtract(cosines(each["grpo"]), cosines(each[BASE])))) for each in of]
        found.append(f"{', '.join(_shown((each.value, each.half_width), False) for each in gaps)} with {groups} groups")
    return (
        f"Later the better arm has 99.7 % of the pulls\n  and the gradient is nearly 0, so {policies} policies are "
        f"left out below. There GRPO's cosine less Dr. GRPO's is\n  {' and '.join(found)}."
    )


def _on_lakes(few: Sequence[Record], many: Sequence[Record]) -> dict[str, str]:
    """What more groups, and other rules in as few, add to the mean cosine of Dr. GRPO on lakes."""
    more, rules = [], []
    for each, larger in zip(few, many, strict=True):
        if "lake" in each["game"]:
            means = {name: float(np.mean(cosines(of))) for name, of in each["estimators"].items() if name != TRUE}
            more.append(float(np.mean(cosines(larger["estimators"][BASE]))) - means[BASE])
            rules.append(max(means.values()) - means[BASE])
    if not more:
        return dict.fromkeys(("more", "best"), "not measured")
    return {"more": f"{min(more):.2f} to {max(more):.2f}", "best": f"{max(rules):.2f}"}


def _policies(facts: Sequence[Record]) -> str:
    head = ["policy", "exact success, %", "exact return", "left out, %", "length of the gradient"]
    rows = []
    for each in facts:
        (low, high), (least, most) = each["success"], each["return"]
        ends = f"{100 * low:.1f} to {100 * high:.1f}", f"{least:.3f} to {most:.3f}"
        rows.append([_policy(each), *ends, f"{100 * each['left_out']:.3f}", f"{each['gradient']:.3g}"])
    return markdown_table(head, rows)


def _ideal(records: Sequence[Record], path: Path) -> str:
    """The section on training by the exact gradient, and its figure."""
    figure, ends = Figure(figsize=(6.5, 3.4), layout="constrained"), []
    axes = figure.subplots()
    for method, colour in zip(dict.fromkeys(each["method"] for each in records), (CONTROL, *COLOURS), strict=False):
        curve = [each for each in records if each["method"] == method]
        axes.plot([e["step"] for e in curve], [np.mean(e["return"]) for e in curve], color=colour, label=method)
        ends.append(f"{method} {np.mean(curve[-1]['return']):.3f}")
    axes.set(xlabel="steps", ylabel="exact return")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    save_figure(figure, path)
    return IDEAL.format(**{key: records[-1][key] for key in ("levels", "game", "batch", "step")}, ends=", ".join(ends))
