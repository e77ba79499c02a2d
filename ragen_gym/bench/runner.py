"""The runner: every episode of a suite that a folder does not hold yet, many at a time, each kept as soon as it ends.

An episode is named by a hash of everything that decides what is asked (``episode_plan.episode_key``). A session plays
the keys of which the folder holds no record that counts: the same command resumes a run that was cut short, and
plays again what failed for reasons of infrastructure. Nothing that an agent or a game does ends the run; what does is
Ctrl-C, and a folder that cannot be written to. Then only the episodes in play are lost.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from inspect import isawaitable
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import ReplyAgent, StepAgent, plain_dict
from ragen_gym.bench.episode import play_episode
from ragen_gym.bench.episode_plan import PlannedEpisode, RunOptions, check_playable, identity, make_env, plan_episodes
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.results import EpisodeLog, ResultsFolder
from ragen_gym.bench.suites import Split, Suite
from ragen_gym.core.console import ProgressBar
from ragen_gym.core.failures import INFRASTRUCTURE, Failure, describe_error
from ragen_gym.core.seen import read_seen
from ragen_gym.core.storage import locked_folder
from ragen_gym.core.text import without_controls
from ragen_gym.envs.task import TaskEnv
from ragen_gym.envs.turn import TurnEnv

_YIELD_SECONDS = 0.02  # after which agents that never wait let the event loop handle signals and other tasks
_PACKAGES = ("gymnasium", "numpy", "openai", "transformers", "torch", "stable_baselines3")


class RunProgress:
    """The running score on standard error: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._solved = self._counted = 0
        self._failures: Counter[str] = Counter()

    def begin(self, total: int, kept: Sequence[EpisodeRecord]) -> None:
        """Start: so many episodes are wanted, of which these have been played before."""
        self._bar = ProgressBar("episodes", total, done=len(kept), prefix="ragen-gym: ")
        self._bar.__enter__()
        for record in kept:
            self._count(record)
        if kept:
            self.say(f"{len(kept)} of {total} episodes are there already")

    def advance(self, record: EpisodeRecord) -> None:
        """Count an episode that has ended."""
        self._count(record)
        self._bar.advance(info=self.score)

    def say(self, notice: str) -> None:
        """Show a line of its own."""
        self._bar.say(f"ragen-gym: {notice}")

    def end(self) -> None:
        """Stop the bar."""
        self._bar.__exit__(None, None, None)

    @property
    def score(self) -> str:
        """Success so far, and failures."""
        parts = [f"success {100 * self._solved / self._counted:.1f} %"] if self._counted else []
        parts += [f"{kind} {number}" for kind, number in sorted(self._failures.items())]
        return ", ".join(parts) or "none counts yet"

    def _count(self, record: EpisodeRecord) -> None:
        if record.failure is not None:
            self._failures[record.failure.value] += 1
        if record.counted:
            self._counted += 1
            self._solved += record.success


@dataclass
class RunOutcome:
    """Outcome of a session."""

    wanted: int  # episodes that were asked for
    kept: int  # those of them that were there before
    played: int = 0  # those that were played now, with those that failed
    failures: Counter[Failure] = field(default_factory=Counter)  # how many of these failed, by kind

    @property
    def infrastructure(self) -> dict[str, int]:
        """The failures that are out of the score and played again by the next session."""
        return {kind.value: number for kind, number in self.failures.items() if kind in INFRASTRUCTURE}


def run_suite(
    suite: Suite,
    agent: ReplyAgent | StepAgent,
    out: str | Path,
    options: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> RunOutcome:
    """Play what is missing of a run.

    Args:
        suite: what is played.
        agent: who plays; ``ragen_gym.bench.agents.make_agent`` makes one of a name.
        out: the run's folder.
        options: which episodes, and how.
        progress: shows how the run goes; None shows nothing.

    Raises:
        ValueError: the folder holds something else, another process is playing the run, or the agent cannot begin.
        OSError: the folder cannot be written to.
    """
    return asyncio.run(run_suite_async(suite, agent, out, options, progress))


async def run_suite_async(
    suite: Suite,
    agent: ReplyAgent | StepAgent,
    out: str | Path,
    options: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> RunOutcome:
    """``run_suite`` for a program that has an event loop of its own."""
    options, folder = options or RunOptions(), ResultsFolder(out)
    same = folder.check(identity(suite, agent, options))
    planned = plan_episodes(suite, same, options)
    check_playable(agent, {episode.split.name: episode.split for episode in planned}.values())
    with locked_folder(folder.path):
        kept = {record.key: record for record in folder.records() if record.counted}
        here = [kept[episode.key] for episode in planned if episode.key in kept]
        ready = getattr(agent, "has_played", lambda split, index: True)  # of replies from before: not all may be there
        missing = [each for each in planned if each.key not in kept and ready(each.split.name, each.index)]
        outcome = RunOutcome(len(planned), len(here))
        if progress:
            progress.begin(len(planned), here)
        try:
            if missing:
                await _SuiteRunner(agent, options, folder, outcome, progress).play(same, missing)
        finally:
            if progress:
                progress.end()
    return outcome


class _SuiteRunner:
    """Plays the episodes of one session."""

    def __init__(
        self, agent: Any, options: RunOptions, folder: ResultsFolder, outcome: RunOutcome, progress: RunProgress | None
    ) -> None:
        self.agent, self.options, self.folder = agent, options, folder
        self.outcome, self.progress = outcome, progress
        self.free: dict[str, list[TurnEnv | TaskEnv]] = {}  # environments that wait for their next episode, by split
        self.yielded = time.perf_counter()

    async def play(self, identity: dict[str, Any], planned: Sequence[PlannedEpisode]) -> None:
        """Play all of them, some at a time."""
        most = getattr(self.agent, "concurrency", None) or self.options.concurrency
        left = iter(planned)
        try:
            if (start := getattr(self.agent, "start", None)) and (notice := await _awaited(start())):
                self._say(without_controls(str(notice)))
            self.extra = {"session": self.folder.begin(identity, _session(self.agent, self.options))}
            if record := getattr(self.agent, "seen", None):
                self.folder.add_seen(read_seen(record))
            with EpisodeLog(self.folder) as self.log:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(most, self.options.concurrency, len(planned))):
                        workers.create_task(self._work(left))
        except ExceptionGroup as group:  # such as of a full disk
            raise group.exceptions[0] from None
        finally:
            await self._close()

    async def _close(self) -> None:
        """Let the agent go; what it raises must cost no episode that was played."""
        try:
            if close := getattr(self.agent, "close", None):
                await _awaited(close())
        except Exception as error:
            self._say(f"the agent's close() failed: {describe_error(error)}")

    def _say(self, notice: str) -> None:
        if self.progress:
            self.progress.say(notice)

    async def _work(self, planned: Iterator[PlannedEpisode]) -> None:
        for episode in planned:
            env = self._take(episode.split)
            record = await play_episode(self.agent, env, episode, self.options.timeouts, self.extra)
            if record.failure is not Failure.ENVIRONMENT_ERROR:
                self.free[episode.split.name].append(env)
            self._keep(record)
            if time.perf_counter() - self.yielded > _YIELD_SECONDS:
                await asyncio.sleep(0)
                self.yielded = time.perf_counter()

    def _take(self, split: Split) -> TurnEnv | TaskEnv:
        free = self.free.setdefault(split.name, [])
        return free.pop() if free else make_env(split, getattr(self.agent, "observation", "text"))

    def _keep(self, record: EpisodeRecord) -> None:
        self.log.append(record)
        self.outcome.played += 1
        if record.failure is not None:
            self.outcome.failures[record.failure] += 1
        if self.progress:
            self.progress.advance(record)


async def _awaited(result: Any) -> Any:
    return await result if isawaitable(result) else result


def _session(agent: Any, options: RunOptions) -> dict[str, Any]:
    """What ``run.json`` keeps of a session."""
    versions = {"python": platform.python_version()}
    for package in ("ragen_gym", *(name for name in _PACKAGES if name in sys.modules)):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a folder of sources
            versions[package] = str(getattr(sys.modules.get(package), "__version__", "unknown"))
    settings = {name: value for name, value in asdict(options).items() if name != "temperature"}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"started": started, **settings, "circumstances": plain_dict(agent, "circumstances"), "versions": versions}
