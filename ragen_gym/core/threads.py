"""Blocking calls outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
    """What a blocking function returns or raises, called in a thread of its own.

    A thread cannot be stopped from outside. It is a daemon: one that never returns delays neither its caller, once the
    timeout has passed, nor the end of the program, as the threads of an executor would.

    Args:
        function: the function.
        arguments: its arguments.
        timeout: seconds to wait; None waits for ever.

    Raises:
        TimeoutError: it did not return in time. What it raises is passed on.
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
