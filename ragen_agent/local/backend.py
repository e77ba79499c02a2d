"""The backend of one process: rollouts by the engine, updates by torch, state in ``state.pt``.

The loop is ``ragen_agent.run.loop``; the update is in ``ragen_agent.local.policy_update``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ragen_agent.config import Config, Training
from ragen_agent.inference.vision import ImageTable
from ragen_agent.local.policy_update import Critic, Learner, update
from ragen_agent.models.parameters import (
    adamw,
    adapt,
    load_trained,
    merge,
    restore_optimiser,
    rounding_notice,
    save_adapter,
    trained,
)
from ragen_agent.models.resources import release_freed_memory
from ragen_agent.run.loop import Loop, LoopState, Rollouts
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import SeedStream, derive_seed, draw_games, games_at, level_seeds
from ragen_agent.tokens.rollout import Instance, group
from ragen_agent.tokens.rollout_tree import grow, replay_seeds
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch, distinct_prefixes, rows_of
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.loss import Targets
from ragen_agent.update.metrics import piece_decoder
from ragen_agent.update.scoring import sampled_scores
from ragen_gym.core.stats import Rate
from ragen_gym.envs.reply_env import ReplyEnv

ROLLOUT_COST = 2  # what a token of a rollout costs, in tokens that go forward and backward


class LocalBackend:
    """See ``ragen_agent.run.loop.Backend``; trains ``policy`` in place, from a saved state or the first iteration on.

    ``spent`` is what the run cost so far in the unit of ``ragen_agent.local.run``.
    """

    def __init__(
        self, config: Config, policy: Policy, folder: RunFolder, state: Mapping[str, Any] | None = None
    ) -> None:
        self.config, self.settings, self.folder = config, config.training, folder
        self.rollouts = RolloutWorker(config, policy)
        self.learner = _learner(config, policy)
        self.measured_policy = LearnerDiagnostics(self.learner, config.training)
        self.piece = piece_decoder(policy.tokenizer)
        self.spent = 0
        self._state = state

    def loop(
        self, say: Callable[[str], None] = lambda text: None, validation: Callable[[], Rate] | None = None
    ) -> Loop:
        """The loop over this backend; the arguments are those of ``Loop``."""
        return Loop(self.config, self.folder, self, self.piece, say, validation)

    def rollout(self, number: int, groups: int, refill: int) -> Rollouts:
        """As the protocol says."""
        found = self.rollouts.play(number, self.rollouts.instances(number, groups, refill), refill)
        self.spent += ROLLOUT_COST * distinct_prefixes(rows_of(found.trajectories))
        torch.cuda.empty_cache()  # of what the engine held: the update needs pieces of other sizes
        return found

    def update(self, iteration: Iteration) -> tuple[dict[str, Any], list[list[float]]]:
        """As the protocol says."""
        self.learner.observe(iteration)
        self._set_rates(iteration.number)
        seen: list[Targets] = []
        measured = update(
            self.learner,
            *iteration.update_on,
            self.settings,
            derive_seed(self.config.seed, SeedStream.MINIBATCHES, iteration.number),
            seen.append,
        )
        for optimiser in self._optimisers.values():  # the gradients are as large as the weights
            optimiser.zero_grad(set_to_none=True)
        self.spent += int(measured["train_tokens"])
        release_freed_memory()
        rows = zip(seen[0]["advantages"].cpu(), (iteration.played[row] for row in iteration.rows), strict=False)
        return measured, [found[: len(played.ids)][played.sampled].tolist() for found, played in rows]

    def figures(self, rollouts: Rollouts, record: Mapping[str, Any], waited: float) -> dict[str, Any]:
        """As the protocol says: none."""
        return {}

    def save(self, state: LoopState) -> None:
        """As the protocol says, into the run's ``state.pt``."""
        weights = {name: trained(module) for name, module in self._modules.items()}
        moments = {name: optimiser.state_dict() for name, optimiser in self._optimisers.items()}
        self.folder.save_state({**weights, **moments, "spent": self.spent, **vars(state)})

    def restore(self) -> LoopState:
        """As the protocol says."""
        state, self._state = self._state, None
        if state is None:
            return LoopState()
        try:
            self.spent = state["spent"]
            for name, module in self._modules.items():
                load_trained(module, state[name])
            for name, optimiser in self._optimisers.items():
                restore_optimiser(optimiser, state[name])
            return LoopState(state["iteration"], state["stagnant"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"{self.folder.path / 'state.pt'} does not fit the run's settings: {error}") from error

    def merge(self) -> str | None:
        """After the last iteration: writes down the adapter, if there is one, and makes it part of the weights.

        Returns a notice for the user, if rounding lost much of the adapter.
        """
        if self.learner.adapter is None:
            return None
        save_adapter(self.learner.adapter, self.folder.adapter, self.folder.warm)
        notice = rounding_notice(self.learner.adapter)
        merge(self.learner.adapter)
        return notice

    def _set_rates(self, iteration: int) -> None:
        """The learning rates of this iteration, a function of its number alone, so that resuming needs no state."""
        factor = self.settings.rate_factor(iteration)
        rates = {"optimiser": self.settings.learning_rate, "critic_optimiser": self.settings.critic_learning_rate}
        for name, optimiser in self._optimisers.items():
            for parameters in optimiser.param_groups:
                parameters["lr"] = factor * rates[name]

    @property
    def _modules(self) -> dict[str, torch.nn.Module]:
        critic = self.learner.critic
        return {"model": self.learner.model} | ({} if critic is None else {"critic": critic})

    @property
    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        critic = self.learner.critic_optimiser
        return {"optimiser": self.learner.optimiser} | ({} if critic is None else {"critic_optimiser": critic})


class RolloutWorker:
    """Plays the episodes of an iteration: fresh levels of the training split, of one game or of several."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self._processes: list[tuple[Config, list[TokenMDP]]] = []

    def instances(self, iteration: int, groups: int | None = None, refill: int = 0) -> list[Instance]:
        """Episodes of an iteration: those of a group, next to each other, share a level.

        ``groups`` are by default those of the settings; ``refill`` as of ``level_seeds``.
        """
        settings = self.config.training
        seeds = level_seeds(self.config.seed, iteration, settings.groups if groups is None else groups, refill)
        instances = group(seeds, settings.group_size)
        if settings.shared_noise:
            instances = [replace(instance, noise_seed=instance.seed) for instance in instances]
        return instances

    def play(self, iteration: int, instances: list[Instance], refill: int = 0) -> Rollouts:
        """The episodes in the order of the instances."""
        settings = self.config.training
        games = games_at(self.config, iteration)
        chosen = draw_games(games, self.config.seed, iteration, len(instances) // settings.group_size, refill)
        self._processes = [(c, p) for c, p in self._processes if any(game.config == c for game in games)]
        played: dict[int, Trajectory] = {}
        families: set[int] = set()
        for index, game in enumerate(games):
            rows = np.flatnonzero(np.repeat(chosen == index, settings.group_size)).tolist()
            # One game samples with the seed of the iteration, several with one each: they must not share their draws.
            part = () if len(games) == 1 else (1 + index,)
            path = (iteration, *(part or (0,)), refill) if refill else (iteration, *part)
            if rows:
                processes = self._processes_of(game.config)
                env = processes[0].env.unwrapped
                assert isinstance(env, ReplyEnv)
                families.update(env.level_families({instances[row].seed for row in rows}))
                own = [instances[row] for row in rows]
                episodes = grow(own, settings.branches or [settings.group_size], partial(self._play, processes, path))
                played.update(zip(rows, episodes, strict=True))
        trajectories = [played[row] for row in range(len(instances))]
        return Rollouts(
            trajectories,
            [games[index].config.game for index in chosen],
            replay_seeds(trajectories, instances, settings.branches),
            families,
        )

    def _play(
        self, processes: list[TokenMDP], path: tuple[int, ...], instances: list[Instance], turn: int
    ) -> list[Trajectory]:
        """The episodes that branch at a turn; those of each turn have draws of their own."""
        path = (*(*path, 0, 0)[:3], turn) if turn else path
        seed = derive_seed(self.config.seed, SeedStream.SAMPLING, *path)
        return self.policy.play(processes, instances, self.config.training.temperature, seed)

    def _processes_of(self, config: Config) -> list[TokenMDP]:
        """Token processes for a game, made when the game or a step of the curriculum first comes up."""
        found = [processes for settings, processes in self._processes if settings == config]
        if not found:
            count = min(config.training.groups * config.training.group_size, config.evaluation.batch)
            found = [replace(self.policy, config=config).processes("train", count)]
            self._processes.append((config, found[0]))
        return found[0]


def _learner(config: Config, policy: Policy) -> Learner:
    settings, model = config.training, policy.model
    seed = derive_seed(config.seed, SeedStream.ADAPTER)
    adapter = adapt(model, config.lora, seed) if config.lora.rank else None
    learner = Learner(
        model,
        adamw(model, settings.learning_rate, weight_decay=0.0),
        policy.engine.bias,
        piece=piece_decoder(policy.tokenizer),
        longest=config.turns.max_tokens_per_episode,
        adapter=adapter,
    )
    if settings.critic:
        learner.critic = Critic(model)
        learner.critic_optimiser = adamw(learner.critic, settings.critic_learning_rate, weight_decay=0.0)
    if settings.kl_estimate != "none":
        learner.reference_model = copy.deepcopy(model) if adapter is None else model
    return learner


class LearnerDiagnostics:
    """See ``ragen_agent.run.information.MeasuredPolicy``."""

    def __init__(self, learner: Learner, settings: Training) -> None:
        self.learner, self.settings = learner, settings

    @torch.no_grad()
    def log_probs(self, rows: Sequence[tuple[list[int], list[int]]], images: ImageTable | None = None) -> Tensor:
        """As the protocol says."""
        learner, settings = self.learner, self.settings
        scores = torch.zeros(len(rows), dtype=torch.float64)
        wanted = [index for index, (_, said) in enumerate(rows) if said]
        for part in torch.tensor(wanted).split(settings.minibatch):
            batch = replace(_batch([rows[index] for index in part.tolist()], learner.bias.device), images=images)
            log_probs = sampled_scores(learner.model, batch, learner.bias, settings.temperature).log_probs
            scores[part] = log_probs.sum(dim=1, dtype=torch.float64).cpu()
        return scores


def _batch(rows: Sequence[tuple[list[int], list[int]]], device: torch.device) -> Batch:
    """Pairs of ids padded on the right, the second of each marked as sampled."""
    whole = [torch.tensor([*before, *said]) for before, said in rows]
    marks = [torch.tensor([False] * len(before) + [True] * len(said)) for before, said in rows]
    attention = [torch.ones(len(ids), dtype=torch.long) for ids in whole]
    ids, sampled, attended = (pad_sequence(part, batch_first=True).to(device) for part in (whole, marks, attention))
    return Batch(ids, sampled, attended, torch.zeros(ids.shape, device=device))
