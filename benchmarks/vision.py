"""Agents that are shown the same levels in different ways, and what each loses to seeing and to planning.

All are the same small visual model, trained alike; only the messages differ. Each reply writes the board down before it
answers. *Seeing* is how much of that is true. For *planning* the best moves on that board are played in place of the
agent's. ``python -m benchmarks.vision`` goes on where it was stopped, and writes ``vision.json`` and ``vision.md``
after each run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from benchmarks import machine, markdown_table, page_parser, read_results, write_results
from benchmarks.recipes import train
from ragen_agent.config import with_settings
from ragen_agent.run.evaluation import baselines, evaluated_levels, fixed_instances, play_fixed, rate_of_played
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.stats import mean_interval
from ragen_gym.core.storage import write_atomic
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv, make_turn

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
seeing**, and what the agent lacks to the planner is **lost to planning**. Random replies reach {random} and the blind
script {blind}, both computed. *More imitation*: success after further imitation at the cost of the reinforcement.
Core-minutes are of a whole run.

{table}

Machine: {machine}.
"""
COLUMNS = (
    *("shown", "after", "success", "boards", "cells", "things", "planner", "**lost to seeing**"),
    *("**lost to planning**", "more imitation", "core-minutes"),
)

STAGES = {"imitation": "warm", "reinforcement": "checkpoint"}
"""The folder of a run's weights by stage."""


class Agent(NamedTuple):
    """View of an agent."""

    title: str
    settings: tuple[str, ...]  # over those of the recipe

    @property
    def arguments(self) -> list[str]:
        """Of ``ragen-agent train``."""
        chosen = ("turns.state_format=symbols", *self.settings)
        return ["--recipe", RECIPE, *(word for setting in chosen for word in ("--set", setting))]


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
    """Train and measure what is missing, and write the page."""
    parser = page_parser("vision", __doc__)
    every = list(AGENTS)
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="AGENT", help=", ".join(every))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    parser.add_argument("--levels", type=int, default=256, metavar="N", help="held-out levels (default 256)")
    parser.add_argument("--runs", type=Path, default=Path("runs/vision"), metavar="DIR", help="folder of the runs")
    options = parser.parse_args(argv)
    results = {"agents": {}, "levels": options.levels, **read_results(options.out, "vision")}
    if results["levels"] != options.levels:
        parser.error(f"the record in {options.out} is of {results['levels']} levels: give --levels of that number.")
    for seed in options.seeds:
        for name in (name for name in AGENTS if name in options.only):
            _train_and_measure(name, seed, results, options)
            results["machine"] = machine("torch", "transformers")
            write_results(options.out, "vision", results, _page(results))
    return 0


def _train_and_measure(name: str, seed: int, results: dict[str, Any], options: argparse.Namespace) -> None:
    """Add what an agent's run cost and what its models see and plan, before and after reinforcement."""
    mine = results["agents"].setdefault(name, {}).setdefault(str(seed), {"core_s": 0.0})
    run, begun = options.runs / f"{name}-seed{seed}", time.process_time()
    try:
        mine["more_imitation"] = train(run, *AGENTS[name].arguments, "--seed", str(seed))["more_imitation"]
    finally:  # what an interrupted run spent is spent
        mine["core_s"] += time.process_time() - begun
        write_atomic(options.out / "vision.json", json.dumps(results, indent=1) + "\n")
    if "bounds" not in results:
        config = with_settings(RunFolder.reopen(run)[1], {"evaluation": {"levels": options.levels}})
        results["bounds"] = {line: rate.to_dict() for line, rate in baselines(*evaluated_levels(config)).items()}
    for stage in STAGES:
        if stage not in mine:
            mine[stage] = measure(run, stage, options.levels)
            rates = {what: f"{100 * mine[stage][what]['rate']:.1f} %" for what in ("success", "planned")}
            print(f"{name}, seed {seed}, {stage}: success {rates['success']}, planner on what it says it sees "
                  f"{rates['planned']}; {mine['core_s'] / 60:.1f} core-minutes of training", flush=True)  # fmt: skip


def measure(run: Path, stage: str, levels: int) -> dict[str, Any]:
    """Seeing and planning of a run's agent after one of ``STAGES``.

    ``boards``, ``cells`` and ``things`` are shares of what its well-formed replies write down that is right.
    """
    folder, trained = RunFolder.reopen(run)
    config = with_settings(trained, {"evaluation": {"levels": levels}})
    policy = Policy.build(config, folder.path / STAGES[stage])
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


def _page(results: Mapping[str, Any]) -> str:
    agents = results["agents"]
    measured = {name: [run for run in runs.values() if "reinforcement" in run] for name, runs in agents.items()}
    seeds = sorted({seed for runs in agents.values() for seed in runs}, key=int)
    optimal = results["bounds"]["optimal"]["rate"]
    rows = [_row_of(name, stage, measured[name], optimal) for name in AGENTS if measured.get(name) for stage in STAGES]
    return PAGE.format(
        recipe=RECIPE,
        shown="\n".join(f"- **{name}**: {agent.title}" for name, agent in AGENTS.items()),
        levels=results["levels"],
        seeds=", ".join(seeds),
        table=markdown_table(COLUMNS, rows),
        machine=results["machine"],
        **{name: f"{100 * rate['rate']:.1f}" for name, rate in results["bounds"].items()},
    )


def _row_of(name: str, stage: str, runs: Sequence[dict[str, Any]], optimal: float) -> list[str]:
    """The row of an agent after one of its stages, over its seeds."""
    each = [run[stage] for run in runs]
    own, planned = ([found[what]["rate"] for found in each] for what in ("success", "planned"))
    last = stage == "reinforcement"
    return [
        name,
        stage,
        _mean(own),
        *(_mean([found[what] for found in each]) for what in ("boards", "cells", "things")),
        _mean(planned),
        _mean([optimal - rate for rate in planned], least=-100),
        _mean([with_planner - alone for with_planner, alone in zip(planned, own, strict=True)], least=-100),
        _mean([run["more_imitation"]["rate"] for run in runs]) if last else "",
        f"{sum(run['core_s'] for run in runs) / len(runs) / 60:.0f}" if last else "",
    ]


def _mean(values: Sequence[float | None], least: int = 0) -> str:
    """A mean over seeds in %, with Student's 95 % interval where seeds differ; a dash where there is none.

    The interval is clipped to ``least`` and 100.
    """
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    found = mean_interval(known)
    interval = f" ({max(least, found.low):.0f} to {min(100, found.high):.0f})" if len(set(known)) > 1 else ""
    return f"{found.value:.1f}{interval}"


if __name__ == "__main__":
    raise SystemExit(main())
