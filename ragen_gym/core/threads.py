"""Blocking calls outside the event loop, and the wait policy of OpenMP's threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["WAITING", "in_thread", "wait_passively"]

T = TypeVar("T")

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables of the wait policy: the standard's, GNU's, and Intel and LLVM's."""


async def in_thread(function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
    """Calls a blocking function in a thread of its own and returns its result.

    A thread cannot be stopped from outside. It is a daemon, so a function that never returns delays neither its caller
    beyond the timeout nor the end of the program, unlike the threads of an executor.

    Args:
        function: the function.
        arguments: its arguments.
        timeout: seconds to wait; None waits for ever.

    Raises:
        TimeoutError: it did not return in time. Its own errors are passed on.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():  # the caller was cancelled, or has timed out
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def call() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except StopIteration as stop:  # which a future refuses
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has been closed: the run is over
            return

    threading.Thread(target=call, daemon=True, name="blocking call").start()
    return await asyncio.wait_for(answer, timeout)


def wait_passively() -> None:
    """Lets OpenMP's threads sleep while they wait for each other; to be called before torch is imported.

    By default they spin, and a spinning thread takes the core that the thread they wait for needs: beside other
    programs decoding almost stops. On idle cores spinning is faster, because waking up takes time. A policy set by the
    user, such as OMP_WAIT_POLICY=ACTIVE, is kept.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
