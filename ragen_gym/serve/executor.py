"""Where the work is done that would keep the event loop from other requests: threads, since compiled loops let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.games.registry import TABLE
from ragen_gym.serve.errors import Refusal

__all__ = ["Work", "encode"]

T = TypeVar("T")

_THREADS, _WAITING = 4, 4096

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even half a surrogate pair can be sent back to whoever sent it."""
    return _encoder.encode(answer).encode()


class Work:
    """A few threads for levels and batches, and one for pictures, whose fonts bear no second."""

    def __init__(self) -> None:
        self._levels = ThreadPoolExecutor(_THREADS, "levels")
        self._pictures = ThreadPoolExecutor(1, "pictures")
        self._waiting = 0

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread.

        Raises:
            Refusal: thousands of calls wait already.
        """
        return await self._run(self._levels, call, *arguments)

    async def draw(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread for pictures; see `run`."""
        return await self._run(self._pictures, call, *arguments)

    async def warm_up(self) -> None:
        """Load what is compiled, or compile it, before the first request has to wait for that."""
        await self.run(_play_every_game)

    def close(self) -> None:
        """Drop what has not begun."""
        for threads in (self._levels, self._pictures):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[..., T], *arguments: Any) -> T:
        if self._waiting >= _WAITING:
            raise Refusal("busy", f"{_WAITING} requests wait already: try again.", retry_after=1)
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
