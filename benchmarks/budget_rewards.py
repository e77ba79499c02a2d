"""Rewards of stated budgets, for ``benchmarks.budget``: does training on them make statements truer?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from benchmarks import markdown_table
from ragen_agent.cli import main as ragen_agent
from ragen_gym.bench.report.tables import number
from ragen_gym.core.stats import mean_interval

SPLIT = "frozen_lake_slippery"
ARMS = {"none": "success alone", "score": "success and the proper score", "bagen": "success and BAGEN's reward"}
SEEDS = (0, 1, 2)
PLAY = {
    "env_options.success_rate": "0.3333333333333333",
    "turns.max_turns": "8",
    "turns.max_actions": "8",
    "evaluation.levels": "16",
}
START = {"demonstrations.episodes": "4000", "warm_start.epochs": "2", "training.iterations": "0"}
REWARDED = {
    "warm_start.epochs": "0",
    "training.iterations": "30",
    "training.groups": "8",
    "training.group_size": "8",
    "training.filter": "none",
    "training.learning_rate": "5e-4",
}
#: What differs for a pretrained model: room for shorter tokens, no example, as in the suite, and its recipes' rates.
PRETRAINED = {"turns.max_tokens_per_turn": "24", "turns.example": "false"}
PRETRAINED_START = {"demonstrations.episodes": "800", "warm_start.epochs": "1", "warm_start.learning_rate": "2e-4"}
PRETRAINED_REWARDED = {"training.learning_rate": "2e-5"}

SECTION = """\
## Rewards of stated budgets

Measured by `python -m benchmarks.budget --rewards`. A small model imitates 4,000 demonstrations on slippery lakes,
which state the budget of optimal play. From this one start three rewards are trained, 30 iterations of 64 episodes
each: success alone, with the mean proper score of an episode's statements (`training.budget_reward=score`), and
with BAGEN's reward (`training.budget_reward=bagen`). Both pay by the moves that the episode then took. Each model
plays the suite's slippery lakes, {levels} episodes; means over {seeds} seeds with Student's 95 % interval. Optimal
and random play of the same lakes stand under The scale.

{table}

*Score* is against the agent's own episodes, lower is better; *above constant* is its distance from the best
constant interval for the same statements, chosen in hindsight. *Recall* and *precision* are of `impossible` in lost
states, *at the pivot* the recall at an episode's first one. Always saying `impossible` has a recall of 100 % and
the precision of the last column; never saying it has a recall of 0. The lakes of training are harder than those of
the suite: their shortest paths have 3 moves or more.

{answer}

**Limits.** Random play succeeds in {chance:.1f} % of these lakes, and {better} of the {arms} rewards end surely above
it: this says nothing of models that play well. Saying `impossible` is no proven effect of the pay for true statements:
success alone drifts to it, too (by seed {drift} statements; at the start {first}).
With the proper score training missed the optimum of what it was paid for, as the best constant interval scores better.
Clear, without a correction for their number: {clear} of the {compared} comparisons. One learning rate
({rate}), {iterations} iterations and one start of a small model were tried.

{pretrained}
"""

UNTRAINED = """\
**A pretrained model** was not trained in this way: `python -m benchmarks.budget --rewards --model smollm2-135m` does
it, goes on where it was stopped, and adds its table here. How long it takes was not measured."""

TRAINED = """\
**A pretrained model**, `{model}`, by `python -m benchmarks.budget --rewards --model {model}`: it imitates {episodes}
demonstrations and is rewarded at a learning rate of {rate}, all else as above. Of the {arms} rewards {better} end
surely above random play.

{table}

{answer}"""


def measure(
    runs: Path, settings: Mapping[str, str], play: Callable[[str, Path, Path], dict[str, Any]], pretrained: str = ""
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the start and of each arm's seeds; what has a checkpoint in ``runs`` is not trained again.

    ``settings`` are of all models, and ``play`` makes a row of a name, a checkpoint and the folder of its results. The
    start is a small model, or the pretrained one of that name.
    """
    first, then = {**settings, **PLAY, **START}, {**settings, **PLAY, **REWARDED}
    if pretrained:
        first, then = {**first, **PRETRAINED_START, "model": pretrained}, {**then, **PRETRAINED_REWARDED}
    start = _trained(runs / "start", first)
    found = {"start": [play("start", start, runs / "played-start")]}
    for arm in ARMS:
        reward = {"training.budget_reward": arm} if arm != "none" else {}
        for seed in SEEDS:
            out, own = runs / f"{arm}-{seed}", {"seed": str(seed), "model": str(start)}
            model = _trained(out, {**then, **reward, **own})
            found.setdefault(arm, []).append(play(out.name, model, runs / f"played-{out.name}"))
    return found


def _trained(out: Path, settings: Mapping[str, str]) -> Path:
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    begun = (out / "config.toml").exists()
    if not (out / "checkpoint").is_dir() and ragen_agent(
        ["train", *(["--resume", str(out)] if begun else ["--game", "FrozenLake", "--out", str(out), *flags])]
    ):
        raise SystemExit(f"the run {out} did not finish; the same command goes on with it.")
    return out / "checkpoint"


def _called(name: str) -> Callable[[Any], float]:
    """The rate of ``impossible`` under a name, 0 without a statement that counts."""
    return lambda row: (row["budget"]["impossible"][name] or {"rate": 0.0})["rate"]


#: Heading, how to read it from a row, the factor of its unit, and 1 or -1 where more is better or worse.
COLUMNS: tuple[tuple[str, Callable[[Any], float], float, int], ...] = (
    ("success %", lambda row: row["success"]["rate"], 100, 1),
    ("width", lambda row: row["budget"]["width"]["mean"], 1, 0),
    ("holds %", lambda row: row["budget"]["optimal"]["coverage"]["rate"], 100, 0),
    ("score", lambda row: row["budget"]["own"]["score"]["mean"], 1, -1),
    ("above constant", lambda row: row["budget"]["own"]["constant"]["excess"]["mean"], 1, -1),
    ("recall %", _called("recall"), 100, 1),
    ("at the pivot %", _called("at_pivot"), 100, 1),
    ("precision %", _called("precision"), 100, 1),
    ("lost states %", lambda row: row["budget"]["impossible"]["lost"] / row["budget"]["width"]["n"], 100, 0),
)

#: Bounds of columns that are not shares.
BOUNDS = {"width": (0, inf), "score": (0, inf), "above constant": (-inf, inf)}


def section(rows: Mapping[str, Any], levels: int, chance: float, pretrained: Mapping[str, Any] | None = None) -> str:
    """The section of the page.

    Args:
        rows: what ``measure`` returned for the small model.
        levels: of each row.
        chance: the success of random play on these levels.
        pretrained: the ``model`` and the ``rows`` of a pretrained one, if it was trained.
    """
    answer = _answer(rows)
    said = {
        name: [f"{row['budget']['impossible']['said']} of {row['budget']['width']['n']}" for row in found]
        for name, found in rows.items()
    }
    return SECTION.format(
        levels=levels,
        seeds=len(SEEDS),
        table=_table(rows),
        answer=answer,
        chance=100 * chance,
        better=_above(rows, chance),
        arms=len(ARMS),
        drift=", ".join(said["none"]),
        first=said["start"][0],
        compared=answer.count(";") + answer.count("with the same seed:"),
        clear=answer.count(", better") + answer.count(", worse"),
        rate=REWARDED["training.learning_rate"],
        iterations=REWARDED["training.iterations"],
        pretrained=_pretrained(pretrained, chance) if pretrained else UNTRAINED,
    )


def _pretrained(found: Mapping[str, Any], chance: float) -> str:
    return TRAINED.format(
        model=found["model"],
        episodes=PRETRAINED_START["demonstrations.episodes"],
        rate=PRETRAINED_REWARDED["training.learning_rate"],
        arms=len(ARMS),
        better=_above(found["rows"], chance),
        table=_table(found["rows"]),
        answer=_answer(found["rows"]),
    )


def _table(rows: Mapping[str, Any]) -> str:
    table = [
        [
            ARMS.get(name, "the start"),
            *(
                _mean([unit * read(row) for row in found], *BOUNDS.get(column, (0, 100)))
                for column, read, unit, _ in COLUMNS
            ),
        ]
        for name, found in rows.items()
    ]
    return markdown_table(["trained on", *(column[0] for column in COLUMNS)], table)


def _answer(rows: Mapping[str, Any]) -> str:
    return "\n".join(_verdicts(arm, rows) for arm in ARMS if arm != "none")


def _above(rows: Mapping[str, Any], chance: float) -> int:
    """Number of rewards whose success ends surely above random play."""
    return sum(mean_interval([row["success"]["rate"] for row in rows[arm]]).low > chance for arm in ARMS)


def _mean(values: list[float], low: float = -inf, high: float = inf) -> str:
    """The mean and, of several seeds, its interval within the bounds."""
    mean = mean_interval(values)
    ends = f" ({number(max(low, mean.low), 1)} to {number(min(high, mean.high), 1)})" if len(values) > 1 else ""
    return f"{number(mean.value, 1)}{ends}"


def _verdicts(arm: str, rows: Mapping[str, Any]) -> str:
    said = []
    for name, read, unit, sign in (column for column in COLUMNS if column[3]):
        gaps = [unit * (read(one) - read(other)) for one, other in zip(rows[arm], rows["none"], strict=True)]
        mean = mean_interval(gaps)
        clear = mean.low > 0 or mean.high < 0
        verdict = ("better" if sign * mean.value > 0 else "worse") if clear else "not told apart"
        said.append(f"{name} {_mean(gaps)}, {verdict}")
    always = all(row["budget"]["impossible"]["said"] == row["budget"]["width"]["n"] for row in rows[arm])
    end = " Every seed says `impossible` on every board, so its recall shows no knowledge of the board." * always
    name = f"{ARMS[arm][0].upper()}{ARMS[arm][1:]}"
    return f"- **{name}**, minus success alone with the same seed: {'; '.join(said)}.{end}"
