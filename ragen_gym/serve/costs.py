"""What the levels of some knobs cost, measured in a process that can be ended.

Drawing a level again until it meets the knobs can take microseconds or, with knobs that hardly any level meets, many
minutes; nothing but a trial tells, and the compiled loops cannot be interrupted. So a few levels of every new
combination of knobs are first generated in a process of their own, which is killed when it takes too long. The process
is this module, run with ``python -m``; it reads a JSON request a line and answers with one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import OrderedDict
from dataclasses import asdict
from math import inf
from typing import Any

from ragen_gym.registry import TABLE, Row, add, build_game
from ragen_gym.seeding import Stream, episode_keys, stream_key
from ragen_gym.serve.refusals import Refusal

__all__ = ["LEVELS", "LevelCosts", "measure"]

#: Levels of a trial.
LEVELS = 32

#: Seconds of wall time after which a trial is ended; one that goes on stops by itself when its CPU time is spent.
_WALL = 10.0
_STARTS_WITHIN, _WAITING, _KEPT = 120.0, 64, 4096
_READY = "ready"


class LevelCosts:
    """Seconds that a level takes to generate, by the knobs.

    Args:
        limit: seconds a level above which nobody asks how much more it takes.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._known: OrderedDict[str, float] = OrderedDict()
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def of(self, row: Row, preset: str | None, knobs: dict[str, Any], split: str | None) -> float:
        """Mean seconds of CPU time a level; infinite above the limit.

        Raises:
            Refusal: no level meets the knobs, or too many requests wait for a trial.
        """
        request = {"row": asdict(row), "preset": preset, "knobs": knobs, "split": split, "limit": self._limit}
        key = json.dumps(request, sort_keys=True)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if self._waiting >= _WAITING:
            raise Refusal("busy", "many sessions with new knobs are being made at once: try again.", retry_after=2)
        self._waiting += 1
        try:
            async with self._lock:
                if key not in self._known:
                    self._known[key] = await self._trial(key)
                    while len(self._known) > _KEPT:
                        self._known.popitem(last=False)
                return self._known[key]
        finally:
            self._waiting -= 1

    async def start(self) -> None:
        """Have the process ready before the first request."""
        async with self._lock:
            await self._running()

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()  # waits for its end, and closes its pipes

    async def _trial(self, line: str) -> float:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            answer = json.loads(await asyncio.wait_for(process.stdout.readline(), _WALL))
        except (TimeoutError, json.JSONDecodeError, ConnectionError):  # too slow, or out of memory
            await self.close()
            return inf
        except asyncio.CancelledError:  # the client is gone, and the answer would be taken for the next one's
            await self.close()
            raise
        if "error" in answer:
            raise Refusal("bad_value", answer["error"])
        return float(answer["seconds"])

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                stdin=pipe,
                stdout=pipe,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the server, which ends this process itself
            )
            assert self._process.stdout is not None
            said = await asyncio.wait_for(self._process.stdout.readline(), _STARTS_WITHIN)
            if said.decode().strip() != _READY:
                await self.close()
                raise RuntimeError("the process that measures levels did not start.")
        return self._process


def measure(row: Row, preset: str | None, knobs: dict[str, Any], split: str | None, limit: float) -> float:
    """Mean seconds of CPU time that a level takes to generate; infinite where it is clear that it is over ``limit``.

    Raises:
        ValueError: no level meets the knobs.
    """
    game = build_game(row, knobs, preset)
    keys = episode_keys(stream_key(0, Stream.LEVEL), 0, LEVELS)
    game.generate(keys[:1], split)  # loads what is compiled, which is no level's cost
    began = time.process_time()
    for i in range(LEVELS):
        game.generate(keys[i : i + 1], split)
        if time.process_time() - began > LEVELS * limit:
            return inf
    return (time.process_time() - began) / LEVELS


def _serve() -> None:
    """Answer requests until there are no more."""
    for row in TABLE.values():  # compiling may take longer than a trial may
        for preset in (None, *row.game_class.presets):
            build_game(row, {}, preset).generate(episode_keys(0, 0, 1), "train")
    print(_READY, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            row = Row(**request.pop("row"))
            add(row)
            print(json.dumps({"seconds": measure(row, **request)}), flush=True)  # Infinity is JSON to Python
        except (ValueError, MemoryError) as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    _serve()
