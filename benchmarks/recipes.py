"""The recipes that need no GPU, trained over several seeds: ``python -m benchmarks.recipes NAME ...``.

Each run is ``ragen-agent train --recipe NAME --seed N --compare`` (without a recipe for ``default``) in a folder of its
own. A run that ``recipes.json`` has is trained again only once its entry is removed there. Stopped (Ctrl-C), the same
command goes on. ``recipes.json`` and ``recipes.md`` are written after each run; without a NAME only the page is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

from benchmarks import machine, markdown_table, numbered, page_parser, read_results, write_results
from benchmarks.shortcuts import applies, shortcuts
from ragen_agent.cli import main as ragen_agent
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.presets import default_settings, read_recipe, recipe_names
from ragen_agent.config.trainers import OPENRLHF
from ragen_agent.models.small_model import build_model, build_tokenizer, game_texts
from ragen_agent.tasks.tasks import make_env
from ragen_gym.core.stats import mean_interval
from ragen_gym.games.registry import find

DEFAULT = "default"
TITLES = {DEFAULT: "A small model from scratch on FrozenLake without slip; one CPU core; what `make train` trains"}
ROWS = {
    "random": "random replies",
    "blind": "a script that ignores what is in the way",
    "walker": "a walker that looks one move ahead",
    "forward_walker": "the same, but never straight back",
    "nearest": "the shortest path of the most similar demonstrated level",
    "one_cell": "(levels that differ from a demonstrated one in a single cell)",
    "demonstrator": "the demonstrator",
    "before": "after imitation",
    "after": "then reinforcement",
    "more_imitation": "or more imitation at the same cost",
    "clean_warm_start": "imitation of a faultless demonstrator",
    "optimal": "optimal play",
}
SHORTCUTS = ("walker", "forward_walker", "nearest", "one_cell")  # measured here, on lakes that the blind script loses
COMPARED = ("after", "more_imitation", "clean_warm_start")  # the last rows that a run measures
TOOK = ("parameters", "demonstrations")
FACTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("minutes until reinforcement was measured", "trained_s", lambda seconds: f"{seconds / 60:.1f}"),
    ("minutes in all", "wall_s", lambda seconds: f"{seconds / 60:.1f}"),
    *((name, name, lambda count: f"{count:,}") for name in TOOK),
)
GAIN = "**reinforcement above more imitation, points**"
SHORT = {  # the columns of the overview
    "random": "random",
    "blind": "blind script",
    "demonstrator": "demonstrator",
    "before": "imitation",
    "after": "**then StarPO-S**",
    "more_imitation": "or more imitation",
    "clean_warm_start": "or imitation of a faultless one",
    GAIN: "StarPO-S above more imitation",
}

PAGE = """\
# Recipes

Written by `python -m benchmarks.recipes`: `ragen-agent train --compare`, without a recipe and with `--recipe NAME`.
Each run imitates scripted demonstrations and goes on by reinforcement (StarPO-S). We compare that with more imitation
of the same demonstrations at the same cost. Success in %, a column for each seed; in the
last column the mean over seeds, with Student's 95 % interval where seeds differ, which few seeds make wide. Minutes are
by the clock, whatever else ran on the machine, whose number stands in the row above them. The blind script heads for
the goal and ignores what is in the way: success at or below it does not show planning, on held-out levels either.
On lakes that it loses stand three more scripts that do not plan. A walker steps on the neighbouring ice nearest to the
goal, one of them at random if there are several; another walks like it but does not return to where it came from while
there is another way. The third plays the shortest path of the demonstrated level, rotated or reflected, that differs in
the fewest cells from the level played. The rates of random replies and of the blind script are computed, not sampled.
SmolLM2's weights are dequantised from 4 bits. Until November 2026 it was trained with the frequencies of its rotary
positions rounded to bfloat16.

{overview}

{sections}
The settings of `smollm2-135m-sokoban` were chosen on the levels of its table, in parts, each run once: 100 steps of
imitation of 800 demonstrations end at 21.5 % (random replies 20.5), another 100 steps on 800 others at 48.4; from there
20 iterations at a rate of 2e-5 with one update each end at 55.9, 14 iterations at 5e-5 with four updates each at 76.2.
Those four figures were written down by hand; the commands were

```sh
HOW="--recipe smollm2-135m-sokoban"
SFT="--set demonstrations.episodes=800 --set warm_start.epochs=1 --set training.iterations=0"
ragen-agent train $HOW $SFT --out runs/sokoban-100
ragen-agent train $HOW $SFT --model runs/sokoban-100/warm --seed 1 --out runs/sokoban-200
ragen-agent train $HOW --model runs/sokoban-200/warm --out runs/sokoban-rl  # stopped after 14 iterations
ragen-agent train $HOW --model runs/sokoban-200/warm --set training.learning_rate=2e-5 --set training.minibatch=64
```

Machines: {machines}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing of some recipes, and write the page."""
    known = [DEFAULT, *filter(_imitates, recipe_names())]
    parser = page_parser("recipes", __doc__)
    parser.add_argument("recipes", nargs="*", choices=[[], *known], metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"), metavar="DIR", help="folder of the runs")
    options = parser.parse_args(argv)
    results = read_results(options.out, "recipes")
    for name, seed in [(name, seed) for name in options.recipes for seed in options.seeds]:
        folder, recorded = options.runs / f"{name}-seed{seed}", results.setdefault(name, {})
        try:
            if folder.exists() or str(seed) not in recorded:
                train(folder, *(() if name == DEFAULT else ("--recipe", name)), "--seed", str(seed))
        finally:
            summary, run = _summary(folder), recorded.get(str(seed), {})
            if "after" in summary and run | summary != run:  # else trained before
                run = recorded[str(seed)] = summary | {"machine": machine("torch")}
            if run and not set(TOOK) <= set(run) and applies(config := _config(name, seed)):
                run |= _without_planning(config)
            write_results(options.out, "recipes", results, _page(results))
    write_results(options.out, "recipes", results, _page(results))
    return 0


def train(folder: Path, *arguments: str) -> dict[str, Any]:
    """The summary of a run of ``ragen-agent train --compare``, trained as far as it is not.

    Raises:
        SystemExit: it was stopped, or failed.
    """
    if not set(COMPARED) <= set(_summary(folder)):
        resume = (folder / "config.toml").exists()
        how = ["--resume", str(folder)] if resume else [*arguments, "--out", str(folder)]
        if code := ragen_agent(["train", *how, "--compare"]):
            raise SystemExit(code)
    return _summary(folder)


def _summary(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _without_planning(config: Config) -> dict[str, Any]:
    """The rates of ``SHORTCUTS``, and ``TOOK``: parameters of the model, and demonstrations."""
    texts = game_texts(make_env(config, "train"), config.demonstrations.thought)
    model = build_model(config.small_model, build_tokenizer([texts]), config.seed)
    took = {"parameters": model.num_parameters(), "demonstrations": config.demonstrations.episodes}
    return {name: rate.to_dict() for name, rate in shortcuts(config).items()} | took


def _config(name: str, seed: int) -> Config:
    """The settings of a recipe's run on this machine."""
    settings = {key: value for key, value in _settings(name).items() if key != OPENRLHF}
    defaults = default_settings(settings.get("game", Config.game), str(settings.get("model", "")))
    return with_settings(Config(), merged(defaults, settings | {"seed": seed}))


def _imitates(name: str) -> bool:
    """True for a recipe of two CPU cores that begins with imitation; the others have nothing to compare with."""
    recipe = read_recipe(name)
    return recipe.gpus == 0 and recipe.settings.get("warm_start", {}).get("epochs") != 0


def _settings(name: str) -> Settings:
    return {} if name == DEFAULT else read_recipe(name).settings


def _page(results: dict[str, Any]) -> str:
    names = sorted(name for name in results if results[name])
    known = list(dict.fromkeys(run["machine"] for name in names for run in results[name].values()))
    return PAGE.format(
        overview=markdown_table(
            ["mean over seeds, %", "seeds", *SHORT.values()], [_overview(name, results[name]) for name in names]
        ),
        sections="\n".join(_section(name, results[name], known) for name in names),
        machines=numbered(known),
    )


def _rates(runs: dict[str, Any]) -> dict[str, list[float]]:
    """Success of each row in %, and the gain, by seed; nan where it is missing."""
    shown = [row for row in ROWS if row not in SHORTCUTS or any(row in run for run in runs.values())]
    rates = {row: [100 * runs[seed].get(row, {}).get("rate", nan) for seed in sorted(runs, key=int)] for row in shown}
    return rates | {GAIN: [one - other for one, other in zip(rates["after"], rates["more_imitation"], strict=True)]}


def _overview(name: str, runs: dict[str, Any]) -> list[str]:
    """The line of a recipe in the first table: means over the seeds that there are."""
    cells = ["`make train`" if name == DEFAULT else f"`{name}`", str(len(runs))]
    for row, values in _rates(runs).items():
        there = [value for value in values if not isnan(value)]
        if row in SHORT:
            of = f" ({len(there)} of {len(values)} seeds)" if len(there) < len(values) else ""
            cells.append(_mean(there, row, interval=row in ("after", GAIN)) + of if there else "not yet")
    return cells


def _section(name: str, runs: dict[str, Any], machines: Sequence[str]) -> str:
    """The table of a recipe; a run's machine is given by its number in ``machines``, from 1 on."""
    by_seed = {seed: runs[seed] for seed in sorted(runs, key=int)}
    settings = _settings(name)
    config = with_settings(Config(), {key: settings[key] for key in ("game", "evaluation") if key in settings})
    split = config.evaluation.split
    count = next(iter(by_seed.values()))["after"]["n"]
    levels = find(config.game).game_class().level_count(split)
    episodes = f"{count} episodes of the {levels}" if levels is not None and levels < count else str(count)
    rows = []
    for row, values in _rates(runs).items():
        mean = "" if any(map(isnan, values)) else _mean(values, row)
        rows.append([ROWS.get(row, row), *("not yet" if isnan(value) else f"{value:.1f}" for value in values), mean])
    rows.append(["machine", *(str(1 + machines.index(run["machine"])) for run in by_seed.values()), ""])
    for title, key, form in FACTS:
        if all(key in run for run in runs.values()):
            rows.append([title, *(form(run[key]) for run in by_seed.values()), ""])
    head = [f"on {episodes} levels of the split {split}", *(f"seed {seed}" for seed in by_seed), "mean"]
    return f"## `{name}`\n\n{TITLES.get(name) or read_recipe(name).title}.\n\n{markdown_table(head, rows)}\n"


def _mean(values: Sequence[float], row: str, *, interval: bool = True) -> str:
    """The mean of a row, with its interval where values differ; a rate's ends lie between 0 and 100."""
    found = mean_interval(values)
    low, high = (found.low, found.high) if row == GAIN else (max(0.0, found.low), min(100.0, found.high))
    return f"{found.value:.1f}" + (f" ({low:.1f} to {high:.1f})" if interval and len(set(values)) > 1 else "")


if __name__ == "__main__":
    raise SystemExit(main())
