"""How long levels take to generate, measured in a process that can be killed.

Drawing a level again until it meets a game's options can take microseconds or, with options that hardly any level
meets, many minutes; only a trial tells, and the compiled loops cannot be interrupted. So a few levels of every new
combination of options are first generated in another process, which the system ends when it has spent too much CPU
time. That process is this module, run with ``python -m``; it reads a JSON request a line and answers with one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict
from math import inf
from typing import Any

from ragen_gym.core.child_python import child_python
from ragen_gym.core.seeding import Stream, episode_keys, stream_key
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import TABLE, GameSpec, add, build_game
from ragen_gym.serve.errors import RequestError

__all__ = ["LEVELS", "LevelCosts", "measure"]

#: Levels of a trial.
LEVELS = 32

#: Whether the system ends a process by its CPU time; Windows does not.
_TIMED = hasattr(signal, "setitimer")
#: Seconds of CPU time after which a trial is ended: its options are too expensive.
_CPU = 10
#: Seconds of wall time after which a trial is ended: where CPU time is limited, nothing is known of its options.
_WALL = 60.0
_STARTS_WITHIN, _WAITING, _KEPT = 120.0, 64, 4096
_READY = "ready"


class LevelCosts:
    """Seconds that a level takes to generate, by the game's options.

    Args:
        limit: seconds a level above which the cost is infinite.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._known: OrderedDict[str, float | str] = OrderedDict()
        self._trials: dict[str, asyncio.Task[float | str]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def of(self, spec: GameSpec, preset: str | None, options: dict[str, Any], split: str | None) -> float:
        """Mean seconds of CPU time a level; infinite above the limit.

        Without options it is a game of the table that the server was started with, which is trusted and measured here.

        Raises:
            RequestError: no level meets the options, or too many trials wait already.
        """
        request = {"spec": asdict(spec), "preset": preset, "options": options, "split": split, "limit": self._limit}
        key = json.dumps(request, sort_keys=True)
        if key in self._known:
            self._known.move_to_end(key)
        elif not options:
            self._keep(key, await asyncio.to_thread(measure, spec, preset, options, split, inf))
        else:
            await self._wait_for(key)
        found = self._known[key]
        if isinstance(found, str):
            raise RequestError("bad_value", found)
        return found

    async def _wait_for(self, key: str) -> None:
        """Have the cost known after the trial of these options, which all requests for them share."""
        trial = self._trials.get(key)
        if trial is None:
            if len(self._trials) >= _WAITING:
                raise RequestError(
                    "busy", "many sessions with new options are being made at once: try again.", retry_after=2
                )
            trial = self._trials[key] = asyncio.create_task(self._trial(key))
        self._keep(key, await asyncio.shield(trial))

    def _keep(self, key: str, found: float | str) -> None:
        self._known[key] = found
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    async def close(self) -> None:
        """End the process; trials that wait for it find out that it is too slow."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()  # waits for its end, and closes its pipes

    async def _trial(self, line: str) -> float | str:
        try:
            async with self._lock:
                process = await self._running()
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    process.stdin.write(line.encode() + b"\n")
                    found: float | str = json.loads(await asyncio.wait_for(process.stdout.readline(), _WALL))
                except TimeoutError:
                    await self.close()
                    if not _TIMED:
                        return inf
                    raise RequestError(
                        "busy", "the machine had no time to try these options: try again.", retry_after=10
                    ) from None
                except (json.JSONDecodeError, ConnectionError):  # the process ended: too slow, or out of memory
                    await self.close()
                    return inf
                return found
        finally:
            del self._trials[line]

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *child_python("-m", __name__),
                stdin=pipe,
                stdout=pipe,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the server, which ends this process itself
            )
            assert self._process.stdout is not None
            said = b""
            with suppress(TimeoutError):
                said = await asyncio.wait_for(self._process.stdout.readline(), _STARTS_WITHIN)
            if said.decode().strip() != _READY:
                await self.close()
                raise RuntimeError("the process that measures levels did not start.")
        return self._process


@compiling()
def measure(
    spec: GameSpec, preset: str | None, options: dict[str, Any], split: str | None, limit: float
) -> float | str:
    """Mean seconds of CPU time that a level takes to generate, or why there is none.

    Infinite as soon as it is clear that it is over ``limit``.
    """
    try:
        game = build_game(spec, options, preset)
        keys = episode_keys(stream_key(0, Stream.LEVEL), 0, LEVELS)
        game.generate(keys[:1], split)  # loads what is compiled, which is no level's cost
        began = time.thread_time()
        for i in range(LEVELS):
            game.generate(keys[i : i + 1], split)
            if time.thread_time() - began > LEVELS * limit:
                return inf
        return (time.thread_time() - began) / LEVELS
    except ValueError as error:
        return str(error)
    except Exception as error:  # the process must outlive options of a type that no game expects
        return f"no level can be made with {options} ({type(error).__name__}: {error})."


@compiling()
def _serve() -> None:
    """Answer requests until there are no more."""
    for spec in TABLE.values():  # compiling may take longer than a trial may
        for preset in (None, *spec.game_class.presets):
            build_game(spec, {}, preset).generate(episode_keys(0, 0, 1), "train")
    print(_READY, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if _TIMED:
            signal.setitimer(signal.ITIMER_PROF, _CPU)  # whose signal ends the process
        spec = GameSpec(**request.pop("spec"))
        add(spec)
        print(json.dumps(measure(spec, **request)), flush=True)  # Infinity is JSON to Python


if __name__ == "__main__":
    _serve()
