"""The supervised phases of a run: demonstrations of its games, and as many steps on them as epochs or cost allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from ragen_agent.config import Config, Demonstrations
from ragen_agent.rollout import Instance
from ragen_agent.sft.demonstrations import demonstrate
from ragen_agent.sft.imitate import imitate
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.batches import by_length
from ragen_agent.training.console import Display
from ragen_agent.training.optimiser import adamw
from ragen_agent.training.policy import Policy
from ragen_agent.training.tasks import derive_seed, draw_games, games_at

__all__ = ["Part", "faultless", "imitation_phase", "parts", "show"]

DEMONSTRATIONS, DEMONSTRATOR, BATCHES = 1, 2, 3  # the second number of `derive_seed`

WARM_UP = 20  # supervised steps until the learning rate is full
PART = 500  # demonstrations from one generator, and between two reports of progress


def faultless(config: Config) -> Demonstrations:
    """The demonstrator without its faults: as many moves as an answer may hold, none of them drawn at random."""
    most = config.turns.max_actions_per_turn
    return replace(config.demonstrations, moves=[0.0] * (most - 1) + [1.0], mistakes=0.0, quality=1.0)


@dataclass(frozen=True)
class Part:
    """Demonstrations that are drawn one after the other from one generator, of the seed `seed`.

    `config`: the settings of their game. `places`: where they stand among all demonstrations.
    """

    config: Config
    how: Demonstrations
    places: list[int]
    instances: list[Instance]
    seed: int


def parts(config: Config, how: Demonstrations) -> Iterator[Part]:
    """All `how.episodes` demonstrations: levels of the run's first games, by their weights."""
    rng = np.random.default_rng(derive_seed(config.seed, DEMONSTRATIONS))
    instances = [Instance(int(s), i) for i, s in enumerate(rng.integers(2**62, size=how.episodes))]
    shares = games_at(config, 0)
    chosen = draw_games(shares, config.seed, 0, len(instances))
    for index, share in enumerate(shares):
        mine = replace(how, thought=share.config.demonstrations.thought)
        all_places = np.flatnonzero(chosen == index).tolist()
        for start in range(0, len(all_places), PART):
            places = all_places[start : start + PART]
            path = (start,) if len(shares) == 1 else (start, 1 + index)
            seed = derive_seed(config.seed, DEMONSTRATOR, *path)
            yield Part(share.config, mine, places, [instances[place] for place in places], seed)


def show(config: Config, agent: Policy, how: Demonstrations, display: Display) -> list[Trajectory]:
    """`how.episodes` demonstrations on training levels of the run's first games, by their weights."""
    display.begin("demonstrations", how.episodes)
    shown: dict[int, Trajectory] = {}
    process, game = None, None
    for part in parts(config, how):
        if process is None or part.config != game:
            process, game = replace(agent, config=part.config).processes("train", 1)[0], part.config
        episodes = demonstrate(process, part.instances, part.how, part.seed)
        shown.update(zip(part.places, episodes, strict=True))
        display.advance({}, len(part.places))
    display.end()
    return [shown[place] for place in range(how.episodes)]


def imitation_phase(
    config: Config,
    agent: Policy,
    rows: list[Trajectory],
    phase: str,
    display: Display,
    *,
    epochs: int = 0,
    tokens: int = 0,
    stream: int = 0,
) -> None:
    """Supervised steps for so many epochs, or until so many tokens are spent."""
    warm = config.warm_start
    generator = torch.Generator().manual_seed(derive_seed(config.seed, BATCHES, stream))
    plan = list(_batches([len(t.ids) for t in rows], warm.batch, generator, epochs, tokens))
    optimiser = adamw(agent.model, warm.learning_rate, betas=(0.9, 0.99))
    display.begin(phase, len(plan))
    imitate(
        agent.model,
        optimiser,
        ([rows[index] for index in batch] for batch in plan),
        agent.engine.bias,
        rate=lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - 0.9 * step / len(plan)),
        report=lambda loss: display.advance({"loss": loss}),
    )
    display.end()


def _batches(
    lengths: list[int], size: int, generator: torch.Generator, epochs: int, tokens: int
) -> Iterator[list[int]]:
    """Batches of `epochs` epochs, or as many as fit into `tokens`."""
    for _ in range(epochs):
        yield from by_length(lengths, size, generator)
    while not epochs:
        for batch in by_length(lengths, size, generator):
            tokens -= sum(lengths[index] for index in batch)
            if tokens < 0:
                return
            yield batch
