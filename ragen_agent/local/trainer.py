"""Reinforcement: play, score, update, measure, write down, again and again (StarPO and StarPO-S)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ragen_agent.algo import NO_SPREAD
from ragen_agent.config import Config
from ragen_agent.config.rules import ADVANTAGE_RULES
from ragen_agent.local.monitor import Monitor
from ragen_agent.local.policy_update import Critic, Learner, Targets, update
from ragen_agent.local.replay_buffer import KeptEpisodes, ReplayBuffer
from ragen_agent.local.rollout_worker import RolloutWorker
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.console import Display
from ragen_agent.training.curves import TensorBoardWriter
from ragen_agent.training.evaluation import without_failed
from ragen_agent.training.iteration import ScoredGroups, rewarded, score
from ragen_agent.training.lora import adapt, load_trained, merge, save_adapter, trained
from ragen_agent.training.optimiser import adamw
from ragen_agent.training.policy import Policy
from ragen_agent.training.replies import piece_decoder
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import derive_seed

__all__ = ["PATIENCE", "Reinforcement"]

MINIBATCHES, FILTER, ADAPTER = 6, 8, 9  # the second number of `derive_seed`

ROLLOUT_COST = 2  # what a token of a rollout costs, in tokens that go forward and backward
PATIENCE = 3  # iterations without anything to learn from before a run is called dead
SHOWN = 2  # episodes of each iteration that are written down


class Reinforcement:
    """The iterations of one run from the last saved one on.

    `spent` is what they cost so far in the unit of `ragen_agent.local.run`; `wall_s` says how long the run took.
    """

    def __init__(
        self, config: Config, agent: Policy, folder: RunFolder, display: Display, state: Mapping[str, Any] | None
    ) -> None:
        self.config, self.agent, self.folder, self.display = config, agent, folder, display
        self.policy = _policy(config, agent)
        self.players = RolloutWorker(config, agent)
        self.replay = ReplayBuffer(config.training.replay)
        self.watch = Monitor(config, agent, folder, display)
        self.iteration = self.spent = self.still = 0
        if state is not None:
            self.iteration, self.spent, self.still = state["iteration"], state["spent"], state["still"]
            self.replay.restore(state.get("replay", []))
            self._restore(state)

    def run(self, wall_s: Callable[[], float]) -> None:
        """Iterates until the last iteration or a reason to stop, which is shown."""
        settings = self.config.training
        begun = self.iteration
        events = TensorBoardWriter(self.folder) if self.config.diagnostics.tensorboard else None
        self.display.begin("reinforcement", settings.iterations, self.iteration)
        try:
            while self.iteration < settings.iterations and not self.reason:
                record, shown = self._iterate()
                self.folder.append(self.folder.metrics, [record])
                self.folder.append(self.folder.episodes, shown)
                self.watch.records.append(record)
                self.iteration += 1
                if events:
                    events.add(record)
                self.display.advance(record)
                over = self.iteration == settings.iterations or bool(self.reason)
                if over or self.iteration % settings.save_every == 0:
                    self._save(wall_s())
        finally:
            self.display.end()
            if events:
                events.close()
        if self.reason and self.iteration > begun:
            self.display.say(self.reason)

    @property
    def reason(self) -> str:
        """Why to stop before the last iteration, or the empty text; a function of what was written down."""
        return _dead(self.watch.records[-1]) if self.still >= PATIENCE else self.watch.reason

    def _iterate(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration; its record and the episodes to write down."""
        settings, seed, started = self.config.training, self.config.seed, time.monotonic()
        played, games = self.players.play(self.iteration)
        decoded = time.monotonic()
        whole = without_failed(played)
        learned = rewarded(played, settings.format_reward)
        scored = score(learned, settings, derive_seed(seed, FILTER, self.iteration))
        self.still = self.still + 1 if _teaches_nothing(scored, self.config) else 0
        figures = self.watch.before_update(self.policy, learned, scored, self.iteration)
        rows = scored.kept.flatten().nonzero().flatten().tolist()
        measured: dict[str, float] = {"train_tokens": 0}
        taught: list[Targets] = []
        kept = self.replay.joined(KeptEpisodes.of(learned, scored) if rows and not self.still else KeptEpisodes.none())
        if rows and not self.still:
            measured = update(
                self.policy,
                kept.trajectories,
                kept.advantages,
                settings,
                derive_seed(seed, MINIBATCHES, self.iteration),
                kept.weights if settings.reweight else None,
                taught.append,
            )
        self.spent += ROLLOUT_COST * sum(len(t.ids) for t in played) + int(measured["train_tokens"])
        record: dict[str, Any] = {
            "iteration": self.iteration,
            "success": float(np.mean([t.success for t in whole])),
            **_by_game(played, games, settings.group_size),
            "return": float(np.mean([t.total_reward for t in whole])),
            "spread": float(scored.spread.mean()),
            "kept": len(rows),
            "failed": sum(t.failure is not None for t in played),
            "reply_tokens": float(np.mean([t.sampled.sum() / max(1, len(t.turn_ends)) for t in played])),
            **measured,
            **({} if rows and not self.still else {"empty_updates": 1}),
            **({"replayed": len(kept.trajectories) - len(rows)} if settings.replay else {}),
            **figures,
            "tokens_per_s": sum(int(t.sampled.sum()) for t in played) / (decoded - started),
        }
        record |= self.watch.after_update(record)
        record |= {"diagnostics_s": self.watch.take_costs(), "seconds": time.monotonic() - started}
        shown = self._shown(played, rows, taught)
        return record, shown

    def _shown(self, played: list[Trajectory], rows: list[int], taught: list[Targets]) -> list[dict[str, Any]]:
        """The first episodes of the iteration and those of the group it learned most from: its best and its worst.

        Beside the trajectory: `noise_seed`, by which it can be played again; `kept`, whether it was learned from; and
        if so `advantages`, of its sampled tokens.
        """
        instances = self.players.instances(self.iteration)
        places = list(range(min(SHOWN, len(played))))
        if rows:
            returns = np.array([t.total_reward for t in played]).reshape(-1, self.config.training.group_size)
            groups = sorted({row // self.config.training.group_size for row in rows})
            best = max(groups, key=lambda index: float(returns[index].std()))
            mine = [row for row in rows if row // self.config.training.group_size == best]
            ends = (max(mine, key=returns.ravel().__getitem__), min(mine, key=returns.ravel().__getitem__))
            places = list(dict.fromkeys([*places, *ends]))
        shown = []
        for place in places:
            record: dict[str, Any] = {"phase": "train", "iteration": self.iteration, **played[place].to_dict()}
            record |= {"noise_seed": instances[place].noise_seed, "kept": place in rows}
            if place in rows and taught:
                advantages = taught[0]["advantages"][rows.index(place), : len(played[place].ids)].cpu()
                record["advantages"] = [round(a, 4) for a in advantages[played[place].sampled].tolist()]
            shown.append(record)
        return shown

    def merge(self) -> None:
        """After the last iteration: writes down the adapter, if there is one, and makes it part of the weights."""
        if self.policy.adapter is not None:
            save_adapter(self.policy.adapter, self.folder.adapter, self.folder.warm)
            merge(self.policy.adapter)

    def _save(self, wall_s: float) -> None:
        modules, optimisers = _modules(self.policy), _optimisers(self.policy)
        state: dict[str, Any] = {name: trained(module) for name, module in modules.items()}
        state |= {name: optimiser.state_dict() for name, optimiser in optimisers.items()}
        counts = {"iteration": self.iteration, "spent": self.spent, "still": self.still}
        replay = {"replay": self.replay.state()} if self.config.training.replay else {}
        self.folder.save_state({**state, **counts, **replay, "wall_s": wall_s})

    def _restore(self, state: Mapping[str, Any]) -> None:
        try:
            for name, module in _modules(self.policy).items():
                load_trained(module, state[name])
            for name, optimiser in _optimisers(self.policy).items():
                optimiser.load_state_dict(state[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"{self.folder.path / 'state.pt'} does not fit the run's settings: {error}") from error


def _policy(config: Config, agent: Policy) -> Learner:
    settings, model = config.training, agent.model
    adapter = adapt(model, config.lora, derive_seed(config.seed, ADAPTER)) if config.lora.rank else None
    policy = Learner(
        model,
        adamw(model, settings.learning_rate, weight_decay=0.0),
        agent.engine.bias,
        piece=piece_decoder(agent.tokenizer),
        longest=config.turns.max_tokens_per_episode,
        adapter=adapter,
    )
    if settings.critic:
        policy.critic = Critic(model)
        policy.critic_optimiser = adamw(policy.critic, settings.critic_learning_rate, weight_decay=0.0)
    if settings.kl_estimate != "none":
        policy.start = copy.deepcopy(model) if adapter is None else model
    return policy


def _teaches_nothing(scored: ScoredGroups, config: Config) -> bool:
    """Whether no episode did better or worse than what it is compared with."""
    if config.training.critic:  # whose advantages need no spread within groups
        return False
    if ADVANTAGE_RULES[config.training.algo].compares_groups:
        return float(scored.spread.max()) <= NO_SPREAD
    return not bool(scored.advantages.any())


def _by_game(played: list[Trajectory], games: list[str], members: int) -> dict[str, float]:
    """The success of each game of a mixture, where any episode of it was played to the end."""
    if len(set(games)) < 2:
        return {}
    players = np.repeat(games, members)
    of = {
        game: [t.success for t, player in zip(played, players, strict=True) if player == game and t.failure is None]
        for game in games
    }
    return {f"success/{game}": float(np.mean(wins)) for game, wins in of.items() if wins}


def _dead(last: Mapping[str, Any]) -> str:
    verdict = (
        "Every episode succeeds: the game is solved."
        if last["success"] == 1
        else "The run is dead: try a lower training.learning_rate, a longer warm start or another --seed."
    )
    return (
        f"Stopped after iteration {last['iteration'] + 1}: for {PATIENCE} iterations all episodes of each group earned "
        f"the same, so there is nothing to learn from (success {100 * last['success']:.0f} %, "
        f"return {last['return']:.2f}). {verdict}"
    )


def _modules(policy: Learner) -> dict[str, torch.nn.Module]:
    return {"model": policy.model} | ({} if policy.critic is None else {"critic": policy.critic})


def _optimisers(policy: Learner) -> dict[str, torch.optim.Optimizer]:
    critic = policy.critic_optimiser
    return {"optimiser": policy.optimiser} | ({} if critic is None else {"critic_optimiser": critic})
