"""An agent asked with patience: whatever it does, there is an answer or a typed failure."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Coroutine, Generator
from inspect import isawaitable, iscoroutine
from pathlib import Path
from typing import Any

from ragen_gym.bench.agent import AgentFailure, StopRun
from ragen_gym.bench.tasks import Limits
from ragen_gym.core.failures import Failure

__all__ = ["Asking", "Failed", "described"]

_LONGEST_DETAIL = 2000


class Failed(Exception):
    """How an episode failed.

    Args:
        failure: what kind of failure.
        detail: what exactly, cut to a bearable length.
    """

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure, self.detail = failure, detail[:_LONGEST_DETAIL]


class Asking:
    """Asks an agent through one episode.

    Args:
        agent: who is asked.
        limits: how long it may take.
    """

    def __init__(self, agent: Any, limits: Limits) -> None:
        self.limits = limits
        self.began = time.perf_counter()
        self._keeps_time = bool(getattr(agent, "keeps_time", False))

    async def ask(self, question: Any, *arguments: Any) -> Any:
        """What the agent answers; raises `Failed` for whatever else it does."""
        try:
            answer = question(*arguments)
            if iscoroutine(answer):
                try:
                    first = answer.send(None)  # up to where it waits for the first time, which may be its end
                except StopIteration as done:
                    answer = done.value
                else:
                    return await self._wait(_Begun(answer, first))
            elif isawaitable(answer):
                return await self._wait(answer)
            # What does not wait cannot be interrupted, but its episode can be ended.
            if self.limits.episode is not None and time.perf_counter() - self.began > self.limits.episode:
                raise TimeoutError
            return answer
        except StopRun:
            raise
        except TimeoutError as error:
            raise Failed(Failure.TIMEOUT, str(error) or self._patience()) from error
        except AgentFailure as failure:
            raise Failed(failure.failure, failure.detail) from failure
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Failed(Failure.AGENT_ERROR, "the agent's own task was cancelled") from error
        except (Exception, SystemExit) as error:  # whatever an agent does, it ends its episode and not the run
            raise Failed(Failure.AGENT_ERROR, described(error)) from error

    async def _wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for an answer as long as the limits allow."""
        wait = None if self._keeps_time else self.limits.request
        if self.limits.episode is not None:
            left = self.limits.episode - (time.perf_counter() - self.began)
            wait = left if wait is None else min(wait, left)
        if wait is None:
            return await answer
        async with asyncio.timeout(wait):
            return await answer

    def _patience(self) -> str:
        episode = self.limits.episode
        if episode is not None and time.perf_counter() - self.began >= episode:
            return f"the episode took longer than {episode:g} s"
        return f"no answer within {self.limits.request:g} s" if self.limits.request else "the agent timed out"


class _Begun:
    """The rest of a coroutine that has been run up to its first wait; it saves the limits of time where none comes.

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


def described(error: BaseException) -> str:
    """An exception in a line, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
