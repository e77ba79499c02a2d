"""Calls of an agent with timeouts: whatever it does, there is an answer or a typed failure."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Coroutine, Generator
from inspect import isawaitable, iscoroutine
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import AgentFailure, StopRun
from ragen_gym.bench.episode_plan import Timeouts
from ragen_gym.core.failures import Failure
from ragen_gym.core.text import without_controls

__all__ = ["AgentCaller", "EpisodeFailed", "describe_error"]

_LONGEST_DETAIL = 2000


class EpisodeFailed(Exception):
    """How an episode failed.

    Args:
        failure: what kind of failure.
        detail: what exactly; cut to 2,000 characters, without those that a terminal would obey.
    """

    def __init__(self, failure: Failure, detail: str) -> None:
        self.failure, self.detail = failure, without_controls(detail[:_LONGEST_DETAIL])
        super().__init__(self.detail)


class AgentCaller:
    """Calls an agent's methods through one episode.

    Args:
        agent: whose methods are called.
        timeouts: how long it may take.
    """

    def __init__(self, agent: Any, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.began = time.perf_counter()
        self._keeps_time = bool(getattr(agent, "keeps_time", False))

    async def call(self, method: Any, *arguments: Any) -> Any:
        """What the method returns; raises ``EpisodeFailed`` for anything else that happens."""
        try:
            answer = method(*arguments)
            if iscoroutine(answer):
                try:
                    first = answer.send(None)  # up to its first wait, or to its end
                except StopIteration as done:
                    answer = done.value
                else:
                    return await self._wait(_StartedCoroutine(answer, first))
            elif isawaitable(answer):
                return await self._wait(answer)
            # What does not wait cannot be interrupted, but its episode can be ended.
            if self.timeouts.episode is not None and time.perf_counter() - self.began > self.timeouts.episode:
                raise TimeoutError
            return answer
        except StopRun:
            raise
        except TimeoutError as error:
            raise EpisodeFailed(Failure.TIMEOUT, str(error) or self._timeout_detail()) from error
        except AgentFailure as failure:
            raise EpisodeFailed(failure.failure, failure.detail) from failure
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise EpisodeFailed(Failure.AGENT_ERROR, "the agent's own task was cancelled") from error
        except (Exception, SystemExit) as error:  # whatever an agent does, it ends its episode and not the run
            raise EpisodeFailed(Failure.AGENT_ERROR, describe_error(error)) from error

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer as long as the timeouts allow."""
        wait = None if self._keeps_time else self.timeouts.request
        if self.timeouts.episode is not None:
            left = self.timeouts.episode - (time.perf_counter() - self.began)
            wait = left if wait is None else min(wait, left)
        if wait is None:
            return await answer
        async with asyncio.timeout(wait):
            return await answer

    def _timeout_detail(self) -> str:
        episode = self.timeouts.episode
        if episode is not None and time.perf_counter() - self.began >= episode:
            return f"the episode took longer than {episode:g} s"
        return f"no answer within {self.timeouts.request:g} s" if self.timeouts.request else "the agent timed out"


class _StartedCoroutine:
    """The rest of a coroutine that has been run up to its first wait; agents that never wait need no timeout context.

    Args:
        coroutine: what has been run.
        waits_for: what it waits for.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self.coroutine, self.waits_for = coroutine, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self.waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = self.coroutine.throw(error)
                else:
                    waits_for = self.coroutine.send(sent)
        except StopIteration as done:
            return done.value


def describe_error(error: BaseException) -> str:
    """An exception in a line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
