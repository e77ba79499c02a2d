"""The training loop of StarPO and StarPO-S (RAGEN, arXiv 2504.20073, section 3), of every backend.

``Loop.run`` is the loop and ``Loop._iterate`` one iteration: rollouts, refill, scores, filter, advantages, diagnostics,
update, validation, alarm, record. A backend plays, updates and keeps its state (``Backend``); everything else is here.

With a staleness of s (``openrlhf.staleness``) the engines play iteration n + s while the models train on iteration n:
its episodes come from the weights after n updates. The weights are sent out between two iterations' play, so all
episodes of an iteration come from the same weights. ``Training.correction`` makes up for the older ones: PPO's ratio
is to the policy before the update, and a bounded weight leads there from the one that sampled (decoupled PPO: AReaL,
arXiv 2505.24298).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ragen_agent.config import Config
from ragen_agent.run.alarm import History
from ragen_agent.run.diagnostics import Monitor
from ragen_agent.run.information import MeasuredPolicy
from ragen_agent.run.run_folder import RunFolder
from ragen_agent.tasks.tasks import SeedStream, derive_seed
from ragen_agent.tokens.trajectory import Trajectory, without_failed
from ragen_agent.update.iteration import Iteration, undecided
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import append_json_lines, read_json_lines

T = TypeVar("T")


@dataclass(frozen=True)
class Rollouts:
    """Episodes of an iteration or of one of its rounds; those of a group are adjacent."""

    trajectories: list[Trajectory]
    games: list[str]  # of each group
    noise_seeds: list[int | None]  # of each episode; None if its turns met the noise of several seeds
    families: set[int]  # of the levels, see ``ragen_gym.games.game.Game.family``
    updates: list[int] = field(default_factory=list)  # that the engine had received when it played each episode

    def __add__(self, other: Rollouts) -> Rollouts:
        """Both rounds."""
        return Rollouts(
            self.trajectories + other.trajectories,
            self.games + other.games,
            self.noise_seeds + other.noise_seeds,
            self.families | other.families,
            self.updates + other.updates,
        )


@dataclass(frozen=True)
class LoopState:
    """The part of a run's state that belongs to the loop."""

    iteration: int = 0  # how many iterations are done
    stagnant: int = 0  # how many of the last ones taught nothing


class Backend(Protocol):
    """Rollouts, updates and saved state of one stack."""

    @property
    def measured_policy(self) -> MeasuredPolicy:
        """The policy that plays, to be measured before an update."""
        ...

    def rollout(self, number: int, groups: int, refill: int) -> Rollouts:
        """Plays so many groups of an iteration; ``refill`` is the round of dynamic sampling, 0 the first."""
        ...

    def update(self, iteration: Iteration) -> tuple[dict[str, Any], list[list[float]]]:
        """Gradient steps on ``iteration.update_on``, at least one episode.

        Returns:
            The figures of the steps, ``train_tokens`` and ``updates`` among them; and the advantages of the sampled
            tokens of each episode.
        """
        ...

    def figures(self, rollouts: Rollouts, record: Mapping[str, Any], waited: float) -> dict[str, Any]:
        """Further figures of an iteration, after its update; training waited ``waited`` seconds for the rollouts."""
        ...

    def save(self, state: LoopState) -> None:
        """Writes the state of the loop and of the models, so that a run killed at any moment can go on."""
        ...

    def restore(self) -> LoopState:
        """Goes on from the state saved last; returns the loop's, that of a start if there is none."""
        ...


@dataclass(frozen=True)
class Played(Generic[T]):
    """Episodes of an iteration, and the time that they took."""

    found: T
    seconds: float


class PlayAhead(Generic[T]):
    """Plays iterations in their order, up to ``staleness`` of them ahead; at most one at a time.

    Args:
        play: plays an iteration; called in another thread, but for a staleness of 0.
        end: one past the last iteration.
        staleness: at least 0.
    """

    def __init__(self, play: Callable[[int], T], end: int, staleness: int) -> None:
        self._play, self._end, self._staleness = play, end, staleness
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._begun: dict[int, Future[Played[T]]] = {}

    def take(self, iteration: int) -> Played[T]:
        """Episodes of an iteration; before waiting for them, the iterations ahead are started too.

        Raises:
            Exception: what ``play`` raised.
        """
        if not self._staleness:
            return self._timed(iteration)
        first = max(self._begun, default=iteration - 1) + 1
        for number in range(first, min(iteration + self._staleness + 1, self._end)):
            self._begun[number] = self._thread.submit(self._timed, number)
        return self._begun.pop(iteration).result()

    def wait(self) -> None:
        """Returns when nothing is being played."""
        wait(self._begun.values())

    def close(self, wait: bool = True) -> None:
        """Plays nothing further and drops what was played ahead; if asked, waits for what is being played."""
        self._thread.shutdown(wait=wait, cancel_futures=True)
        self._begun.clear()

    def __enter__(self) -> PlayAhead[T]:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Closes; after an error without waiting."""
        self.close(wait=error is None)

    def _timed(self, iteration: int) -> Played[T]:
        began = time.monotonic()
        return Played(self._play(iteration), time.monotonic() - began)


class Loop:
    """The iterations of a run.

    Args:
        config: the settings.
        folder: gets a record of each iteration and some of its episodes.
        backend: plays, updates and saves.
        piece: the text of a token id.
        say: prints a sentence for the user.
        validation: measures the success on the fixed levels of the split ``validation``; None for runs without it.
        staleness: how many iterations the engines play ahead of training.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        backend: Backend,
        piece: Callable[[int], str],
        say: Callable[[str], None],
        validation: Callable[[], Rate] | None = None,
        staleness: int = 0,
    ) -> None:
        self.config, self.settings = config, config.training
        self.folder, self.backend, self.say = folder, backend, say
        self.monitor = Monitor(config, piece, validation if config.stops.validate_every else None)
        self.history = History(read_json_lines(folder.metrics), config.stops)
        self.ahead = PlayAhead(self.play, self.settings.iterations, staleness)
        self.iteration = 0
        self._seen = set[int]()  # families of the levels played so far

    def restore(self) -> None:
        """Goes on from the last saved iteration, if there is one."""
        state = self.backend.restore()
        self.iteration, self.history.stagnant = state.iteration, state.stagnant

    @property
    def stop_reason(self) -> str:
        """Why to stop before the last iteration, or the empty text."""
        return self.history.stop_reason

    def run(
        self,
        evaluate: Callable[[int], Mapping[str, Any]] = lambda done: {},
        show: Callable[[Mapping[str, Any]], None] = lambda record: None,
        saved: Callable[[], None] = lambda: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Iterates until the last iteration or a reason to stop, which is said.

        Args:
            evaluate: called after each iteration with how many the run has had; its figures go into the record.
            show: called with each record once it is written.
            saved: called after each save.
            interrupted: asked after each iteration; if true, the state is saved and the loop ends.

        Raises:
            KeyboardInterrupt: the loop was interrupted.
        """
        begun, last = self.iteration, self.settings.iterations
        with self.ahead:
            while self.iteration < last and not self.stop_reason:
                record, episodes = self._iterate()
                self.iteration += 1
                record |= evaluate(self.iteration)
                append_json_lines(self.folder.episodes, episodes)  # first: a reader of the record finds its episodes
                append_json_lines(self.folder.metrics, [record])
                show(record)
                stop = interrupted()
                if stop or self.stop_reason or self.iteration == last or self.iteration % self.settings.save_every == 0:
                    self.folder.add_seen(self._seen)
                    self.backend.save(LoopState(self.iteration, self.history.stagnant))
                    saved()
                if stop:
                    raise KeyboardInterrupt
        if self.stop_reason and self.iteration > begun:
            self.say(self.stop_reason)

    def _iterate(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One iteration; its record and the episodes to write down."""
        number, started = self.iteration, time.monotonic()
        taken = self.ahead.take(number)
        rollouts, waited = taken.found, time.monotonic() - started
        self._seen |= rollouts.families
        without_failed(rollouts.trajectories)  # raises if nothing is left

        iteration = Iteration.score_and_filter(  # return std, filter, advantages
            number,
            rollouts.trajectories,
            rollouts.games,
            self.settings,
            derive_seed(self.config.seed, SeedStream.FILTER, number),
            self.config.turns.max_tokens_per_turn,
            self.history.entropies,
        )
        figures = self.monitor.before_update(self.backend.measured_policy, iteration, self.history.records)
        measured, advantages = {"train_tokens": 0, "updates": 0, "empty_updates": 1}, list[list[float]]()
        if iteration.rows:
            measured, advantages = self.backend.update(iteration)

        record = {
            "iteration": number,
            **figures,
            **measured,
            "learning_rate": self.settings.learning_rate * self.settings.rate_factor(number),
            "tokens_per_s": iteration.sampled_tokens / taken.seconds,
            "seconds_rollout": taken.seconds,
        }
        record |= self.monitor.validate(number)
        record |= self.monitor.alarm(self.history, record, self.say)
        record |= {"diagnostics_s": self.monitor.take_costs(), "seconds": time.monotonic() - started}
        record |= self.backend.figures(rollouts, record, waited)
        self.history.add(record, iteration.stagnant)
        return record, list(iteration.episode_records(rollouts.noise_seeds, advantages).values())

    def play(self, number: int) -> Rollouts:
        """The rollouts of an iteration, the rounds of dynamic sampling included."""
        rollouts = self.backend.rollout(number, self.settings.groups, 0)
        for refill in range(1, self.settings.refills + 1):
            lacking = self.settings.groups - len(undecided(rollouts.trajectories, self.settings))
            if lacking:
                rollouts += self.backend.rollout(number, lacking, refill)
        return rollouts
