"""Thread pools for the work that would block the event loop; compiled loops release the GIL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.games.registry import TABLE
from ragen_gym.serve.errors import RequestError

__all__ = ["Executor", "encode"]

T = TypeVar("T")

_THREADS, _WAITING = 4, 4096

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class Executor:
    """A few threads for levels and batches, and one for pictures, since pygame's fonts are not thread-safe."""

    def __init__(self) -> None:
        self._levels = ThreadPoolExecutor(_THREADS, "levels")
        self._pictures = ThreadPoolExecutor(1, "pictures")
        self._waiting = 0

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread.

        Raises:
            RequestError: thousands of calls wait already.
        """
        return await self._run(self._levels, call, *arguments)

    async def draw(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread for pictures; see `run`."""
        return await self._run(self._pictures, call, *arguments)

    async def warm_up(self) -> None:
        """Compile, or load from the cache, before the first request has to wait for it."""
        await self.run(_play_every_game)

    def close(self) -> None:
        """Cancel what has not begun."""
        for threads in (self._levels, self._pictures):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> T:
        if self._waiting >= _WAITING:
            raise RequestError("busy", f"{_WAITING} requests wait already: try again.", retry_after=1)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
        finally:
            self._waiting -= 1


def _play_every_game() -> None:
    for spec in TABLE.values():
        gymnasium.make(spec.id, split="train", disable_env_checker=True).reset(seed=0)
        for observation in ("text", "grid"):
            envs = gymnasium.make_vec(spec.id, 2, observation=observation)
            envs.reset(seed=0)
            envs.step(np.zeros(2, np.int64))[4].get("action_mask")
