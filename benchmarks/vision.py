"""Agents that see: how fast boards become pictures, and what is lost to seeing and what to planning.

``python -m benchmarks.vision`` measures the pictures, next to Gymnasium's own rendering of the same lake, and trains
and measures the agents of ``benchmarks.vision_agents``, seed after seed. A run that is whole is read, one that was
interrupted goes on, and what was measured is not measured again. ``vision.json`` and ``vision.md`` are written after
each; ``--only speed`` measures the pictures again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import machine, made_folder
from benchmarks.recipes import train
from benchmarks.vision_agents import AGENTS, PROBED, RECIPE, bounds, measure
from ragen_agent.run.run_folder import RunFolder
from ragen_gym.core.image_style import ImageStyle
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import write_atomic
from ragen_gym.envs.turn import make_turn
from ragen_gym.render.images import BoardImages

__all__ = ["main", "speed"]

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

{agents}
"""

SEEING = """\
## What is lost to seeing, and what to planning

The same visual model of 0.4M parameters is trained by the recipe `{recipe}`, its levels shown in different ways:

{shown}

Every reply writes the board in rows of symbols before it answers. On {levels} levels of the test split, in %, over the
seeds {seeds}, with Student's 95 % interval where seeds differ. *Boards*, *cells*, *things*: the shares of what replies
write down that is right; things are all tiles but ground. *Planner*: in every turn the best moves on the board that the
agent says it sees are played instead of its own. What the planner lacks to optimal play ({optimal}) is **lost to
seeing**, and what the agent lacks to the planner is **lost to planning**; random replies reach {random}. *More
imitation*: success after further imitation at the cost of the reinforcement. Core-minutes are of a whole run.

{header}
|---|---|---|---|---|---|---|---|---|---|---|
{rows}

{probes}Machine: {machine}."""

HEADER = (
    "| shown | after | success | boards | cells | things | planner | **lost to seeing** | **lost to planning** | "
    "more imitation | core-minutes |"
)
PROBES = """\
### What a probe reads

A linear probe at the visual tokens, one a tile, is fitted on boards of the training split and reads those of the test
split, without any reply. Layer 0 is the vision encoder's output.

| model | layer | untrained: cells | things | imitation: cells | things | reinforcement: cells | things |
|---|---|---|---|---|---|---|---|
{rows}

"""

#: With ``--quick``: only to see whether it works.
QUICK = (
    *("--set", "training.iterations=1", "--set", "demonstrations.episodes=64", "--set", "evaluation.levels=8"),
    *("--set", "training.groups=4", "--set", "training.minibatch=16", "--set", "warm_start.epochs=1"),
    *("--set", "small_model.hidden=32", "--set", "small_model.layers=1"),
)
QUICK_LEVELS, QUICK_PROBE = 8, (60, 20)
STAGES = ("imitation", "reinforcement")


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and measures what is missing, writes; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision", description=(__doc__ or "").split("\n")[0])
    every = ["speed", *AGENTS]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="WHAT", help=", ".join(every))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--levels", type=int, default=256, metavar="N", help="held-out levels (default 256)")
    parser.add_argument("--runs", type=Path, default=Path("runs/vision"), metavar="DIR", help="folder of the runs")
    parser.add_argument("--out", type=made_folder, default=HERE, metavar="DIR", help="folder of the two files")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see whether it works; give another --out")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.out == HERE:
        parser.error("--quick measures nothing worth keeping: give --out another folder than that of the page.")
    levels = QUICK_LEVELS if arguments.quick else arguments.levels
    file = arguments.out / "vision.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"speed": [], "agents": {}}
    if results.setdefault("levels", levels) != levels:
        parser.error(f"{file} holds rates on {results['levels']} levels: give --levels {results['levels']}.")
    if arguments.only == ["speed"] or not results["speed"]:
        results |= {"speed": speed(), "machine": machine("gymnasium", "pygame-ce", "numpy")}
        _write(results, arguments.out)
    for seed in arguments.seeds:
        for name in (name for name in AGENTS if name in arguments.only):
            _train_and_measure(name, seed, results, arguments)
            results["agents_machine"] = machine("torch", "transformers")
            _write(results, arguments.out)
    return 0


def _write(results: Mapping[str, Any], out: Path) -> None:
    write_atomic(out / "vision.json", json.dumps(results, indent=1) + "\n")
    write_atomic(out / "vision.md", _page(results))


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


def _train_and_measure(name: str, seed: int, results: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Adds to the results what an agent's run cost and what its models see and plan, before and after reinforcement."""
    mine = results.setdefault("agents", {}).setdefault(name, {}).setdefault(str(seed), {"core_s": 0.0})
    run = arguments.runs / f"{name}-seed{seed}"
    before = _core_seconds()
    try:
        summary = train(run, *AGENTS[name].arguments, "--seed", str(seed), *(QUICK if arguments.quick else ()))
    finally:  # what an interrupted run spent is spent
        mine["core_s"] += _core_seconds() - before
        write_atomic(arguments.out / "vision.json", json.dumps(results, indent=1) + "\n")
    mine["more_imitation"] = summary["more_imitation"]
    _, config = RunFolder.reopen(run)
    results["bounds"] = results.get("bounds") or bounds(config, results["levels"])
    for stage in STAGES:
        if stage not in mine:
            mine[stage] = measure(run, stage, results["levels"], QUICK_PROBE if arguments.quick else PROBED)
            rates = {what: f"{100 * mine[stage][what]['rate']:.1f} %" for what in ("success", "planned")}
            print(f"{name}, seed {seed}, {stage}: success {rates['success']}, planner on what it says it sees "
                  f"{rates['planned']}; {mine['core_s'] / 60:.1f} core-minutes of training", flush=True)  # fmt: skip


def _core_seconds() -> float:
    """Processor time of the programs that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _page(results: Mapping[str, Any]) -> str:
    """The page of these results."""
    speeds = "\n".join(f"| {row['what']} | {row['size']} | {row['rate']:,.0f} |" for row in results["speed"])
    agents = ""
    measured = {name: [run for run in runs.values() if STAGES[-1] in run] for name, runs in results["agents"].items()}
    if any(measured.values()):
        rows, probes = [], []
        for name in AGENTS:
            runs = measured.get(name, [])
            rows += [_row_of(name, stage, runs, results) for stage in STAGES if runs]
            probes += [line for run in runs[:1] if "probe" in run[STAGES[-1]] for line in _probe_rows(name, runs)]
        lines = {name: f"{100 * results['bounds'][name]['rate']:.1f}" for name in ("random", "optimal")}
        seeds = ", ".join(sorted({seed for runs in results["agents"].values() for seed in runs}, key=int))
        shown = "\n".join(f"- **{name}**: {agent.title}" for name, agent in AGENTS.items())
        agents = SEEING.format(
            shown=shown,
            header=HEADER,
            recipe=RECIPE,
            levels=results["levels"],
            seeds=seeds,
            rows="\n".join(rows),
            probes=PROBES.format(rows="\n".join(probes)) if probes else "",
            machine=results["agents_machine"],
            **lines,
        )
    text = PAGE.format(machine=results["machine"], repeats=REPEATS, speed=speeds, agents=agents)
    return text.rstrip() + "\n"


def _row_of(name: str, stage: str, runs: Sequence[dict[str, Any]], results: Mapping[str, Any]) -> str:
    """The row of an agent after one of its stages, over its seeds."""
    optimal = results["bounds"]["optimal"]["rate"]
    each = [run[stage] for run in runs]
    own, planned = ([found[what]["rate"] for found in each] for what in ("success", "planned"))
    cells = [
        _mean(own),
        *(_mean([found[what] for found in each]) for what in ("boards", "cells", "things")),
        _mean(planned),
        _mean([optimal - rate for rate in planned], least=-100),
        _mean([with_planner - alone for with_planner, alone in zip(planned, own, strict=True)], least=-100),
    ]
    last = stage == STAGES[-1]
    minutes = f"{sum(run['core_s'] for run in runs) / len(runs) / 60:.0f}" if last else ""
    more = _mean([run["more_imitation"]["rate"] for run in runs]) if last else ""
    return f"| {name} | {stage} | {' | '.join(cells)} | {more} | {minutes} |"


def _probe_rows(name: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    """What a probe reads from each layer of an agent, and from the same model untrained."""
    probes = {stage: [run[stage]["probe"] for run in runs] for stage in STAGES}
    rows = []
    for layer in probes[STAGES[-1]][0]["trained"]:
        sources = [[p["untrained"][layer] for p in probes[STAGES[0]]]]
        sources += [[p["trained"][layer] for p in probes[stage]] for stage in STAGES]
        shares = [_mean([share[what] for share in source]) for source in sources for what in ("cells", "things")]
        rows.append(f"| {name} | {layer} | {' | '.join(shares)} |")
    guess = [_mean([p["commonest"][what] for p in probes[STAGES[-1]]]) for what in ("cells", "things")]
    rows.append(f"| always the commonest tile | - | {' | '.join(guess * 3)} |")
    return rows


def _mean(values: Sequence[float | None], least: int = 0) -> str:
    """A mean over seeds in %, with Student's 95 % interval where seeds differ; a dash where there is none.

    The interval is clipped to ``least``, 0 for shares, and 100.
    """
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    found = mean_interval(known)
    interval = f" ({max(least, found.low):.0f} to {min(100, found.high):.0f})" if len(set(known)) > 1 else ""
    return f"{found.value:.1f}{interval}"


if __name__ == "__main__":
    raise SystemExit(main())
