"""A training run from top to bottom: warm start, reinforcement, its gain, and comparisons with imitation on request.

A resumed run skips the phases whose results are there. With ``evaluation.imitation`` it also imitates the same
demonstrations further at the cost of the reinforcement (more_imitation), and an optimal demonstrator at the cost of the
warm start (clean_warm_start). Every random choice is seeded by the run's seed, the phase and the iteration, and the
state is saved at whole iterations: on a CPU a resumed run equals an unbroken one bit for bit.

Cost is counted in tokens that go forward and backward, a prefix that rows of a step share once. A token of a rollout
counts ``ROLLOUT_COST``, since decoding one token at a time is slow: more imitation then takes about as long on a CPU
as reinforcement did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ragen_agent.config import Config, Demonstrations
from ragen_agent.local.backend import LocalBackend
from ragen_agent.models.checkpoint import save_checkpoint
from ragen_agent.models.parameters import load_policy
from ragen_agent.models.resources import gpu_use, peak_memory_gib, place_of, release_freed_memory
from ragen_agent.run.console import Display, plot_curve, run_code_flag
from ragen_agent.run.evaluation import baselines, evaluated_levels, play_fixed, rate_of_played, validation_settings
from ragen_agent.run.hub import push
from ragen_agent.run.model_card import write_model_card
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import IMITATION, RunFolder, resumable
from ragen_agent.run.tracking import check_installed, track
from ragen_agent.sft.demonstrations import demonstrated_families, faultless, generate_demonstrations, measure_baselines
from ragen_agent.sft.trainer import imitate, warm_start
from ragen_agent.tasks.tasks import measured_settings
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.metrics import cost_line
from ragen_gym.core.command_line import DeferredInterrupt, shell_word
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import append_json_lines, read_json_lines


def train(config: Config, folder: RunFolder, display: Display, policy: Policy | None = None) -> dict[str, Any]:
    """Runs or resumes the run of ``folder``; returns its summary.

    ``policy`` is that of a new run, where it is built already.

    Raises:
        ValueError: settings that do not fit.
    """
    with resumable(folder.path, f"ragen-agent train{run_code_flag(config)} --resume"):
        run = TrainingRun(config, folder, display, policy)
        folder.note_versions()
        try:
            run.warm_start()
            run.measure("before")
            run.measure_games("before")
            run.baselines()
            run.reinforce()
            run.measure("after")
            run.measure_games("after")
            if not run.over:
                run.summary.setdefault("trained_s", time.monotonic() - run.begun)
            run.finish()
            run.compare_imitation()
            push(config, run.summary, folder, display.say)
            return run.summary
        except KeyboardInterrupt:
            run.keep()
            raise


class TrainingRun:
    """The state of a run between its phases."""

    def __init__(self, config: Config, folder: RunFolder, display: Display, policy: Policy | None = None) -> None:
        self.config, self.folder, self.display = config, folder, display
        check_installed(config.diagnostics)
        self.summary = folder.read_summary()
        self.state = folder.load_state()
        #: Measured at its end, and its state thrown away: there is nothing to go on with.
        self.over = self.state is None and "after" in self.summary
        self.begun: float = time.monotonic() - self.summary.get("wall_s", 0.0)
        if not self.over:
            folder.drop_unfinished(self.state["iteration"] if self.state else 0)  # before anything is appended
        with display.waiting("preparing the levels and the model"):
            self.env, self.instances = evaluated_levels(config)
            self.policy = policy or Policy.build(config, folder.warm if folder.warm.is_dir() else None)
        if not self.over:
            display.say(f"the model computes on {place_of(self.policy.model)}")
        self.demonstrations: list[Trajectory] = []

    def warm_start(self) -> None:
        """Imitates the demonstrations, unless the run already did or ``warm_start.epochs`` is 0."""
        if self.folder.warm.is_dir():
            return
        self.folder.add_seen(demonstrated_families(self.config))
        self.demonstrations = warm_start(self.config, self.policy, self.folder.warm, self.display, self.folder)
        self.folder.copy_seen(self.folder.warm)

    def reinforce(self, iterated: Callable[[int], None] = lambda done: None) -> None:
        """StarPO-S or StarPO from the last saved iteration on; nothing where the run is over.

        ``iterated`` is called after each iteration, before its state is saved, with how many the run has had. Ctrl-C
        ends the loop after the current iteration.
        """
        if self.over:
            return
        backend = LocalBackend(self.config, self.policy, self.folder, self.state)
        self.state = None  # as large as the optimiser: not needed again
        loop = backend.loop(self.display.say, self._validation)
        loop.restore()
        with (
            track(self.config, self.folder) as trackers,
            DeferredInterrupt("iteration", self.display.say) as ctrl_c,
            self.display.progress("reinforcement", self.config.training.iterations, loop.iteration),
        ):

            def show(record: Mapping[str, Any]) -> None:
                for tracker in trackers:
                    tracker.add(record)
                self.display.advance(record)
                iterated(loop.iteration)

            loop.run(show=show, saved=self.write_summary, interrupted=lambda: ctrl_c.pressed)
        if notice := backend.merge():
            self.display.say(notice)
        if loop.stop_reason:
            self.summary["stopped"] = loop.stop_reason
        self.summary["spent_tokens"] = backend.spent
        self._save_checkpoint()

    @property
    def _validation(self) -> Callable[[], Rate] | None:
        if not self.config.stops.validate_every:
            return None
        player = replace(self.policy, config=validation_settings(self.config))
        _, instances = evaluated_levels(player.config)
        return lambda: rate_of_played(play_fixed(player, instances))

    def measure(self, row: str, policy: Policy | None = None) -> None:
        """Plays the fixed levels and writes the rate down."""
        if row in self.summary:
            return
        played = play_fixed(policy or self.policy, self.instances, self.display, processes=self._processes)
        release_freed_memory()
        rate = rate_of_played(played)  # raises before anything is written where all failed
        append_json_lines(
            self.folder.episodes,
            [
                {"phase": row, **t.to_dict(), "noise_seed": instance.noise_seed}
                for t, instance in zip(played, self.instances, strict=True)
            ],
        )
        self._note(row, rate.to_dict())

    def measure_meanwhile(self, row: str, repetition: int) -> None:
        """Within the reinforcement: writes down the rate of the policy as it is, of a further ``play_fixed``."""
        played = play_fixed(self.policy, self.instances, repetition=repetition, processes=self._processes)
        self.summary[row] = rate_of_played(played).to_dict()
        self.write_summary()

    def measure_games(self, row: str) -> None:
        """The same for the other games of a mixture, with their baselines; into the summary's ``games``."""
        for config in measured_settings(self.config)[1:]:
            rates = self.summary.setdefault("games", {}).setdefault(config.game, {})
            env, instances = evaluated_levels(config)
            if "optimal" not in rates:
                rates.update({name: rate.to_dict() for name, rate in baselines(env, instances).items()})
            if row not in rates:
                rate = rate_of_played(play_fixed(replace(self.policy, config=config), instances, self.display))
                rates[row] = rate.to_dict()
                self.display.say(f"{config.game}, {row}: {rate}")
            self.folder.write_summary(self.summary)

    def baselines(self) -> None:
        """Random, blind and optimal play on the same levels, and the demonstrator if there is one."""
        measure_baselines(self.config, self.env, self.instances, self.summary, self.display)
        self.write_summary()

    def compare_imitation(self) -> None:
        """Two models trained without reward, if they are asked for: more imitation, and a clean warm start."""
        warm = self.config.warm_start
        if not warm.epochs:
            return
        if not self.config.evaluation.imitation:
            command = f"ragen-agent train --resume {shell_word(self.folder.path)} --compare{run_code_flag(self.config)}"
            self.display.say(f"Compare it with imitation at the same cost: {command}")
            return
        if "more_imitation" not in self.summary:
            rows = self.demonstrations or self._demonstrate(self.config.demonstrations)
            spent = int(self.summary["spent_tokens"])
            self._imitate("more_imitation", Policy.build(self.config, self.folder.warm), rows, tokens=spent, stream=1)
        if "clean_warm_start" not in self.summary:
            rows = self._demonstrate(faultless(self.config))
            self._imitate("clean_warm_start", Policy.build(self.config), rows, epochs=warm.epochs)
        self.write_summary()
        write_model_card(self.config, self.summary, self.folder)
        self.display.rates(self.config, self.summary)

    def _imitate(self, name: str, policy: Policy, rows: list[Trajectory], **how: Any) -> None:
        imitate(self.config, policy, rows, name.replace("_", " "), self.display, run=self.folder, **how)
        save_checkpoint(policy.model, policy.tokenizer, self.folder.path / name)
        self.measure(name, policy)
        self.folder.drop_state(IMITATION)

    def keep(self) -> None:
        """After an interruption: the checkpoint of the last saved iteration, if reinforcement had begun."""
        state = self.folder.load_state()
        if state is not None:
            if self.config.lora.rank:  # whose adapter the model at hand may have in it, or not yet, or no more
                self.policy = Policy.build(self.config, self.folder.warm)
            load_policy(self.policy.model, self.config.lora, state["model"])
            self._save_checkpoint()
        self.write_summary()

    def finish(self) -> None:
        """Draws the curve, prints the table."""
        metrics = read_json_lines(self.folder.metrics)
        plot_curve(metrics, self.summary, self.folder.path / "curve.png", self.config)
        self.write_summary()
        write_model_card(self.config, self.summary, self.folder)
        self.display.report(self.config, self.summary, self.folder)
        if line := cost_line(metrics):
            self.display.say(line)

    @cached_property
    def _processes(self) -> list[TokenMDP]:
        """What the fixed levels are played with, whichever policy plays them: making them takes as long as to play."""
        return self.policy.processes(
            self.config.evaluation.split, min(self.config.evaluation.batch, len(self.instances))
        )

    def _save_checkpoint(self) -> None:
        save_checkpoint(self.policy.model, self.policy.tokenizer, self.folder.checkpoint)
        self.folder.copy_seen(self.folder.checkpoint)

    def _demonstrate(self, how: Demonstrations) -> list[Trajectory]:
        return generate_demonstrations(self.config, self.policy, how, self.display)

    def _note(self, name: str, value: Any) -> None:
        self.summary[name] = value
        self.write_summary()
        self.display.rate(name, value)

    def write_summary(self) -> None:
        """Writes the summary with the seconds that the run has taken, the most memory, and its GPU."""
        self.summary["wall_s"] = time.monotonic() - self.begun
        taken = {"memory_gib": peak_memory_gib(), **gpu_use(self.policy.model.device)}
        for name, value in taken.items():
            self.summary[name] = value if name == "gpu" else max(value, self.summary.get(name, 0.0))
        self.folder.write_summary(self.summary)
