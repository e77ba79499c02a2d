"""A small model trained on an audited environment, and its controls: shuffled rewards and a blind policy.

All start from one warm start, the imitation of random valid replies: it teaches the form of a reply, not the skill.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from ragen_agent.tokens.trajectory import without_failed
from ragen_gym.audit import AuditSettings
from ragen_gym.audit.session import Session
from ragen_gym.core.console import rich_console

CONTROLS = ("trained", "shuffled", "blind")
PROBED = 64  # episodes of random replies before training
MOST_TURNS = 12
MOST_TOKENS = 1024  # of an episode
REPEATS = 4  # episodes of a level in the evaluation
SESSION = "audited"


@dataclass(frozen=True)
class LearnSettings:
    """Amount of training."""

    seconds: float = 60.0  # of everything but the start of the environment's process
    iterations: int = 400  # at most, of each of the three trained policies
    levels: int = 64  # that are measured on, ``REPEATS`` episodes each
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)  # in seconds

    def __post_init__(self) -> None:
        for name, least in (("seconds", 1), ("iterations", 1), ("levels", 8)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}={getattr(self, name)} is too small: give {least} or more.")


class OutOfTime(BaseException):
    """The end of the time; a rollout would record an ``Exception`` as a failure of the environment, and go on."""


class TimedDisplay(Display):
    """A display without output that calls ``after`` after each step of the warm start."""

    def __init__(self, after: Callable[[], object]) -> None:
        super().__init__(rich_console(file=io.StringIO()))
        self._after = after

    def advance(self, record: Mapping[str, float], steps: int = 1) -> None:
        """Call the function."""
        self._after()


class ControlledBackend(LocalBackend):
    """The local trainer, with the rewards of an iteration shuffled among its episodes if the control is that."""

    shuffled: bool = False
    seen: list[float]  # gets the return of each episode

    def rollout(self, number: int, groups: int, refill: int) -> Rollouts:
        """As the protocol says; the control changes what training reads."""
        found = super().rollout(number, groups, refill)
        rows = found.trajectories
        self.seen += [each.total_reward for each in rows if each.failure is None]
        if not self.shuffled:
            return found
        rng = np.random.default_rng(derive_seed(self.config.seed, SeedStream.FILTER, number, 1))
        totals = rng.permutation([each.total_reward for each in rows]).tolist()
        earned = [(*[0.0] * len(row.turn_rewards), total)[1:] for row, total in zip(rows, totals, strict=True)]
        shuffled = [replace(row, turn_rewards=rewards) for row, rewards in zip(rows, earned, strict=True)]
        return replace(found, trajectories=shuffled)  # all of a return is earned in the last turn


def learn(
    target: str,
    settings: AuditSettings | None = None,
    how: LearnSettings | None = None,
    progress: Callable[[str, int], None] = lambda phase, place: None,
) -> Report:
    """Train the small model on an environment and answer whether it teaches.

    Args:
        target: as of ``ragen_gym.audit.audit``.
        settings: of the audit; its checks and splits are not used, and a request has three times its ``seconds``.
        how: the amount of training.
        progress: called with each of ``CONTROLS`` before it is trained, and its place.

    Raises:
        ValueError: the target cannot be opened.
    """
    report = Report(target)
    with TemporaryDirectory() as scratch:
        trial = _Trial(how or LearnSettings(), Path(scratch), report)
        with opened(SESSION, target, settings or AuditSettings(), trial.left) as session:
            report.version = session.version
            trial.run(session, progress)
        report.seconds = trial.spent()
    return report


class _Trial:
    """The warm start, the trained policies and their episodes."""

    def __init__(self, how: LearnSettings, folder: Path, report: Report) -> None:
        self.how, self.folder, self.report = how, folder, report
        self.returns: dict[str, NDArray[np.float64]] = {}
        self.successes: dict[str, NDArray[np.float64]] = {}
        self.began, self.iterations, self.cut = how.clock(), how.iterations, ""

    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.how.clock() - self.began

    def left(self) -> float:
        """Seconds until the end of the time; then it raises OutOfTime."""
        left = self.how.seconds - self.spent()
        if left <= 0:
            raise OutOfTime
        return left

    def run(self, session: Session, progress: Callable[[str, int], None]) -> None:
        """Train and measure everything, or what the time allows; fill the report."""
        self.session, self.began, phase, late, error = session, self.how.clock(), "the warm start", "", ""
        try:
            self.prepare()
            for place, phase in enumerate(CONTROLS):
                if phase == "blind" and self.first_messages < 2:
                    break
                progress(phase, place)
                self.train(phase)
                if not gain(self.returns).low > 0:
                    break  # there is nothing for a control to explain
        except OutOfTime:
            ended = session.ended and f" ({session.ended})"
            late = f"{phase} did not end within {self.how.seconds:g} s and was cut{ended}"
        except ValueError as raised:
            error = str(raised)
        if "trained" in self.returns:
            seen, first = self.seen, self.first_messages
            found = Measured(self.returns, self.successes, self.random, self.oracle, min(seen), max(seen), first)
            self.report.answers = answers(replace(found, cut=bool(self.cut)))
            self.report.train_episodes = self.iterations * self.config.training.groups * self.config.training.group_size
            self.report.verdict = verdict(self.report.answers)
        last = error or "give more minutes" * (self.report.verdict not in VERDICTS)
        said = [VERDICTS.get(self.report.verdict, ""), self.cut, late, last]
        self.report.reason = "; ".join(filter(None, said))

    def prepare(self) -> None:
        """Play at random, derive the budgets, warm start, and measure the start."""
        task, rng = AuditedTask(SESSION, split="train"), np.random.default_rng(0)
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
                f"an episode has some {longest} tokens; the small model trains on up to {MOST_TOKENS}: give shorter "
                "actions by --action, or an option that shortens episodes by --option."
            )
        self.seen = [*self.random, *self.oracle]
        self.config = Config(
            game=TASK,
            env_options={"session": SESSION},
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
        warm_start(self.config, policy, self.folder / "warm", TimedDisplay(self.left))
        self.first_messages = len({task.reset(seed=seed)[0] for seed in range(PROBED)})
        before = self.spent()
        self.play("start", policy)
        # One part to train each policy, and one to spare: the controls may have longer episodes.
        parts, each = len(CONTROLS) + 1, self.spent() - before
        self.until = self.spent() + (self.how.seconds - self.spent() - len(CONTROLS) * each) / parts

    def train(self, control: str) -> None:
        """Train from the warm start and measure: a part of the time, and the controls as long as the trained policy."""
        self.session.ask(0, "drop", self.left())
        options = {"session": SESSION, "blind": control == "blind"}
        training = replace(self.config.training, iterations=self.iterations)
        config = replace(self.config, env_options=options, training=training)
        folder = RunFolder(self.folder / control)
        folder.path.mkdir()
        policy = Policy.build(config, self.folder / "warm")
        backend = ControlledBackend(config, policy, folder)
        backend.shuffled, backend.seen = control == "shuffled", self.seen
        loop = backend.loop()

        def show(record: Mapping[str, Any]) -> None:
            if control == "trained" and self.spent() > self.until:
                raise OutOfTime

        try:
            loop.run(show=show)
        except OutOfTime:
            self.left()  # raises it again, unless it was the end of this part alone
            self.cut = f"the time ended training after {loop.iteration} of {self.iterations} iterations"
        if control == "trained":
            self.iterations = loop.iteration
        self.play(control, replace(policy, config=config))

    def play(self, name: str, policy: Policy) -> None:
        """Episodes of a policy on the test's levels; each policy plays the same ones."""
        instances = [Instance(number // REPEATS, number) for number in range(self.how.levels * REPEATS)]
        processes = policy.processes("test", min(len(instances), self.config.evaluation.batch))
        seed = derive_seed(self.config.seed, SeedStream.EVALUATION)
        played = policy.play(processes, instances, self.config.training.temperature, seed)
        if self.session.ended:
            raise ValueError(self.session.ended)
        self.seen += [each.total_reward for each in without_failed(played)]
        failed = [each.failure is not None for each in played]

        def table(values: list[float]) -> NDArray[np.float64]:
            return np.where(failed, np.nan, values).reshape(self.how.levels, REPEATS)

        self.returns[name] = table([each.total_reward for each in played])
        if self.told:
            self.successes[name] = table([float(each.success) for each in played])


def _length(text: str) -> int:
    """Tokens of a text, at most: the small tokenizer joins some of these pieces."""
    return len(re.findall(PIECE, text))
