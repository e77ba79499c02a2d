"""Calls of an agent with timeouts: whatever it does, there is an answer or a typed failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from inspect import isawaitable, iscoroutine
from typing import Any

from ragen_gym.bench.agent import AgentFailure, StopRun
from ragen_gym.bench.episode_plan import Timeouts
from ragen_gym.core.failures import Failure, describe_error, failure_from, shown_safely
from ragen_gym.core.text import without_controls

__all__ = ["AgentCaller", "EpisodeFailed", "absorb_cancellation"]

_LONGEST_DETAIL = 2000
_CANCELLED = "the agent's own task was cancelled"


class EpisodeFailed(Exception):
    """Failure of an episode.

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
        ending: whether the run is being ended; any other cancellation of the task is the agent's doing.
    """

    def __init__(self, agent: Any, timeouts: Timeouts, ending: Callable[[], bool] = lambda: True) -> None:
        self.timeouts, self.ending, self.called = timeouts, ending, False
        self.began = time.perf_counter()
        self._keeps_time = bool(getattr(agent, "keeps_time", False))

    async def call(self, method: Any, *arguments: Any) -> Any:
        """Result of the method; raises ``EpisodeFailed`` for anything else that happens."""
        self.called = True
        answer = await self._call(method, arguments)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # and went on all the same
            await absorb_cancellation(self.ending)
            raise EpisodeFailed(Failure.AGENT_ERROR, _CANCELLED)
        return answer

    async def _call(self, method: Any, arguments: tuple[Any, ...]) -> Any:
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
            raise EpisodeFailed(Failure.TIMEOUT, shown_safely(error, str) or self._timeout_detail()) from error
        except AgentFailure as failure:
            kind, detail = (getattr(failure, name, "") for name in ("failure", "detail"))
            known = failure_from(kind)
            said = shown_safely(detail, str) if known == kind else f"{shown_safely(kind)}: {shown_safely(detail, str)}"
            raise EpisodeFailed(known, said) from failure
        except asyncio.CancelledError as error:
            await absorb_cancellation(self.ending)
            raise EpisodeFailed(Failure.AGENT_ERROR, _CANCELLED) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever an agent does, it ends its episode and not the run
            if isinstance(error, GeneratorExit) and self.ending():  # the event loop is closed
                raise
            raise EpisodeFailed(Failure.AGENT_ERROR, describe_error(error)) from error

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer as long as the timeouts allow."""
        wait = None if self._keeps_time else self.timeouts.request
        if self.timeouts.episode is not None:
            left = self.timeouts.episode - (time.perf_counter() - self.began)
            wait = left if wait is None else min(wait, left)
        if wait is None:
            return await answer
        async with asyncio.timeout(wait) as limit:
            late = await answer
        if limit.expired():  # and the agent answered all the same
            raise TimeoutError
        return late

    def _timeout_detail(self) -> str:
        episode = self.timeouts.episode
        if episode is not None and time.perf_counter() - self.began >= episode:
            return f"the episode took longer than {episode:g} s"
        return f"no answer within {self.timeouts.request:g} s" if self.timeouts.request else "the agent timed out"


async def absorb_cancellation(ending: Callable[[], bool]) -> None:
    """Let other tasks run, and take back what an agent did who cancelled the task that plays its episode.

    Raises:
        asyncio.CancelledError: the run is being ended.
    """
    task = asyncio.current_task()
    try:
        if task is not None and not ending():
            while task.cancelling():
                task.uncancel()
        await asyncio.sleep(0)  # Python 3.12 still delivers here what was taken back
    except asyncio.CancelledError:
        if ending():
            raise
    if task is not None and task.cancelling() and ending():
        raise asyncio.CancelledError


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
