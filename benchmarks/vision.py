"""Agents that see: how fast boards become pictures, and what is lost to seeing and what to planning.

``python -m benchmarks.vision`` measures the pictures, next to Gymnasium's own rendering of the same lake.
``python -m benchmarks.vision RUN ...`` plays the fixed levels of visual runs three times: with the board as text, as a
picture, and as both. The levels and the noise are the same, so what differs is what is seen. Where the run's replies
begin with the board (``turns.grounding``), the table also says how many boards were written down without a fault, and
how often episodes succeed in which all were: what is missing there is lost to planning.

Results are kept in ``vision.json``; a run that is measured again replaces its own. ``vision.md`` is written from it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console

from benchmarks import machine
from ragen_agent.config import Config
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.console import Display
from ragen_agent.training.evaluation import baselines, fixed_instances, play_fixed, rate_of_played, without_failed
from ragen_agent.training.policy import Policy
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import make_env
from ragen_gym.core.image_style import ImageStyle
from ragen_gym.core.stats import Rate, wilson
from ragen_gym.core.storage import write_atomic
from ragen_gym.core.turn_config import OBSERVATIONS
from ragen_gym.envs.turn import make_turn
from ragen_gym.render.images import BoardImages

__all__ = ["main", "seen_and_planned", "speed"]

HERE = Path(__file__).parent
BATCH = 256
SECONDS, REPEATS = 0.2, 5

PAGE = """\
# Agents that see

Written by `python -m benchmarks.vision`. Machine: {machine}.

## Pictures

Boards a second of one core's time, the best of {repeats} repetitions. Gymnasium draws FrozenLake with pygame, without a
window; the others are `ragen_gym.render.images`, pixel for pixel the same on every machine.

| what | size | boards a second |
|---|---|---|
{speed}

{runs}
"""

RUNS = """\
## What is lost to seeing, and what to planning

The same {levels} levels with the same noise, by what the messages show; success in %, with Wilson's 95 % interval.
*Boards right*: of those that replies write down, the share without a fault. *Success where all were right*: what is
missing there is lost to planning. A run is trained on one kind of message, named in the table; the others show what it
makes of kinds that it was not trained on.

| run | trained on | shown | success | boards right | success where all were right |
|---|---|---|---|---|---|
{rows}

Random replies reach {random} on these levels, optimal play {optimal}."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, writes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs; none: the speed")
    parser.add_argument("--levels", type=int, metavar="N", help="held-out levels (default the run's own number)")
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR", help="folder of the two files")
    arguments = parser.parse_args(argv)
    file = arguments.out / "vision.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"speed": [], "runs": {}}
    if not arguments.runs or not results["speed"]:
        results |= {"speed": speed(), "machine": machine("gymnasium", "pygame-ce", "numpy")}
        write_atomic(file, json.dumps(results, indent=1) + "\n")
    for run in arguments.runs:
        results["runs"][run.name] = seen_and_planned(run, arguments.levels)
        write_atomic(file, json.dumps(results, indent=1) + "\n")
    write_atomic(arguments.out / "vision.md", _page(results))
    return 0


def speed() -> list[dict[str, Any]]:
    """Rows of ``what``, ``size`` (pixels) and ``rate`` (boards a second of processor time)."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    peer = gymnasium.make("FrozenLake-v1", render_mode="rgb_array")
    peer.reset(seed=0)
    drawn: Any = peer.render()
    rows = [_row("Gymnasium's FrozenLake-v1 4x4, `render()`", drawn.shape, 1, peer.render)]
    for name, tile in (("FrozenLake", 64), ("FrozenLake", 28), ("Sokoban", 28)):
        game = make_turn(name).game
        images = BoardImages(game, ImageStyle(tile_size=tile))
        codes = np.random.default_rng(0).integers(game.codes, size=(BATCH, game.height, game.width), dtype=np.uint8)
        out = np.empty((BATCH, *images.shape), np.uint8)
        what = f"{name} {game.height}x{game.width}"
        rows.append(_row(f"{what}, one board", images.shape, 1, partial(images.images, codes[:1])))
        rows.append(_row(f"{what}, batch of {BATCH}", images.shape, BATCH, partial(images.images, codes, out)))
    return rows


def _row(what: str, shape: tuple[int, ...], boards: int, draw: Callable[[], Any]) -> dict[str, Any]:
    """The best rate of some repetitions, by the processor's time: a busy machine does not change it much."""
    draw()
    best = 0.0
    for _ in range(REPEATS):
        count, began = 0, time.process_time()
        while (spent := time.process_time() - began) < SECONDS:
            draw()
            count += 1
        best = max(best, count * boards / spent)
    return {"what": what, "size": f"{shape[0]}x{shape[1]}", "rate": best}


def seen_and_planned(run: Path, levels: int | None = None) -> dict[str, Any]:
    """A run's final model on its fixed levels, by each kind of message."""
    folder, trained = RunFolder.reopen(run)
    levels = levels or trained.evaluation.levels
    found: dict[str, Any] = {"trained_on": trained.turns.observation, "levels": levels, "shown": {}}
    display = Display(Console())
    for observation in OBSERVATIONS:
        turns = replace(trained.turns, observation=observation)
        config = replace(trained, turns=turns, evaluation=replace(trained.evaluation, levels=levels))
        policy = Policy.build(config, folder.checkpoint)
        env = make_env(config, config.evaluation.split)
        instances = fixed_instances(env, levels)
        display.say(f"{run.name}: {levels} levels as {observation}")
        found["shown"][observation] = _figures(play_fixed(policy, instances, display), config)
        found |= {name: rate.to_dict() for name, rate in baselines(env, instances).items()}
    return found


def _figures(played: Sequence[Trajectory], config: Config) -> dict[str, Any]:
    """Rates of one row of the table; those of boards are None where no reply writes one down."""
    figures: dict[str, Any] = {"success": rate_of_played(played).to_dict(), "boards": None, "planned": None}
    if not config.turns.grounding:
        return figures
    whole = without_failed(played)
    boards = [[bool(turn.observation_right) for turn in t.turn_infos] for t in whole]
    right = [t.success for t, seen in zip(whole, boards, strict=True) if seen and all(seen)]
    every = [seen for turns in boards for seen in turns]
    rates: dict[str, Rate] = {"boards": wilson(sum(every), len(every))}
    if right:
        rates["planned"] = wilson(sum(right), len(right))
    return figures | {name: rate.to_dict() for name, rate in rates.items()}


def _page(results: dict[str, Any]) -> str:
    """The page of these results."""
    speeds = "\n".join(f"| {row['what']} | {row['size']} | {row['rate']:,.0f} |" for row in results["speed"])
    runs = ""
    if results["runs"]:
        measured = results["runs"].items()
        rows = "\n".join(
            f"| {name} | {run['trained_on']} | {shown} | {_percent(figures['success'])} | "
            f"{_percent(figures['boards'])} | {_percent(figures['planned'])} |"
            for name, run in measured
            for shown, figures in run["shown"].items()
        )
        last = results["runs"][next(reversed(results["runs"]))]
        lines = {name: _percent(last[name]) for name in ("random", "optimal")}
        runs = RUNS.format(rows=rows, levels=last["levels"], **lines)
    text = PAGE.format(machine=results["machine"], repeats=REPEATS, speed=speeds, runs=runs)
    return text.rstrip() + "\n"


def _percent(rate: dict[str, Any] | None) -> str:
    """A rate with its interval; a dash where there is none."""
    if rate is None:
        return "-"
    return f"{100 * rate['rate']:.1f} ({100 * rate['low']:.0f} to {100 * rate['high']:.0f})"


if __name__ == "__main__":
    raise SystemExit(main())
