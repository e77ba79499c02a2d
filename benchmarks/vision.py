"""Agents that are shown the same levels in different ways, and what each loses to seeing and to planning.

All are the same small visual model, trained alike; only the messages differ. Each reply writes the board down before it
answers. *Seeing* is how much of that is true. For *planning* the best moves on that board are played in place of the
agent's. ``python -m benchmarks.vision`` goes on where it was stopped, and writes ``vision.json`` and ``vision.md``
after each run.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from benchmarks import machine, page_parser, write_results
from benchmarks.recipes import train
from ragen_agent.config import Config
from ragen_agent.run.evaluation import baselines, fixed_instances, play_fixed, rate_of_played
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import make_env, make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import write_atomic
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv, make_turn

__all__ = ["main"]

RECIPE = "vision-frozenlake"

PAGE = """\
# Agents that see

Written by `python -m benchmarks.vision`. The same visual model of 0.4M parameters is trained by the recipe `{recipe}`,
its levels shown in different ways:

{shown}

Every reply writes the board in rows of symbols before it answers. On {levels} levels of the test split, in %, over the
seeds {seeds}, with Student's 95 % interval where seeds differ. *Boards*, *cells*, *things*: the shares of what replies
write down that is right; things are all tiles but ground. *Planner*: in every turn the best moves on the board that the
agent says it sees are played instead of its own. What the planner lacks to optimal play ({optimal}) is **lost to
seeing**, and what the agent lacks to the planner is **lost to planning**; random replies reach {random}. *More
imitation*: success after further imitation at the cost of the reinforcement. Core-minutes are of a whole run.

| shown | after | success | boards | cells | things | planner | **lost to seeing** | **lost to planning** | more \
imitation | core-minutes |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}

Machine: {machine}.
"""

#: With ``--quick``: only to see whether it works.
QUICK = (
    *("--set", "training.iterations=1", "--set", "demonstrations.episodes=64", "--set", "evaluation.levels=8"),
    *("--set", "training.groups=4", "--set", "training.minibatch=16", "--set", "warm_start.epochs=1"),
    *("--set", "small_model.hidden=32", "--set", "small_model.layers=1"),
)
QUICK_LEVELS = 8
STAGES = ("imitation", "reinforcement")


@dataclass(frozen=True)
class Agent:
    """View of an agent."""

    title: str
    settings: tuple[str, ...]  # over those of the recipe

    @property
    def arguments(self) -> list[str]:
        """Of ``ragen-agent train``."""
        chosen = ("turns.state_format=symbols", *self.settings)
        return ["--recipe", RECIPE, *(word for setting in chosen for word in ("--set", setting))]


#: By name.
AGENTS = {
    "text": Agent(
        "rows of symbols, and below them coordinates",
        ("turns.observation=text", "env_options.text_format=grid_coord"),
    ),
    "symbols": Agent("rows of symbols", ("turns.observation=text", "env_options.text_format=grid")),
    "coordinates": Agent("coordinates", ("turns.observation=text", "env_options.text_format=coord")),
    "pixels": Agent("a picture, 28 pixels a tile", ("turns.observation=image",)),
}


class PlannedEnv(gymnasium.Wrapper[Any, str, Any, str]):
    """A turn environment in which the best moves on the board that a reply writes down are played, not its own.

    Where a reply writes no board on which one can plan, nothing is played.

    Args:
        env: asks for the board in rows of symbols (``grounding``, ``state_format="symbols"``).
        options: the game's own options.
    """

    def __init__(self, env: TurnEnv, options: dict[str, Any]) -> None:
        super().__init__(env)
        self.turns = env
        self.planner = make_turn(env.name, env.config, **options)

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Plays the planner's reply."""
        said = self.turns.parse(action).observation
        moves = [] if said is None else self._moves(said)
        if not moves:
            return self.turns.step("")
        names = [self.turns.action_names[move] for move in moves]
        return self.turns.step(write_reply(names, f"<observation>{said}</observation>"))

    def _moves(self, said: str) -> list[int]:
        try:
            self.planner.reset(seed=0, options={"level": "\n".join(line.strip() for line in said.strip().splitlines())})
        except ValueError:  # no player, two goals, another size: nothing to plan on
            return []
        return plan_moves(self.planner, min(self.turns.max_actions_per_turn, self.turns.actions_left))


class Cells(NamedTuple):
    """Number of cells that were named right."""

    cells: int
    right: int
    things: int  # of those that are not ground
    things_right: int


def said_cells(said: str, truth: str, ground: frozenset[str]) -> Cells:
    """Correct cells of a board in rows of symbols; ``ground`` are the symbols of mere ground."""
    lines = [line.strip() for line in said.strip().splitlines()]
    pairs = [
        (symbol, lines[row][column] if row < len(lines) and column < len(lines[row]) else "")
        for row, line in enumerate(truth.splitlines())
        for column, symbol in enumerate(line)
    ]
    things = [(true, seen) for true, seen in pairs if true not in ground]
    right, things_right = (sum(true == seen for true, seen in each) for each in (pairs, things))
    return Cells(len(pairs), right, len(things), things_right)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains and measures what is missing, writes; returns the exit code."""
    parser = page_parser("vision", __doc__)
    every = list(AGENTS)
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="AGENT", help=", ".join(every))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--levels", type=int, default=256, metavar="N", help="held-out levels (default 256)")
    parser.add_argument("--runs", type=Path, default=Path("runs/vision"), metavar="DIR", help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see whether it works; give another --out")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.out == Path(__file__).parent:
        parser.error("--quick measures nothing worth keeping: give --out another folder than that of the page.")
    levels = QUICK_LEVELS if arguments.quick else arguments.levels
    file = arguments.out / "vision.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"agents": {}}
    if results.setdefault("levels", levels) != levels:
        parser.error(f"{file} holds rates on {results['levels']} levels: give --levels {results['levels']}.")
    for seed in arguments.seeds:
        for name in (name for name in AGENTS if name in arguments.only):
            _train_and_measure(name, seed, results, arguments)
            results["machine"] = machine("torch", "transformers")
            write_results(arguments.out, "vision", results, _page(results))
    return 0


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
            mine[stage] = measure(run, stage, results["levels"])
            rates = {what: f"{100 * mine[stage][what]['rate']:.1f} %" for what in ("success", "planned")}
            print(f"{name}, seed {seed}, {stage}: success {rates['success']}, planner on what it says it sees "
                  f"{rates['planned']}; {mine['core_s'] / 60:.1f} core-minutes of training", flush=True)  # fmt: skip


def bounds(config: Config, levels: int) -> dict[str, dict[str, Any]]:
    """The rates of random replies and of optimal play on the levels."""
    env = make_env(config, config.evaluation.split)
    return {name: rate.to_dict() for name, rate in baselines(env, fixed_instances(env, levels)).items()}


def measure(run: Path, stage: str, levels: int) -> dict[str, Any]:
    """Seeing and planning of a run's agent, ``stage`` being "imitation" or "reinforcement".

    ``boards``, ``cells`` and ``things`` are shares of what its well-formed replies write down that is right.
    """
    folder, trained = RunFolder.reopen(run)
    config = replace(trained, evaluation=replace(trained.evaluation, levels=levels))
    policy = Policy.build(config, {"imitation": folder.warm, "reinforcement": folder.checkpoint}[stage])
    env = make_game_env(config, config.evaluation.split)
    instances = fixed_instances(env, levels)
    played = play_fixed(policy, instances)
    planned = play_fixed(policy, instances, processes=_planned(policy, min(config.evaluation.batch, levels)))
    found: dict[str, Any] = {"success": rate_of_played(played).to_dict(), "planned": rate_of_played(planned).to_dict()}
    return found | _said(played, instances, env)


def _planned(policy: Policy, count: int) -> list[TokenMDP]:
    """Token processes in which the planner plays."""
    config = policy.config

    def process() -> TokenMDP:
        env = PlannedEnv(make_game_env(config, config.evaluation.split), config.env_options)
        return TokenMDP.from_settings(env, policy.chat, config.turns)

    return [process() for _ in range(count)]


def _said(played: Sequence[Trajectory], instances: Sequence[Instance], env: TurnEnv) -> dict[str, float | None]:
    """Shares of what the replies of some episodes write down; the episodes are played again in ``env``."""
    turns, right, cells = 0, list[bool](), list[Cells]()
    ground = frozenset(env.env.vocabulary.symbols[tile] for tile in env.game.ground_tiles)
    for trajectory, instance in zip(played, instances, strict=True):
        if trajectory.failure is not None:
            continue
        turns += len(trajectory.turn_ends)
        env.reset(seed=trajectory.seed, options={"noise_seed": instance.noise_seed})
        replies = [plain_text(message["content"]) for message in trajectory.messages if message["role"] == "assistant"]
        for text, reward in zip(replies, trajectory.turn_rewards, strict=True):
            truth = env.state_text.write(env.env.state[0])
            _, earned, _, _, info = env.step(text)
            assert earned == reward, "played again with its noise an episode is the same"
            if not info["reply"].problem:
                right.append(info["observation_right"])
                cells.append(said_cells(info["reply"].observation, truth, ground))
    shares: dict[str, float | None] = {"malformed": 1 - len(right) / turns}
    if not right:
        return shares | dict.fromkeys(("boards", "cells", "things"))
    total = Cells(*(sum(column) for column in zip(*cells, strict=True)))
    return shares | {
        "boards": sum(right) / len(right),
        "cells": total.right / total.cells,
        "things": total.things_right / total.things,
    }


def _core_seconds() -> float:
    """Processor time of the programs that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _page(results: Mapping[str, Any]) -> str:
    """The page of these results."""
    measured = {name: [run for run in runs.values() if STAGES[-1] in run] for name, runs in results["agents"].items()}
    seeds = sorted({seed for runs in results["agents"].values() for seed in runs}, key=int)
    rows = [_row_of(name, stage, measured[name], results) for name in AGENTS if measured.get(name) for stage in STAGES]
    return PAGE.format(
        recipe=RECIPE,
        shown="\n".join(f"- **{name}**: {agent.title}" for name, agent in AGENTS.items()),
        levels=results["levels"],
        seeds=", ".join(seeds),
        rows="\n".join(rows),
        machine=results["machine"],
        **{name: f"{100 * results['bounds'][name]['rate']:.1f}" for name in ("random", "optimal")},
    )


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
