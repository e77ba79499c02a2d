"""Agents that are shown the same levels in different ways, and what each loses to seeing and to planning.

All are the same small visual model, trained alike; only what the messages show differs. Each reply writes the board
down in rows of symbols before it answers, so the two can be measured apart:

- *seeing*: how much of what it writes is true, and, for pictures, what a linear probe reads from the model's hidden
  states at the visual tokens, without any reply;
- *planning*: a planner plays in place of the agent. In every turn it takes the board that the agent says it sees,
  right or wrong, and plays the best moves on that board. What it lacks to optimal play is lost to seeing; what the
  agent itself lacks to it is lost to planning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from ragen_agent.config import Config
from ragen_agent.inference.vision import ImageTable
from ragen_agent.run.evaluation import baselines, fixed_instances, play_fixed, rate_of_played, without_failed
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import make_env, make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.text import EDGE
from ragen_gym.envs.messages import plain_text
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.turn import TurnEnv, make_turn

__all__ = ["AGENTS", "RECIPE", "Agent", "PlannedEnv", "Probe", "bounds", "measure", "said_cells"]

RECIPE = "vision-frozenlake"
PROBED = 600, 200  # boards that a probe is fitted on, of the training split, and tested on
RIDGE = 1.0
BATCH = 50


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


def bounds(config: Config, levels: int) -> dict[str, dict[str, Any]]:
    """The rates of random replies and of optimal play on the levels."""
    env = make_env(config, config.evaluation.split)
    return {name: rate.to_dict() for name, rate in baselines(env, fixed_instances(env, levels)).items()}


def measure(run: Path, stage: str, levels: int, probed: tuple[int, int] = PROBED) -> dict[str, Any]:
    """Seeing and planning of a run's agent, ``stage`` being "imitation" or "reinforcement".

    ``success`` and ``planned`` are rates on the levels, of the agent and of the planner on the boards that it says it
    sees; ``boards``, ``cells`` and ``things`` are shares of what its replies without fault write down that is right;
    ``malformed`` is the share of replies with a fault. ``probe`` is there for pictures: by layer the shares of cells
    and things that a linear probe reads right on levels of the split of evaluation, next to the same for a model with
    random weights and to always guessing the commonest tile.
    """
    folder, trained = RunFolder.reopen(run)
    config = replace(trained, evaluation=replace(trained.evaluation, levels=levels))
    policy = Policy.build(config, {"imitation": folder.warm, "reinforcement": folder.checkpoint}[stage])
    env = make_game_env(config, config.evaluation.split)
    instances = fixed_instances(env, levels)
    played = play_fixed(policy, instances)
    planned = play_fixed(policy, instances, processes=_planned(policy, min(config.evaluation.batch, levels)))
    found: dict[str, Any] = {"success": rate_of_played(played).to_dict(), "planned": rate_of_played(planned).to_dict()}
    found |= _said(played, instances, env)
    if config.turns.observation == "image":
        probe = Probe(config, *probed)
        shares = probe.shares(policy)
        untrained = Policy.build(replace(config, model=""))
        found["probe"] = {"trained": shares, "untrained": probe.shares(untrained), "commonest": probe.commonest}
    return found


def _planned(policy: Policy, count: int) -> list[TokenMDP]:
    """Token processes in which the planner plays."""
    config = policy.config

    def process() -> TokenMDP:
        env = PlannedEnv(make_game_env(config, config.evaluation.split), config.env_options)
        return TokenMDP.from_settings(env, policy.chat, config.turns)

    return [process() for _ in range(count)]


class Description(NamedTuple):
    """Statement of a reply about a board."""

    turn: int  # from 0
    part: str  # "observation" or "prediction"
    said: str
    truth: str  # what it would say of the true board
    right: bool  # whether it is exactly right


def descriptions(trajectory: Trajectory, noise_seed: int, env: TurnEnv) -> list[Description]:
    """Statements about the boards in an episode's replies without fault.

    Args:
        trajectory: an episode that was played from its start.
        noise_seed: of its transition noise.
        env: an environment like its own, in which it is played again.

    Raises:
        ValueError: the episode goes on otherwise there.
    """
    env.reset(seed=trajectory.seed, options={"noise_seed": noise_seed})
    replies = [plain_text(message["content"]) for message in trajectory.messages if message["role"] == "assistant"]
    found = []
    for turn, (text, reward) in enumerate(zip(replies, trajectory.turn_rewards, strict=True)):
        before = env.env.state[0]
        _, earned, _, _, info = env.step(text)
        if earned != reward:
            raise ValueError(
                f"turn {turn + 1} of an episode on level {trajectory.level_id} earned {reward:g}, but {earned:g} when "
                "it was played again: give the environment and the noise seed with which it was played."
            )
        reply = info["reply"]
        boards = {"observation": before, "prediction": env.env.state[0]}
        for part in () if reply.problem else env.config.state_parts:
            truth = env.state_text.write(boards[part])
            found.append(Description(turn, part, getattr(reply, part), truth, info[f"{part}_right"]))
    return found


def _said(played: Sequence[Trajectory], instances: Sequence[Instance], env: TurnEnv) -> dict[str, float | None]:
    """Shares of what the replies of some episodes write down."""
    turns = sum(len(t.turn_ends) for t in without_failed(played))
    found = [
        each
        for t, instance in zip(played, instances, strict=True)
        for each in ([] if t.failure is not None else descriptions(t, instance.noise_seed, env))
    ]
    shares: dict[str, float | None] = {"malformed": 1 - len(found) / turns}
    if not found:
        return shares | dict.fromkeys(("boards", "cells", "things"))
    ground = frozenset(env.env.vocabulary.symbols[tile] for tile in env.game.ground_tiles)
    cells = [said_cells(each.said, each.truth, ground) for each in found]
    total = Cells(*(sum(column) for column in zip(*cells, strict=True)))
    return shares | {
        "boards": sum(each.right for each in found) / len(found),
        "cells": total.right / total.cells,
        "things": total.things_right / total.things,
    }


class Probe:
    """Reads boards from the hidden states at the visual tokens, one token a tile, by ridge regression to each kind.

    Args:
        config: of an agent that is shown pictures.
        fitted, tested: numbers of boards, of the training split and of the split of evaluation.

    Raises:
        ValueError: pictures with more or fewer visual tokens than tiles.
    """

    def __init__(self, config: Config, fitted: int, tested: int) -> None:
        self._kinds = len(make_game_env(config, None).game.Tile)
        self._splits = (("train", fitted), (config.evaluation.split, tested))
        self._config = config
        self._boards = [self._tiles(split, count) for split, count in self._splits]
        env = make_game_env(config, None)
        self._is_thing = ~np.isin(self._boards[1], [int(tile) for tile in env.game.ground_tiles])

    @property
    def commonest(self) -> dict[str, float]:
        """The shares that are right where every cell is taken for the commonest tile of the boards it is fitted on."""
        guess = np.bincount(self._boards[0].ravel()).argmax()
        return self._shares(np.full_like(self._boards[1], guess))

    def shares(self, policy: Policy) -> dict[str, dict[str, float]]:
        """The shares of cells and things that are read right, by layer: 0 is the vision encoder's output."""
        fitted, tested = (self._states(policy, split, count) for split, count in self._splits)
        wanted = np.eye(self._kinds)[self._boards[0].ravel()]
        found = {}
        for layer, (inputs, others) in enumerate(zip(fitted, tested, strict=True)):
            mean, scale = inputs.mean(0), inputs.std(0) + 1e-6
            x, y = (np.c_[(each - mean) / scale, np.ones(len(each))] for each in (inputs, others))
            weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ wanted)
            found[str(layer)] = self._shares((y @ weights).argmax(1).reshape(self._boards[1].shape))
        return found

    def _shares(self, read: NDArray[Any]) -> dict[str, float]:
        right = read == self._boards[1]
        return {"cells": float(right.mean()), "things": float(right[self._is_thing].mean())}

    def _tiles(self, split: str, count: int) -> NDArray[np.int64]:
        """The tiles of the first boards of a split, int64 (count, cells)."""
        env = make_game_env(self._config, split)
        boards = []
        for seed in range(count):
            env.reset(seed=seed)
            boards.append([tile for tile in env.env.state[0] if tile != EDGE])
        return np.array(boards, np.int64)

    def _states(self, policy: Policy, split: str, count: int) -> list[NDArray[np.float64]]:
        """Of each layer the hidden states at the tiles of these boards, float64 (count * cells, hidden)."""
        process = replace(policy, config=self._config).processes(split, 1)[0]
        layers: list[list[NDArray[np.float64]]] = []
        for first in range(0, count, BATCH):
            table, rows, spans = ImageTable(), [], []
            for seed in range(first, min(first + BATCH, count)):
                process.begin(seed=seed)
                (image,) = process.images
                if image.tokens != self._boards[0].shape[1]:
                    raise ValueError(
                        f"a picture has {image.tokens} visual tokens and {self._boards[0].shape[1]} tiles: the probe "
                        "needs one token a tile, as 28 pixels a tile without coordinates give it."
                    )
                rows.append(table.keys(process.ids, process.images))
                spans.append(slice(image.start, image.end))
            with torch.inference_mode():
                inputs = table.inputs(policy.model, torch.from_numpy(np.stack(rows)))  # equal prompts but for the tiles
                states = policy.model.base_model(**inputs, use_cache=False, output_hidden_states=True).hidden_states
            layers = layers or [[] for _ in states]
            for layer, state in zip(layers, states, strict=True):
                values = state.double().numpy()
                layer += [row[span] for row, span in zip(values, spans, strict=True)]
        return [np.concatenate(layer) for layer in layers]
