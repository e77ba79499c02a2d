"""A training run from top to bottom: warm start, reinforcement, and the comparisons that say what it was worth.

Phases, each skipped by `resume` when its result is there: make the model, imitate the demonstrations, measure
(before), reinforce, measure (after), imitate the same demonstrations further at the cost of the reinforcement
(more_imitation), imitate a faultless demonstrator at the cost of the warm start (clean_warm_start). Every random
choice is seeded by the run's seed, the phase and the iteration, and the state is saved at whole iterations: on a CPU
a resumed run equals an unbroken one bit for bit.

**What "the same cost" means.** The cost is counted in tokens, so that it is the same on every machine. One unit is one
token that goes forward and backward. A token of a rollout, sampled or read, counts `ROLLOUT_COST` units although it
only goes forward: decoding one token at a time is slow, and with two units more imitation takes about as long on one
CPU core as reinforcement did, rather more than less. More imitation may spend what reinforcement spent.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ragen_agent.algo.filters import NO_SPREAD
from ragen_agent.config import Config, Demonstrations
from ragen_agent.local.agent import Agent, derive, make_env
from ragen_agent.local.batches import by_length
from ragen_agent.local.critic import Critic
from ragen_agent.local.demonstrations import demonstrate, scripted_reply
from ragen_agent.local.display import Display
from ragen_agent.local.evaluation import (
    baselines,
    fixed_instances,
    play_fixed,
    rate_of_played,
    scripted_rate,
    without_failed,
)
from ragen_agent.local.plot import plot_curve
from ragen_agent.local.reinforce import Policy, score, update
from ragen_agent.local.run_folder import RunFolder, read_json_lines
from ragen_agent.local.small_model import save_checkpoint
from ragen_agent.local.warm_start import imitate
from ragen_agent.rollout import Instance, group
from ragen_agent.token_mdp import Trajectory

__all__ = ["Run", "train"]

# The second number of `derive`: what a random choice is for.
MODEL, DEMONSTRATIONS, DEMONSTRATOR, BATCHES, LEVELS, SAMPLING, MINIBATCHES, SCRIPTED = range(8)

ROLLOUT_COST = 2  # what a token of a rollout costs, in tokens that go forward and backward
PATIENCE = 3  # iterations without any spread before a run is called dead
WARM_UP = 20  # supervised steps until the learning rate is full
SHOWN = 2  # episodes of each iteration that are written down


def train(config: Config, folder: RunFolder, display: Display) -> dict[str, Any]:
    """Runs or goes on with the run of `folder`; returns its summary. Raises ValueError for settings that do not fit."""
    run = Run(config, folder, display)
    try:
        run.warm_start()
        run.measure("before")
        run.baselines()
        run.reinforce()
        run.measure("after")
        run.compare_imitation()
        return run.finish()
    except KeyboardInterrupt:
        run.keep()
        raise


class Run:
    """The state of a run between its phases."""

    def __init__(self, config: Config, folder: RunFolder, display: Display) -> None:
        self.config, self.folder, self.display = config, folder, display
        self.summary = folder.read_summary()
        self.state = folder.load_state()
        saved = self.state or {"iteration": 0}
        self.begun = time.monotonic() - max(self.summary.get("wall_s", 0.0), saved.get("wall_s", 0.0))
        self._drop_unfinished(saved["iteration"])
        self.env = make_env(config, config.evaluation.split)
        self.instances = fixed_instances(self.env, config.evaluation.levels)
        self.agent = Agent.build(config, folder.warm if folder.warm.is_dir() else None)
        self.demonstrations: list[Trajectory] = []

    def warm_start(self) -> None:
        """Imitates the demonstrations, unless the run already did or is told not to."""
        if self.folder.warm.is_dir():
            return
        warm = self.config.warm_start
        if warm.epochs:
            self.demonstrations = self._demonstrate(self.config.demonstrations)
            self._imitate(self.agent, self.demonstrations, "warm start", epochs=warm.epochs)
        save_checkpoint(self.agent.model, self.agent.tokenizer, self.folder.warm)

    def reinforce(self) -> None:
        """StarPO-S or StarPO from the last saved iteration on."""
        settings, seed = self.config.training, self.config.seed
        policy = self._policy()
        iteration, spent, still = 0, 0, 0
        if self.state is not None:
            iteration, spent, still = self.state["iteration"], self.state["spent"], self.state["still"]
            self._restore(policy, self.state)
            self.state = None  # as large as the optimiser: not needed again
        processes = self.agent.processes("train", min(settings.groups * settings.members, self.config.evaluation.batch))
        self.display.begin("reinforcement", settings.iterations, iteration)
        while iteration < settings.iterations and still < PATIENCE:
            started = time.monotonic()
            rng = np.random.default_rng(derive(seed, LEVELS, iteration))
            instances = group([int(s) for s in rng.integers(2**62, size=settings.groups)], settings.members)
            played = self.agent.play(processes, instances, settings.temperature, derive(seed, SAMPLING, iteration))
            decoded = time.monotonic()
            whole = without_failed(played)
            advantages, kept, spread = score(played, settings)
            # PPO's advantages come from its critic, so it learns without any spread within groups.
            still = still + 1 if settings.algo == "grpo" and float(spread.max()) <= NO_SPREAD else 0
            rows = kept.flatten().nonzero().flatten().tolist()
            measured: dict[str, float] = {"train_tokens": 0}
            if rows and not still:
                chosen = [played[row] for row in rows]
                shares = advantages.flatten()[rows]
                measured = update(policy, chosen, shares, settings, derive(seed, MINIBATCHES, iteration))
            spent += ROLLOUT_COST * sum(len(t.ids) for t in played) + int(measured["train_tokens"])
            record = {
                "iteration": iteration,
                "success": float(np.mean([t.success for t in whole])),
                "return": float(np.mean([t.total_reward for t in whole])),
                "spread": float(spread.mean()),
                "kept": len(rows),
                "failed": sum(t.failure is not None for t in played),
                "reply_tokens": float(np.mean([t.sampled.sum() / max(1, len(t.turn_ends)) for t in played])),
                **measured,
                "tokens_per_s": sum(int(t.sampled.sum()) for t in played) / (decoded - started),
                "seconds": time.monotonic() - started,
            }
            self.folder.append(self.folder.metrics, [record])
            self.folder.append(
                self.folder.episodes,
                [{"phase": "train", "iteration": iteration, **t.to_dict()} for t in played[:SHOWN]],
            )
            iteration += 1
            self.display.advance(record)
            if iteration % settings.save_every == 0 or iteration == settings.iterations or still >= PATIENCE:
                self._save(policy, iteration, spent, still)
        self.display.end()
        if still >= PATIENCE:
            self.display.say(_stopped(read_json_lines(self.folder.metrics)[-1]))
        self.summary["spent_tokens"] = spent
        save_checkpoint(self.agent.model, self.agent.tokenizer, self.folder.checkpoint)

    def measure(self, row: str, agent: Agent | None = None) -> None:
        """Plays the fixed levels and writes the rate down."""
        if row in self.summary:
            return
        played = play_fixed(agent or self.agent, self.instances)
        self.folder.append(self.folder.episodes, [{"phase": row, **t.to_dict()} for t in played])
        self._note(row, rate_of_played(played).to_dict())

    def baselines(self) -> None:
        """Random and optimal play on the same levels, and the demonstrator if there is one."""
        if "optimal" not in self.summary:
            for row, rate in baselines(self.env, self.instances).items():
                self._note(row, rate.to_dict())
        if "demonstrator" in self.summary or not self.config.warm_start.epochs:
            return
        how = self.config.demonstrations
        rate = scripted_rate(
            self.env, self.instances, lambda env, rng: scripted_reply(env, how, rng), derive(0, SCRIPTED)
        )
        self._note("demonstrator", rate.to_dict())

    def compare_imitation(self) -> None:
        """The two models that never saw a reward: more imitation, and a clean warm start."""
        warm = self.config.warm_start
        if not warm.epochs:
            return
        if "more_imitation" not in self.summary:
            agent = Agent.build(self.config, self.folder.warm)
            self.demonstrations = self.demonstrations or self._demonstrate(self.config.demonstrations)
            self._imitate(
                agent, self.demonstrations, "more imitation", tokens=int(self.summary["spent_tokens"]), stream=1
            )
            self.measure("more_imitation", agent)
        if "clean_warm_start" not in self.summary:
            agent = Agent.build(self.config)
            how = self.config.demonstrations
            most = self.config.turns.max_actions_per_turn
            clean = replace(how, moves=[0.0] * (most - 1) + [1.0], mistakes=0.0)
            self._imitate(agent, self._demonstrate(clean), "clean warm start", epochs=warm.epochs)
            self.measure("clean_warm_start", agent)

    def keep(self) -> None:
        """After an interruption: the checkpoint of the last saved iteration, if reinforcement had begun."""
        self.display.end()
        state = self.folder.load_state()
        if state is not None:
            self.agent.model.load_state_dict(state["model"])
            save_checkpoint(self.agent.model, self.agent.tokenizer, self.folder.checkpoint)
        self.summary["wall_s"] = time.monotonic() - self.begun
        self.folder.write_summary(self.summary)

    def finish(self) -> dict[str, Any]:
        """Draws the curve, prints the table."""
        metrics = read_json_lines(self.folder.metrics)
        plot_curve(metrics, self.summary, self.folder.path / "curve.png", self.config)
        self._note("wall_s", time.monotonic() - self.begun)
        self.display.report(self.config, self.summary, self.folder)
        return self.summary

    def _drop_unfinished(self, iteration: int) -> None:
        """Drops, before anything is appended, torn lines and the records of phases and iterations to be repeated."""
        self.folder.keep(self.folder.metrics, lambda record: record["iteration"] < iteration)
        self.folder.keep(
            self.folder.episodes, lambda e: e["phase"] in self.summary or e.get("iteration", iteration) < iteration
        )

    def _note(self, name: str, value: Any) -> None:
        self.summary[name] = value
        self.summary["wall_s"] = time.monotonic() - self.begun
        self.folder.write_summary(self.summary)
        self.display.rate(name, value)

    def _demonstrate(self, how: Demonstrations) -> list[Trajectory]:
        rng = np.random.default_rng(derive(self.config.seed, DEMONSTRATIONS))
        instances = [Instance(int(s), i) for i, s in enumerate(rng.integers(2**62, size=how.episodes))]
        process = self.agent.processes("train", 1)[0]
        self.display.begin("demonstrations", how.episodes)
        trajectories = []
        for start in range(0, len(instances), 500):
            part = instances[start : start + 500]
            trajectories += demonstrate(process, part, how, derive(self.config.seed, DEMONSTRATOR, start))
            self.display.advance({}, len(part))
        self.display.end()
        return trajectories

    def _imitate(
        self, agent: Agent, rows: list[Trajectory], phase: str, *, epochs: int = 0, tokens: int = 0, stream: int = 0
    ) -> None:
        """Supervised steps for so many epochs, or until so many tokens are spent."""
        warm = self.config.warm_start
        generator = torch.Generator().manual_seed(derive(self.config.seed, BATCHES, stream))
        plan = list(_batches([len(t.ids) for t in rows], warm.batch, generator, epochs, tokens))
        optimiser = torch.optim.AdamW(agent.model.parameters(), lr=warm.learning_rate, betas=(0.9, 0.99))
        self.display.begin(phase, len(plan))
        imitate(
            agent.model,
            optimiser,
            ([rows[index] for index in batch] for batch in plan),
            agent.engine.bias,
            rate=lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - 0.9 * step / len(plan)),
            report=lambda loss: self.display.advance({"loss": loss}),
        )
        self.display.end()

    def _policy(self) -> Policy:
        settings, model = self.config.training, self.agent.model
        policy = Policy(
            model,
            torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.0),
            self.agent.engine.bias,
        )
        if settings.algo == "ppo":
            policy.critic = Critic(model)
            policy.critic_optimiser = torch.optim.AdamW(
                policy.critic.parameters(), settings.critic_learning_rate, weight_decay=0.0
            )
        if not settings.starpo_s and settings.kl:
            policy.start = copy.deepcopy(model)
        return policy

    def _save(self, policy: Policy, iteration: int, spent: int, still: int) -> None:
        state = {name: part.state_dict() for name, part in _parts(policy).items()}
        counts = {"iteration": iteration, "spent": spent, "still": still}
        self.folder.save_state({**state, **counts, "wall_s": time.monotonic() - self.begun})

    def _restore(self, policy: Policy, state: dict[str, Any]) -> None:
        try:
            for name, part in _parts(policy).items():
                part.load_state_dict(state[name])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{self.folder.path / 'state.pt'} does not fit the run's settings: {error}") from error


def _stopped(last: dict[str, Any]) -> str:
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


def _parts(policy: Policy) -> dict[str, Any]:
    parts = {
        "model": policy.model,
        "optimiser": policy.optimiser,
        "critic": policy.critic,
        "critic_optimiser": policy.critic_optimiser,
    }
    return {name: part for name, part in parts.items() if part is not None}


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
