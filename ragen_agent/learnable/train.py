"""A small model trained on an audited environment, and its controls: shuffled rewards, random groups, a blind policy.

All start from one warm start, the imitation of random valid replies: it teaches the form of a reply, not the skill.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from ragen_agent.config import Config, Demonstrations, Evaluation, Stops, Training, Turns, WarmStart
from ragen_agent.learnable.answers import VERDICTS, Measured, Report, answers, gain, verdict
from ragen_agent.learnable.task import TASK, AuditedTask, opened
from ragen_agent.local.backend import LocalBackend
from ragen_agent.models.small_model import PIECE
from ragen_agent.run.console import Display
from ragen_agent.run.loop import Rollouts
from ragen_agent.run.policy import Policy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.sft.trainer import warm_start
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.trajectory import Trajectory, without_failed
from ragen_gym.audit import AuditSettings
from ragen_gym.core.console import rich_console

__all__ = ["LearnSettings", "learn"]

CONTROLS = ("trained", "shuffled", "groups", "blind")
PROBED = 64  # episodes of random replies before training
MOST_TURNS = 12
MOST_TOKENS = 1024  # of an episode
REPEATS = 4  # episodes of a level in the evaluation


@dataclass(frozen=True)
class LearnSettings:
    """Amount of training."""

    seconds: float = 60.0  # of training and measuring, after which the trained model's iterations end
    iterations: int = 60  # at most, of each of the four trained policies
    levels: int = 64  # that are measured on, ``REPEATS`` episodes each
    groups: bool = True  # the control with random groups, which no verdict reads
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("seconds", 1), ("iterations", 1), ("levels", 8), ("seed", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}={getattr(self, name)} is too small: give {least} or more.")


class ControlledBackend(LocalBackend):
    """The local trainer with the rewards or the groups of an iteration shuffled, by the control's name."""

    control: str = ""
    seen: list[float]  # gets the return of each episode

    def rollout(self, number: int, groups: int, refill: int) -> Rollouts:
        """As the protocol says; the control changes what training reads."""
        found = super().rollout(number, groups, refill)
        self.seen += [each.total_reward for each in found.trajectories if each.failure is None]
        order = np.random.default_rng(derive_seed(self.config.seed, SeedStream.FILTER, number, 1)).permutation(
            len(found.trajectories)
        )
        rows = found.trajectories
        if self.control == "shuffled":
            totals = [rows[place].total_reward for place in order]
            return replace(found, trajectories=list(map(_earning, rows, totals)))
        if self.control == "groups":
            noise = [found.noise_seeds[place] for place in order]
            return replace(found, trajectories=[rows[place] for place in order], noise_seeds=noise)
        return found


def learn(
    target: str,
    settings: AuditSettings | None = None,
    how: LearnSettings | None = None,
    progress: Callable[[str, int], None] = lambda phase, place: None,
) -> Report:
    """Train the small model on an environment and answer whether it teaches.

    Args:
        target: as of ``ragen_gym.audit.audit``.
        settings: of the audit; its checks and splits are not used.
        how: the amount of training.
        progress: called with each of ``CONTROLS`` before it is trained, and its place.

    Raises:
        ValueError: the target cannot be opened.
    """
    settings, how, began = settings or AuditSettings(), how or LearnSettings(), time.monotonic()
    report = Report(target)
    try:
        with opened("start", target, settings) as session, TemporaryDirectory() as scratch:
            report.version = session.version
            trial = _Trial(target, settings, how, Path(scratch))
            trial.prepare()
            controls = [each for each in CONTROLS if how.groups or each != "groups"]
            left = how.seconds - (time.monotonic() - began)
            for place, control in enumerate(controls):
                progress(control, place)
                trial.train(control, None if place else time.monotonic() + max(left, 0) / len(controls))
                if not gain(trial.returns).low > 0:
                    break  # there is nothing for a control to explain
            report.answers = answers(trial.measured())
    except ValueError as error:
        if not report.version:
            raise
        report.reason = str(error)
    else:
        report.verdict = verdict(report.answers)
        report.reason = VERDICTS[report.verdict]
        report.iterations = trial.iterations
        report.train_episodes = trial.iterations * trial.config.training.groups * trial.config.training.group_size
    report.seconds = time.monotonic() - began
    return report


class _Trial:
    """The warm start, the trained policies and their episodes."""

    def __init__(self, target: str, settings: AuditSettings, how: LearnSettings, folder: Path) -> None:
        self.target, self.settings, self.how, self.folder = target, settings, how, folder
        self.returns: dict[str, NDArray[np.float64]] = {}
        self.successes: dict[str, NDArray[np.float64]] = {}
        self.iterations = how.iterations

    def prepare(self) -> None:
        """Play at random, derive the budgets, warm start, and measure the start."""
        task, rng = AuditedTask("start", split="train"), np.random.default_rng(self.how.seed)
        self.random, self.oracle, self.told = list[float](), list[float](), False
        turns, longest_reply, longest = 0, 0, 0
        for seed in range(PROBED):
            text, _ = task.reset(seed=seed)
            tokens, total, over, turn = _length(text), 0.0, False, 0
            while not over and turn < MOST_TURNS:
                reply = task.random_reply(rng)
                text, reward, terminated, truncated, info = task.step(reply)
                longest_reply = max(longest_reply, _length(reply))
                tokens, total, turn = tokens + _length(reply) + _length(text), total + reward, turn + 1
                over, self.told = terminated or truncated, self.told or info["tells_success"]
            turns, longest = max(turns, turn), max(longest, tokens)
            self.random.append(total)
            task.reset(seed=seed)
            if (solution := task.solution()) is not None:
                self.oracle.append(sum(task.step(reply)[1] for reply in solution))
        if longest > MOST_TOKENS:
            raise ValueError(
                f"an episode has some {longest} tokens; the small model is trained on up to {MOST_TOKENS}."
            )
        self.seen = [*self.random, *self.oracle]
        self.config = Config(
            game=TASK,
            seed=self.how.seed,
            env_options={"session": "start"},
            turns=Turns(
                max_turns=turns, max_tokens_per_turn=2 * longest_reply, max_tokens_per_episode=2 * longest + 16 * turns
            ),
            demonstrations=Demonstrations(episodes=1536 // turns + 256, quality=0.0),
            # Long episodes are fewer, and need as many steps until replies are well formed.
            warm_start=WarmStart(learning_rate=5e-3, batch=64 // max(turns, 2)),
            training=Training(
                iterations=self.iterations,
                groups=16,
                filter="none",
                algo="dr_grpo",  # dividing by a group's std can teach what earns less, where returns are risky
                learning_rate=2e-3,
                entropy_bonus=0.0,  # over the whole vocabulary, so that it would break the form of replies
                save_every=self.iterations,
            ),
            stops=Stops(return_std_patience=8),
            evaluation=Evaluation(batch=128),
        )
        policy = Policy.build(self.config)
        warm_start(self.config, policy, self.folder / "warm", Display(rich_console(file=io.StringIO())))
        self.first_messages = len({task.reset(seed=seed)[0] for seed in range(PROBED)})
        self.play("start", policy)

    def train(self, control: str, until: float | None) -> None:
        """Train from the warm start and measure: up to the time ``until``, or as long as the policy that had one."""
        with opened(control, self.target, self.settings):
            options = {"session": control, "blind": control == "blind"}
            config = replace(self.config, env_options=options)
            folder = RunFolder(self.folder / control)
            folder.path.mkdir()
            policy = Policy.build(config, self.folder / "warm")
            backend = ControlledBackend(config, policy, folder)
            backend.control, backend.seen = control, self.seen
            loop = backend.loop()

            def interrupted() -> bool:
                return loop.iteration >= self.iterations or (until is not None and time.monotonic() > until)

            with suppress(KeyboardInterrupt):  # the loop's answer where it was interrupted
                loop.run(interrupted=interrupted)
            if until is not None:
                self.iterations = loop.iteration
            self.play(control, replace(policy, config=config))

    def play(self, name: str, policy: Policy) -> None:
        """Episodes of a policy on the test's levels; each policy plays the same ones."""
        count = self.how.levels * REPEATS
        instances = [Instance(number // REPEATS, number) for number in range(count)]
        processes = policy.processes("test", min(count, self.config.evaluation.batch))
        seed = derive_seed(self.how.seed, SeedStream.EVALUATION)
        played = policy.play(processes, instances, self.config.training.temperature, seed)
        self.seen += [each.total_reward for each in without_failed(played)]
        failed = [each.failure is not None for each in played]

        def table(values: list[float]) -> NDArray[np.float64]:
            return np.where(failed, np.nan, values).reshape(self.how.levels, REPEATS)

        self.returns[name] = table([each.total_reward for each in played])
        if self.told:
            self.successes[name] = table([float(each.success) for each in played])

    def measured(self) -> Measured:
        """Everything that the answers read."""
        return Measured(
            self.returns,
            self.successes,
            self.random,
            self.oracle,
            least=min(self.seen),
            best=max(self.seen),
            first_messages=self.first_messages,
        )


def _earning(episode: Trajectory, total: float) -> Trajectory:
    """The episode with this return, all of it earned in the last turn."""
    turns = len(episode.turn_rewards)
    return replace(episode, turn_rewards=(*[0.0] * (turns - 1), total)[:turns])


def _length(text: str) -> int:
    """Tokens of a text, at most: the small tokenizer joins some of these pieces."""
    return len(re.findall(PIECE, text))
