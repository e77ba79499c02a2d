"""The recipes that need no GPU, trained over several seeds: ``python -m benchmarks.recipes``.

Each run is ``ragen-agent train --recipe NAME --seed N --compare`` (without a recipe for ``default``), in a folder of
its own: one that is whole is read, one that was interrupted goes on. Written are ``recipes.json`` and ``recipes.md``,
after each run and of all that is there; a run that ``recipes.json`` has and this machine does not is not trained again,
unless its entry is removed there. Stopped (Ctrl-C) after the reinforcement was measured, a run is written with what
there is, and the same command goes on.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import Any

from benchmarks import machine, numbered, page_parser, write_results
from benchmarks.shortcuts import applies, shortcuts
from ragen_agent.config import Config, Settings, merged, with_settings
from ragen_agent.config.io import OPENRLHF
from ragen_agent.config.presets import default_settings, read_recipe, recipe_names
from ragen_agent.models.small_model import build_model, build_tokenizer, game_texts
from ragen_agent.run.evaluation import blind_rate, evaluated_levels, random_rate
from ragen_agent.tasks.tasks import make_env
from ragen_gym.core.child_python import child_environment, child_python
from ragen_gym.core.stats import mean_interval
from ragen_gym.envs.turn import TurnEnv

__all__ = ["main", "run", "train"]

DEFAULT = "default"
INTERRUPTED = 130  # the exit code after Ctrl-C
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
OF_RUN = tuple(row for row in ROWS if row not in SHORTCUTS)
TOOK = ("parameters", "demonstrations")
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
    """Trains what is missing, writes; returns the exit code."""
    known = [DEFAULT, *filter(_imitates, recipe_names())]
    parser = page_parser("recipes", __doc__)
    parser.add_argument(
        "--recipes", nargs="+", choices=known, default=known, metavar="NAME", help="which (default all)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipes"), metavar="DIR", help="folder of the runs")
    arguments = parser.parse_args(argv)
    file = arguments.out / "recipes.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in arguments.recipes:
        for seed in arguments.seeds:
            folder, recorded = arguments.runs / f"{name}-seed{seed}", results.setdefault(name, {})
            try:
                if folder.exists() or str(seed) not in recorded:
                    train(folder, *(() if name == DEFAULT else ("--recipe", name)), "--seed", str(seed))
            except KeyboardInterrupt:
                print("stopped: the same command goes on", file=sys.stderr)
                return INTERRUPTED
            finally:
                summary = _summary(folder)
                known = recorded.get(str(seed), {})
                if "after" in summary and known | summary != known:  # else trained before
                    recorded[str(seed)] = summary | {"machine": machine("torch")}
                if str(seed) in recorded:  # scripts' rates follow from the levels alone, whenever a run was trained
                    recorded[str(seed)] |= _scripts(name)
                if not set(TOOK) <= set(recorded.get(str(seed), TOOK)) and applies(config := _config(name, seed)):
                    recorded[str(seed)] |= _without_planning(config)
                write_results(arguments.out, "recipes", results, _page(results))
    return 0


def train(folder: Path, *arguments: str, rows: Iterable[str] = OF_RUN) -> dict[str, Any]:
    """The summary of a run of ``ragen-agent train``, trained as far as it lacks one of these rows."""
    if set(rows) - set(_summary(folder)):
        resume = (folder / "config.toml").exists()
        how = ["--resume", str(folder)] if resume else [*arguments, "--out", str(folder)]
        run(child_python("-m", "ragen_agent.cli", "train", *how, "--compare"))
    return _summary(folder)


def run(command: Sequence[str]) -> None:
    """Runs a command that saves its work on Ctrl-C and SIGTERM: it is waited for until it has.

    Ctrl-C reaches it too, as a terminal sends it to all; SIGTERM is passed on. In the main thread only.

    Raises:
        KeyboardInterrupt: it was interrupted.
        CalledProcessError: it failed.
    """
    with subprocess.Popen(command, env=child_environment()) as process:
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while process.returncode is None:
            with suppress(KeyboardInterrupt):
                process.wait()
        signal.signal(signal.SIGTERM, before)
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _summary(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


@cache
def _scripts(name: str) -> dict[str, dict[str, Any]]:
    """The rates of random replies and of the game's blind script on the levels that the recipe is measured on."""
    env, instances = evaluated_levels(_config(name, 0))
    assert isinstance(env, TurnEnv)
    return {"random": random_rate(env, instances).to_dict(), "blind": blind_rate(env, instances).to_dict()}


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
    """The page of these results."""
    names = sorted(name for name in results if results[name])
    known = list(dict.fromkeys(run["machine"] for name in names for run in results[name].values()))
    overview = [f"| mean over seeds, % | seeds | {' | '.join(SHORT.values())} |", "|---" * (len(SHORT) + 2) + "|"]
    overview += [_overview(name, results[name]) for name in names]
    sections = "\n".join(_section(name, results[name], known) for name in names)
    return PAGE.format(overview="\n".join(overview), sections=sections, machines=numbered(known))


def _rates(runs: dict[str, Any]) -> dict[str, list[float]]:
    """Success of each row in %, and the gain, by seed; nan where it is missing."""
    shown = [row for row in ROWS if row not in SHORTCUTS or any(row in run for run in runs.values())]
    rates = {row: [100 * runs[seed].get(row, {}).get("rate", nan) for seed in sorted(runs, key=int)] for row in shown}
    return rates | {GAIN: [one - other for one, other in zip(rates["after"], rates["more_imitation"], strict=True)]}


def _overview(name: str, runs: dict[str, Any]) -> str:
    """The line of a recipe in the first table: means over the seeds that there are."""
    cells = []
    for row, values in _rates(runs).items():
        there = [value for value in values if not isnan(value)]
        if row in SHORT:
            of = f" ({len(there)} of {len(values)} seeds)" if len(there) < len(values) else ""
            cells.append(_mean(there, row, interval=row in ("after", GAIN)) + of if there else "not yet")
    return f"| {'`make train`' if name == DEFAULT else f'`{name}`'} | {len(runs)} | {' | '.join(cells)} |"


def _section(name: str, runs: dict[str, Any], machines: Sequence[str]) -> str:
    """The table of a recipe; a run's machine is given by its number in ``machines``, from 1 on."""
    seeds = sorted(runs, key=int)
    count = runs[seeds[0]]["after"]["n"]
    split = with_settings(Config(), {"evaluation": _settings(name).get("evaluation", {})}).evaluation.split
    lines = [f"## `{name}`", "", (TITLES.get(name) or read_recipe(name).title) + ".", ""]
    lines += [f"| on {count} levels of the split {split} | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |"]
    lines += ["|---" * (len(seeds) + 2) + "|"]
    for row, values in _rates(runs).items():
        cells = ["not yet" if isnan(value) else f"{value:.1f}" for value in values]
        mean = "" if "not yet" in cells else f" {_mean(values, row)}"
        lines.append(f"| {ROWS.get(row, row)} | {' | '.join(cells)} |{mean} |")
    lines.append(f"| machine | {' | '.join(str(1 + machines.index(runs[seed]['machine'])) for seed in seeds)} | |")
    for title, key in {"minutes until reinforcement was measured": "trained_s", "minutes in all": "wall_s"}.items():
        if all(key in run for run in runs.values()):
            minutes = [f"{runs[seed][key] / 60:.1f}" for seed in seeds]
            lines.append(f"| {title} | {' | '.join(minutes)} | |")
    for title in TOOK:
        if all(title in run for run in runs.values()):
            lines.append(f"| {title} | {' | '.join(f'{runs[seed][title]:,}' for seed in seeds)} | |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float], row: str, *, interval: bool = True) -> str:
    """The mean of a row, with its interval where values differ; a rate's ends lie between 0 and 100."""
    found = mean_interval(values)
    low, high = (found.low, found.high) if row == GAIN else (max(0.0, found.low), min(100.0, found.high))
    return f"{found.value:.1f}" + (f" ({low:.1f} to {high:.1f})" if interval and len(set(values)) > 1 else "")


if __name__ == "__main__":
    raise SystemExit(main())
