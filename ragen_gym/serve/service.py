"""What the server does: it makes sessions, finds them, and carries out what they are asked, in threads where needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import TABLE, find
from ragen_gym.render.png import encode_png
from ragen_gym.serve.errors import RequestError, library_errors
from ragen_gym.serve.level_cost import LevelCosts
from ragen_gym.serve.limits import Limits, check_boards, check_options, session_bytes
from ragen_gym.serve.schemas import CreateRequest
from ragen_gym.serve.served_envs import ServedBatch, ServedEnv, ServedSingle, ServedStep, ServedTurn, make_env
from ragen_gym.serve.sessions import Session, SessionStore

__all__ = ["Service", "encode", "now"]

S = TypeVar("S", bound=ServedEnv)
T = TypeVar("T")

#: Levels that one request may have to generate: a single environment's block, and those of each environment of a batch.
_BLOCK, _AHEAD = 256, 15
#: Seconds of level generation, and environments of a batch, up to which a request is carried out without a thread.
_QUICK, _QUICK_ENVS = 0.002, 64

#: Threads for levels and batches, and calls that may wait for one.
_THREADS, _WAITING = 4, 4096

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_HOW: dict[type[ServedEnv], tuple[str, str]] = {
    ServedSingle: ("reset of a single environment", "no num_envs, or reset the batch"),
    ServedStep: ("single moves", "grain='step' and without num_envs"),
    ServedTurn: ("replies", "grain='turn'"),
    ServedBatch: ("moves of a batch", "num_envs"),
}


def now() -> float:
    """The event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class Service:
    """The open sessions, the costs of levels, and the executor."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.store = SessionStore(limits, now)
        self._costs = LevelCosts(limits.max_seconds / _BLOCK)
        self._executor = Executor()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first request to the last."""
        await self._executor.run(_play_every_game)
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await self._costs.close()
            self._executor.close()
            self.store.close_all()

    async def create(self, request: CreateRequest, owner: str) -> bytes:
        """Make a session; a ``ragen_gym.serve.schemas.Created``."""
        with library_errors():
            spec = find(request.env)
        check_options(request.env_options)
        check_boards(request.levels)
        check_boards(request.start.level if request.start else None)
        if (request.num_envs or 0) > self.limits.max_batch:
            raise RequestError(
                "too_large",
                f"num_envs={request.num_envs} is above {self.limits.max_batch}, the most that a batch may have.",
            )
        env = await self._executor.run(make_env, spec, request, self.limits.max_reply)
        size = session_bytes(env.env, request.num_envs, request.levels, self.limits.max_reply)
        self.store.take(owner, size)
        try:
            seconds = 0.0
            if request.levels is None:
                seconds = await self._costs.of(spec, request.preset, request.env_options, request.split)
            at_once = _AHEAD * request.num_envs if request.num_envs else _BLOCK
            self._check_cost(seconds, at_once)
            session = Session(spec.id, env, request.num_envs, owner, size)
            session.quick = (
                not (env.slow or request.regret)
                and seconds * at_once < _QUICK
                and (request.num_envs or 0) <= _QUICK_ENVS
            )
            answer = await self._carry_out(session, False, lambda: _created(self._named(session), env, request))
        except BaseException:
            self.store.give_back(owner, size)
            raise
        self.store.put(session)
        return answer

    async def ask(self, session_id: str, kind: type[S], call: Callable[[S], Any], *, light: bool = False) -> bytes:
        """Carry out an operation on a session's environment, which must be of this ``kind``; the answer as JSON.

        A ``light`` one takes so little time that it needs no thread, unless the environment is slow.

        Raises:
            RequestError: there is no such session, it is of another grain, or a value is not allowed.
        """
        session = self.store.get(session_id)
        env = session.env
        if not isinstance(env, kind):
            what, how = _HOW[kind]
            raise RequestError("wrong_grain", f"this session takes no {what}: create one with {how}.")
        return await self._run(session, light and not env.slow, lambda: encode(call(env)))

    async def state(self, session_id: str) -> bytes:
        """A session as it stands; a ``ragen_gym.serve.schemas.State``."""
        session = self.store.get(session_id)
        return await self._run(session, False, lambda: encode({**self._named(session), **session.env.state()}))

    async def picture(self, session_id: str, index: int) -> bytes:
        """A PNG of the board of an environment of a session."""
        session = self.store.get(session_id)
        async with session.lock:
            self.store.get(session_id)  # the request before may have closed it
            return await self._executor.run(lambda: encode_png(session.env.pixels(index)), drawing=True)

    async def close(self, session_id: str) -> None:
        """Close a session, after the requests that came before."""
        async with self.store.get(session_id).lock:
            self.store.close(session_id)

    async def _run(self, session: Session, light: bool, call: Callable[[], bytes]) -> bytes:
        """One request of an open session at a time."""
        async with session.lock:
            self.store.get(session.id)  # the request before may have closed it
            answer = await self._carry_out(session, light, call)
            self.store.get(session.id)  # it was in use until now
            return answer

    async def _carry_out(self, session: Session, light: bool, call: Callable[[], bytes]) -> bytes:
        """A call, in a thread where it may take long."""
        return call() if light or session.quick else await self._executor.run(call)

    async def _sweep(self) -> None:
        """Close what is unused, so that its memory is free even when nobody asks for a place."""
        while True:
            await asyncio.sleep(min(30.0, self.limits.session_ttl / 2))
            self.store.expire()

    def _named(self, session: Session) -> dict[str, Any]:
        return {
            "session": session.id,
            "env": session.env_id,
            "grain": "turn" if isinstance(session.env, ServedTurn) else "step",
            "num_envs": session.num_envs,
            "expires_after": self.limits.session_ttl,
        }

    def _check_cost(self, seconds: float, at_once: int) -> None:
        most, known = self.limits.max_seconds / at_once, self.limits.max_seconds / _BLOCK
        if seconds <= most:
            return
        takes = f"more than {1000 * known:.3g}" if seconds == inf else f"{1000 * seconds:.3g}"
        raise RequestError(
            "too_expensive",
            f"a level of these options takes {takes} ms to generate, and this server allows {1000 * most:.3g} ms, "
            f"since it makes up to {at_once} of them at once: ask for smaller boards, wider bounds, a shallower search "
            "or fewer environments, or send the boards themselves as levels.",
        )


class Executor:
    """Threads for work that would block the event loop; one for pictures, since pygame's fonts are not thread-safe."""

    def __init__(self) -> None:
        self._levels = ThreadPoolExecutor(_THREADS, "levels")
        self._pictures = ThreadPoolExecutor(1, "pictures")
        self._waiting = 0

    async def run(self, call: Callable[..., T], *arguments: Any, drawing: bool = False) -> T:
        """Call a function in a thread, the one for pictures if it is drawing.

        Raises:
            RequestError: thousands of calls wait already.
        """
        if self._waiting >= _WAITING:
            raise RequestError("busy", f"{_WAITING} requests wait already: try again.", retry_after=1)
        self._waiting += 1
        try:
            threads = self._pictures if drawing else self._levels
            return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has, also where its request was cancelled."""
        for threads in (self._levels, self._pictures):
            threads.shutdown(cancel_futures=True)


@compiling()
def _play_every_game() -> None:
    """Compile what the games need, or load it from the cache, before the first request has to wait for it."""
    for spec in TABLE.values():
        gymnasium.make(spec.id, split="train", disable_env_checker=True).reset(seed=0)
        for observation in ("text", "grid"):
            envs = gymnasium.make_vec(spec.id, 2, observation=observation)
            envs.reset(seed=0)
            envs.step(np.zeros(2, np.int64))[4].get("action_mask")


def _created(named: dict[str, Any], env: ServedEnv, request: CreateRequest) -> bytes:
    autoreset = None if request.num_envs is None else request.autoreset or "NextStep"
    start = None if request.start is None else env.reset(request.start)
    rest = {"autoreset": autoreset, "instructions": None, "budgets": None, **env.describe(), "start": start}
    return encode({**named, **rest})
