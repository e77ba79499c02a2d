"""Calls that may take long, outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_thread"]


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a plain function returns or raises, called in a thread of its own.

    The thread is a daemon: one that never comes back keeps neither its episode, once that has timed out, nor the end
    of the program waiting, as those of an executor would.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
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

    threading.Thread(target=call, daemon=True, name="agent").start()
    return await answer
