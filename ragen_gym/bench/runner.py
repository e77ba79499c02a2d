"""The runner: every episode of a suite that a folder does not hold yet, many at a time, each kept as soon as it ends.

An episode is named by a hash of all that decides what is asked (`ragen_gym.bench.tasks.episode_key`). A session plays
the keys of which the folder holds no record that counts, so the same command goes on with a run that was cut short, and
plays again what failed for reasons of infrastructure. Nothing that an agent or a game does ends the run; what does is
Ctrl-C, an agent's `StopRun`, and a folder that cannot be written to. Then the episodes in play are lost, and no others.
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
from typing import Any, Protocol

from ragen_gym.bench.agent import ReplyAgent, StepAgent, StopRun
from ragen_gym.bench.episode import play_episode
from ragen_gym.bench.records import EpisodeRecord
from ragen_gym.bench.run_folder import EpisodeLog, RunFolder
from ragen_gym.bench.suite import Split, Suite
from ragen_gym.bench.tasks import Job, Request, identity, jobs_of, make_env
from ragen_gym.core.failures import INFRASTRUCTURE, Failure
from ragen_gym.envs.turn import TurnEnv

__all__ = ["Outcome", "Progress", "run_suite", "run_suite_async"]

_BREATH = 0.02  # seconds after which agents that never wait let the event loop see to signals and the other tasks
_PACKAGES = ("gymnasium", "numpy", "openai", "transformers", "torch", "stable_baselines3")


class Progress(Protocol):
    """Who is told how a run goes."""

    def begin(self, asked: int, kept: Sequence[EpisodeRecord]) -> None:
        """So many episodes are asked for, of which these are there already."""

    def advance(self, record: EpisodeRecord) -> None:
        """An episode has ended."""

    def say(self, notice: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """The session is over."""


@dataclass
class Outcome:
    """What a session has done.

    Attributes:
        asked: episodes that were asked for.
        kept: those of them that were there before.
        played: those that were played now, with those that failed.
        failures: how many of these failed, by kind.
        stopped: why the agent ended the run, or "".
    """

    asked: int
    kept: int
    played: int = 0
    failures: Counter[Failure] = field(default_factory=Counter)
    stopped: str = ""

    @property
    def infrastructure(self) -> dict[str, int]:
        """The failures that are out of the score and played again by the next session."""
        return {kind.value: number for kind, number in self.failures.items() if kind in INFRASTRUCTURE}


def run_suite(
    suite: Suite,
    agent: ReplyAgent | StepAgent,
    out: str | Path,
    request: Request | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Play what is missing of a run.

    Args:
        suite: what is played.
        agent: who plays; `ragen_gym.bench.agents.make_agent` makes one of a name.
        out: the run's folder.
        request: what of the suite, and how.
        progress: who is told.

    Raises:
        ValueError: the folder holds something else, another process is playing the run, or the agent cannot begin.
        OSError: the folder cannot be written to.
    """
    return asyncio.run(run_suite_async(suite, agent, out, request, progress))


async def run_suite_async(
    suite: Suite,
    agent: ReplyAgent | StepAgent,
    out: str | Path,
    request: Request | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """`run_suite` for a program that has an event loop of its own."""
    request, folder = request or Request(), RunFolder(out)
    same = identity(suite, agent, request)
    jobs = jobs_of(suite, same, request)
    folder.check(same)
    with folder.locked():
        kept = {record.key: record for record in folder.records() if record.counted}
        here = [kept[job.key] for job in jobs if job.key in kept]
        missing = [job for job in jobs if job.key not in kept]
        outcome = Outcome(len(jobs), len(here))
        if progress:
            progress.begin(len(jobs), here)
        try:
            if missing:
                await _Session(agent, request, folder, outcome, progress).play(same, missing)
        finally:
            if progress:
                progress.end()
    return outcome


class _Session:
    """One session at play."""

    def __init__(
        self, agent: Any, request: Request, folder: RunFolder, outcome: Outcome, progress: Progress | None
    ) -> None:
        self.agent, self.request, self.folder = agent, request, folder
        self.outcome, self.progress = outcome, progress
        self.free: dict[str, list[TurnEnv]] = {}  # environments that wait for their next episode, by split
        self.breath = time.perf_counter()

    async def play(self, identity: dict[str, Any], jobs: Sequence[Job]) -> None:
        """Play all of them, some at a time."""
        most = getattr(self.agent, "concurrency", None) or self.request.concurrency
        left = iter(jobs)
        try:
            await self._start()
            self.extra = {"session": self.folder.begin(identity, _session(self.agent, self.request))}
            self._notice_new_code()
            with EpisodeLog(self.folder.episodes) as self.log:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(most, self.request.concurrency, len(jobs))):
                        group.create_task(self._work(left))
        except BaseExceptionGroup as group:
            first = _first(group)
            if not isinstance(first, StopRun):
                raise first from None
            self.outcome.stopped = str(first) or "the agent ended the run"
        finally:
            if close := getattr(self.agent, "close", None):
                await _awaited(close())

    async def _start(self) -> None:
        if start := getattr(self.agent, "start", None):
            notice = await _awaited(start())
            if notice:
                self._say(str(notice))

    def _notice_new_code(self) -> None:
        codes = {session["circumstances"].get("code") for session in self.folder.info["sessions"]}
        if len(codes - {None}) > 1:
            self._say("the agent's code has changed since an earlier session of this run")

    def _say(self, notice: str) -> None:
        if self.progress:
            self.progress.say(notice)

    async def _work(self, jobs: Iterator[Job]) -> None:
        request = self.request
        for job in jobs:
            env = self._take(job.split)
            record = await play_episode(self.agent, env, job, request.limits, request.prices, self.extra)
            if record.failure is not Failure.ENVIRONMENT_ERROR:
                self.free[job.split.name].append(env)
            self._keep(record)
            if time.perf_counter() - self.breath > _BREATH:
                await asyncio.sleep(0)
                self.breath = time.perf_counter()

    def _take(self, split: Split) -> TurnEnv:
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


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _session(agent: Any, request: Request) -> dict[str, Any]:
    """What ``run.json`` keeps of a session."""
    versions = {"python": platform.python_version()}
    for package in ("ragen_gym", *(name for name in _PACKAGES if name in sys.modules)):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a folder of sources
            versions[package] = str(getattr(sys.modules.get(package), "__version__", "unknown"))
    asked = {name: value for name, value in asdict(request).items() if name != "temperature"}
    circumstances = dict(getattr(agent, "circumstances", {}))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"started": started, **asked, "circumstances": circumstances, "versions": versions}
