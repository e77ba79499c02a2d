"""The loop of StarPO and StarPO-S in one process: roll out, score, update, log, save (RAGEN, arXiv 2504.20073).

``Trainer.run`` is the loop and ``Trainer._iterate`` one iteration. What both trainers share is in
``ragen_agent.update`` and ``ragen_agent.run``: scores, filter and record in ``iteration``, alarm and reasons to stop in
``early_stopping``. The update is in ``ragen_agent.local.policy_update``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ragen_agent import algo
from ragen_agent.config import Config
from ragen_agent.config.algorithms import GROUPINGS
from ragen_agent.local.diagnostics import LearnerDiagnostics
from ragen_agent.local.policy_update import Critic, Learner, Targets, update
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
from ragen_agent.run.branches import play_trees
from ragen_agent.run.console import Display
from ragen_agent.run.diagnostics import Monitor
from ragen_agent.run.early_stopping import History
from ragen_agent.run.evaluation import (
    evaluated_levels,
    play_fixed,
    rate_of_played,
    validation_settings,
    without_failed,
)
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.run.tracking import track
from ragen_agent.tasks.tasks import SeedStream, derive_seed, draw_games, games_at, level_seeds
from ragen_agent.tokens.rollout import Instance, group
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import distinct_prefixes, rows_of
from ragen_agent.update.iteration import Iteration, undecided
from ragen_agent.update.metrics import piece_decoder
from ragen_agent.update.replay import KeptEpisodes, ReplayBuffer
from ragen_gym.core.command_line import DeferredInterrupt
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import append_json_lines, read_json_lines
from ragen_gym.envs.reply_env import ReplyEnv

__all__ = ["RolloutWorker", "Trainer"]

ROLLOUT_COST = 2  # what a token of a rollout costs, in tokens that go forward and backward


class Trainer:
    """The iterations of one run, which train ``policy`` in place, from the saved ``state`` or the first one on.

    ``spent`` is what they cost so far in the unit of ``ragen_agent.local.run``.
    """

    def __init__(
        self, config: Config, policy: Policy, folder: RunFolder, display: Display, state: Mapping[str, Any] | None
    ) -> None:
        self.config, self.folder, self.display = config, folder, display
        self.settings, self.seed = config.training, config.seed
        self.rollouts = RolloutWorker(config, policy)
        self.learner = _learner(config, policy)
        self.replay = ReplayBuffer(config.training.replay)
        self.history = History(read_json_lines(folder.metrics), config.stops)
        self.monitor = Monitor(config, piece_decoder(policy.tokenizer), _validator(config, policy))
        self.iteration = self.spent = 0
        if state is not None:
            self._restore(state)

    def run(
        self, saved: Callable[[], None] = lambda: None, iterated: Callable[[int], None] = lambda iterations: None
    ) -> None:
        """Iterates until the last iteration or a reason to stop, which is shown.

        Calls ``iterated`` after each iteration, with how many the run has had, and ``saved`` after each save.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the iteration was finished and saved.
        """
        begun, last = self.iteration, self.settings.iterations
        with (
            track(self.config, self.folder) as trackers,
            DeferredInterrupt("iteration", self.display.say) as ctrl_c,
            self.display.progress("reinforcement", last, begun),
        ):
            while self.iteration < last and not self.stop_reason:
                record, episodes = self._iterate()
                append_json_lines(self.folder.metrics, [record])
                append_json_lines(self.folder.episodes, episodes)
                self.iteration += 1
                release_freed_memory()
                for tracker in trackers:
                    tracker.add(record)
                self.display.advance(record)
                iterated(self.iteration)
                ended = self.iteration == last or self.stop_reason or ctrl_c.pressed
                if ended or self.iteration % self.settings.save_every == 0:
                    self._save()
                    saved()
                if ctrl_c.pressed:
                    raise KeyboardInterrupt
        if self.stop_reason and self.iteration > begun:
            self.display.say(self.stop_reason)

    @property
    def stop_reason(self) -> str:
        """Why to stop before the last iteration, or the empty text."""
        return self.history.stop_reason

    def _iterate(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration; its record and the episodes to write down."""
        number, started = self.iteration, time.monotonic()
        instances, played, games = self._play(number)
        without_failed(played)  # raises if nothing is left
        decoded = time.monotonic()
        torch.cuda.empty_cache()  # of what the engine held: the update needs pieces of other sizes

        iteration = Iteration.score_and_filter(  # format reward, return std, filter, advantages
            number,
            played,
            games,
            self.settings,
            self._seed(SeedStream.FILTER),
            self.config.turns.max_tokens_per_turn,
        )
        self.learner.average_entropy = self.history.average_entropy({"entropy_sampled": iteration.entropy_sampled})
        self.learner.entropy_phase = algo.entropy_phase(
            self.settings.entropy_schedule, number / self.settings.iterations
        )
        figures = self.monitor.before_update(LearnerDiagnostics(self.learner, self.settings), iteration)
        self._set_rates(number)
        measured, targets = self._update(iteration)

        self.spent += ROLLOUT_COST * distinct_prefixes(rows_of(played))
        self.spent += int(measured["train_tokens"])
        record: dict[str, Any] = {
            "iteration": number,
            **figures,
            **measured,
            "learning_rate": self.learner.optimiser.param_groups[0]["lr"],
            "tokens_per_s": iteration.sampled_tokens / (decoded - started),
            "seconds_rollout": decoded - started,
        }
        if self.config.program.command:
            record["new_prompts"] = sum(max(0, len(t.contexts) - 1) for t in played)
        record |= self.monitor.validate(number)
        record |= self.monitor.alarm(self.history, record, self.display.say)
        record |= {"diagnostics_s": self.monitor.take_costs(), "seconds": time.monotonic() - started}
        self.history.add(record, iteration.stagnant)
        return record, _episodes(iteration, instances, targets)

    def _play(self, number: int) -> tuple[list[Instance], list[Trajectory], list[str]]:
        """What an iteration plays, the rounds of dynamic sampling included."""
        instances = self.rollouts.instances(number)
        played, games = self.rollouts.play(number, instances)
        for refill in range(1, self.settings.refills + 1):
            lacking = self.settings.groups - len(undecided(played, self.settings))
            if lacking:
                more = self.rollouts.instances(number, lacking, refill)
                episodes, their_games = self.rollouts.play(number, more, refill)
                instances, played, games = instances + more, played + episodes, games + their_games
        return instances, played, games

    def _update(self, iteration: Iteration) -> tuple[dict[str, Any], Targets | None]:
        """Steps on the kept episodes and those of the replay buffer; what was measured, and what the steps read."""
        rows = iteration.rows
        episodes = self.replay.joined(KeptEpisodes.of(iteration, rows))
        replayed = {"replayed": len(episodes.trajectories) - len(rows)} if self.settings.replay else {}
        if not rows:
            return {"train_tokens": 0, "updates": 0, "empty_updates": 1, **replayed}, None
        seen: list[Targets] = []
        measured = update(
            self.learner,
            episodes.trajectories,
            episodes.advantages,
            self.settings,
            self._seed(SeedStream.MINIBATCHES),
            episodes.weights if self.settings.reweight else None,
            seen.append,
        )
        for optimiser in _optimisers(self.learner).values():  # the gradients are as large as the weights
            optimiser.zero_grad(set_to_none=True)
        return {**measured, **replayed}, seen[0]

    def _set_rates(self, iteration: int) -> None:
        """The learning rates of this iteration, a function of its number alone, so that resuming needs no state."""
        factor = self.settings.rate_factor(iteration)
        rates = {"optimiser": self.settings.learning_rate, "critic_optimiser": self.settings.critic_learning_rate}
        for name, optimiser in _optimisers(self.learner).items():
            for parameters in optimiser.param_groups:
                parameters["lr"] = factor * rates[name]

    def merge(self) -> None:
        """After the last iteration: writes down the adapter, if there is one, and makes it part of the weights."""
        if self.learner.adapter is not None:
            save_adapter(self.learner.adapter, self.folder.adapter, self.folder.warm)
            if notice := rounding_notice(self.learner.adapter):
                self.display.say(notice)
            merge(self.learner.adapter)

    def _seed(self, stream: SeedStream) -> int:
        return derive_seed(self.seed, stream, self.iteration)

    def _save(self) -> None:
        self.folder.add_seen(self.rollouts.seen)
        modules, optimisers = _modules(self.learner), _optimisers(self.learner)
        state: dict[str, Any] = {name: trained(module) for name, module in modules.items()}
        state |= {name: optimiser.state_dict() for name, optimiser in optimisers.items()}
        counts = {"iteration": self.iteration, "spent": self.spent, "still": self.history.stagnant}
        replay = {"replay": self.replay.state()} if self.settings.replay else {}
        self.folder.save_state({**state, **counts, **replay})

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.spent, self.history.stagnant = state["iteration"], state["spent"], state["still"]
        self.replay.restore(state.get("replay", []))
        try:
            for name, module in _modules(self.learner).items():
                load_trained(module, state[name])
            for name, optimiser in _optimisers(self.learner).items():
                restore_optimiser(optimiser, state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"{self.folder.path / 'state.pt'} does not fit the run's settings: {error}") from error


class RolloutWorker:
    """Plays the episodes of an iteration: fresh levels of the training split, of one game or of several."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.config, self.policy = config, policy
        #: The families of the levels that were played; see ``ragen_gym.games.game.Game.family``.
        self.seen = set[int]()
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

    def play(self, iteration: int, instances: list[Instance], refill: int = 0) -> tuple[list[Trajectory], list[str]]:
        """The trajectories in the order of the instances, and the name of each group's game."""
        settings = self.config.training
        games = games_at(self.config, iteration)
        chosen = draw_games(games, self.config.seed, iteration, len(instances) // settings.group_size, refill)
        self._processes = [(c, p) for c, p in self._processes if any(game.config == c for game in games)]
        played: dict[int, Trajectory] = {}
        for index, game in enumerate(games):
            rows = np.flatnonzero(np.repeat(chosen == index, settings.group_size)).tolist()
            # One game samples with the seed of the iteration, several with one each: they must not share their draws.
            part = () if len(games) == 1 else (1 + index,)
            path = (iteration, *(part or (0,)), refill) if refill else (iteration, *part)
            if rows:
                processes = self._processes_of(game.config)
                env = processes[0].env.unwrapped
                assert isinstance(env, ReplyEnv)
                self.seen.update(env.level_families({instances[row].seed for row in rows}))
                episodes = self._play(processes, [instances[row] for row in rows], path)
                played.update(zip(rows, episodes, strict=True))
        return [played[row] for row in range(len(instances))], [games[i].config.game for i in chosen]

    def _play(self, processes: list[TokenMDP], instances: list[Instance], path: tuple[int, ...]) -> list[Trajectory]:
        """Episodes of one game; ``path`` goes into the seed of what is sampled."""
        settings = self.config.training

        def play(some: list[Instance], branches: bool) -> list[Trajectory]:
            stream = SeedStream.BRANCHES if branches else SeedStream.SAMPLING
            return self.policy.play(processes, some, settings.temperature, derive_seed(self.config.seed, stream, *path))

        if GROUPINGS[settings.groups_by].branches:
            return play_trees(play, instances, settings)
        return play(instances, False)

    def _processes_of(self, config: Config) -> list[TokenMDP]:
        """Token processes for a game, made when the game or a step of the curriculum first comes up."""
        found = [processes for settings, processes in self._processes if settings == config]
        if not found:
            count = min(config.training.groups * config.training.group_size, config.evaluation.batch)
            found = [replace(self.policy, config=config).processes("train", count)]
            self._processes.append((config, found[0]))
        return found[0]


def _episodes(iteration: Iteration, instances: list[Instance], targets: Targets | None) -> list[dict[str, Any]]:
    """The episodes to write down; those that were learned from with the advantages of their sampled tokens."""
    records, rows = iteration.episode_records([instance.noise_seed for instance in instances]), iteration.rows
    for row, record in records.items():
        if targets is not None and row in rows:
            played = iteration.played[row]
            advantages = targets["advantages"][rows.index(row), : len(played.ids)].cpu()
            record["advantages"] = [round(a, 4) for a in advantages[played.sampled].tolist()]
    return list(records.values())


def _learner(config: Config, policy: Policy) -> Learner:
    """What the updates change: the weights or their adapter, and what the settings ask for next to them."""
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


def _validator(config: Config, policy: Policy) -> Callable[[], Rate] | None:
    """Measures the policy on fixed levels of the split ``validation``; None where no validation is asked for."""
    if not config.stops.validate_every:
        return None
    player = replace(policy, config=validation_settings(config))
    _, instances = evaluated_levels(player.config)
    return lambda: rate_of_played(play_fixed(player, instances))


def _modules(learner: Learner) -> dict[str, torch.nn.Module]:
    return {"model": learner.model} | ({} if learner.critic is None else {"critic": learner.critic})


def _optimisers(learner: Learner) -> dict[str, torch.optim.Optimizer]:
    critic = learner.critic_optimiser
    return {"optimiser": learner.optimiser} | ({} if critic is None else {"critic_optimiser": critic})
