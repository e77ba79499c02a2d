"""The episodes of an iteration: fresh levels of the training split, of one game or of several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ragen_agent.config import Config
from ragen_agent.rollout import Instance, group
from ragen_agent.token_mdp import TokenMDP, Trajectory
from ragen_agent.training.policy import Policy
from ragen_agent.training.tasks import derive_seed, draw_games, games_at

__all__ = ["RolloutWorker"]

LEVELS, SAMPLING = 4, 5  # the second number of `derive_seed`


class RolloutWorker:
    """Token processes for the games that are trained on, made when a game or a stage first comes up."""

    def __init__(self, config: Config, agent: Policy) -> None:
        self.config, self.agent = config, agent
        self._processes: list[tuple[Config, list[TokenMDP]]] = []

    def play(self, iteration: int) -> tuple[list[Trajectory], list[str]]:
        """`groups` times `members` episodes, a group's members side by side.

        Returns:
            the trajectories, and the name of each group's game.
        """
        settings, seed = self.config.training, self.config.seed
        instances = self.instances(iteration)
        shares = games_at(self.config, iteration)
        chosen = draw_games(shares, seed, iteration, settings.groups)
        self._processes = [(c, p) for c, p in self._processes if any(share.config == c for share in shares)]
        played: dict[int, Trajectory] = {}
        for index, share in enumerate(shares):
            places = np.flatnonzero(np.repeat(chosen == index, settings.group_size)).tolist()
            # One game samples with the seed of the iteration, several with one each, lest they share their draws.
            path = (iteration,) if len(shares) == 1 else (iteration, 1 + index)
            if places:
                episodes = self.agent.play(
                    self._of(share.config),
                    [instances[place] for place in places],
                    settings.temperature,
                    derive_seed(seed, SAMPLING, *path),
                )
                played.update(zip(places, episodes, strict=True))
        return [played[place] for place in range(len(instances))], [shares[i].config.game for i in chosen]

    def instances(self, iteration: int) -> list[Instance]:
        """What an iteration plays, a group's members side by side."""
        settings, seed = self.config.training, self.config.seed
        rng = np.random.default_rng(derive_seed(seed, LEVELS, iteration))
        instances = group([int(s) for s in rng.integers(2**62, size=settings.groups)], settings.group_size)
        if settings.shared_noise:
            instances = [replace(instance, noise_seed=instance.seed) for instance in instances]
        return instances

    def _of(self, config: Config) -> list[TokenMDP]:
        found = [processes for settings, processes in self._processes if settings == config]
        if not found:
            count = min(config.training.groups * config.training.group_size, config.evaluation.batch)
            found = [replace(self.agent, config=config).processes("train", count)]
            self._processes.append((config, found[0]))
        return found[0]
