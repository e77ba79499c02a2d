"""The operations of the server on its sessions, carried out in threads where they may take long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.core.turn_config import turn_config
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import TABLE, GameSpec, build_game, find
from ragen_gym.render.png import encode_png
from ragen_gym.serve import Limits
from ragen_gym.serve.schemas import CreateRequest, RequestError, ResetRequest, library_errors
from ragen_gym.serve.served_envs import ServedBatch, ServedStep, ServedTurn, make_env
from ragen_gym.serve.sessions import Session, SessionStore, session_bytes

__all__ = ["Service", "encode"]

T = TypeVar("T")

#: Threads for levels and batches.
_THREADS = 4

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class Service:
    """The open sessions, and threads for work that would block the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.store = SessionStore(limits, lambda: asyncio.get_running_loop().time())
        self._levels = ThreadPoolExecutor(_THREADS, "levels")
        self._pictures = ThreadPoolExecutor(1, "pictures")  # one, since pygame's fonts are not thread-safe

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first request to the last."""
        await self._in_thread(_play_every_game)
        try:
            yield
        finally:
            for threads in (self._levels, self._pictures):  # what has begun ends, also where its request was cancelled
                threads.shutdown(cancel_futures=True)
            self.store.close_all()

    async def create(self, request: CreateRequest) -> bytes:
        """Make a session; its description as JSON."""
        with library_errors(request.env_options):
            spec = find(request.env)
            game = build_game(spec, request.env_options, request.preset)
            turns = turn_config(None, request.budgets or {})
            size = session_bytes(game, request, turns, self.limits.max_reply)
        self.store.take(size)
        try:
            session, answer = await self._in_thread(lambda: self._made(spec, request, size))
        except BaseException:
            self.store.give_back(size)
            raise
        self.store.put(session)
        return answer

    async def step(self, session_id: str, action: int | list[int]) -> bytes:
        """Play a move, or one in every environment of a batch; the answer as JSON."""
        env = self.store.get(session_id).env
        if not isinstance(env, ServedStep | ServedBatch):
            raise RequestError("wrong_grain", "this session takes replies: create one with grain='step' for moves.")
        return await self.ask(session_id, lambda: env.step(action), light=not env.slow)

    async def turn(self, session_id: str, reply: str) -> bytes:
        """Take a reply; the answer as JSON."""
        env = self.store.get(session_id).env
        if not isinstance(env, ServedTurn):
            raise RequestError("wrong_grain", "this session takes moves: create one with grain='turn' for replies.")
        return await self.ask(session_id, lambda: env.turn(reply), light=not env.slow)

    async def reset(self, session_id: str, request: ResetRequest) -> bytes:
        """Start an episode, or one in every environment of a batch; the answer as JSON."""
        env = self.store.get(session_id).env
        return await self.ask(session_id, lambda: env.reset(request))

    async def state(self, session_id: str) -> bytes:
        """A session as it stands, as JSON."""
        session = self.store.get(session_id)
        return await self.ask(session_id, lambda: {**self._named(session), **session.env.state()})

    async def ask(self, session_id: str, call: Callable[[], Any], *, light: bool = False) -> bytes:
        """Carry out a call for a session, in a thread unless it is ``light``; the answer as JSON.

        Raises:
            RequestError: there is no such session, or a value is not allowed.
        """
        session = self.store.get(session_id)
        async with session.lock:  # one request of a session at a time
            self.store.get(session_id)  # the request before may have closed it
            answer = encode(call()) if light else await self._in_thread(lambda: encode(call()))
            self.store.get(session_id)  # it was in use until now
            return answer

    async def picture(self, session_id: str, index: int) -> bytes:
        """A PNG of the board of an environment of a session."""
        session = self.store.get(session_id)
        async with session.lock:
            self.store.get(session_id)
            return await self._in_thread(lambda: encode_png(session.env.pixels(index)), self._pictures)

    async def close(self, session_id: str) -> None:
        """Close a session, after the requests that came before."""
        async with self.store.get(session_id).lock:
            self.store.close(self.store.get(session_id))

    async def _in_thread(self, call: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads or self._levels, call)

    def _made(self, spec: GameSpec, request: CreateRequest, size: int) -> tuple[Session, bytes]:
        """A session and the description of it; its environment is closed if its first episode cannot be started."""
        env = make_env(spec, request, self.limits.max_reply)
        try:
            session = Session(spec.id, env, size)
            start = None if request.start is None else env.reset(request.start)
            return session, encode({**self._named(session), **env.describe(), "start": start})
        except BaseException:
            env.close()
            raise

    def _named(self, session: Session) -> dict[str, Any]:
        return {
            "session": session.id,
            "env": session.env_id,
            "grain": "turn" if isinstance(session.env, ServedTurn) else "step",
            "num_envs": session.env.num_envs,
            "expires_after": self.limits.session_ttl,
        }


@compiling()
def _play_every_game() -> None:
    """Compile what the games need, or load it from the cache, before the first request has to wait for it."""
    for spec in TABLE.values():
        gymnasium.make(spec.id, split="train", disable_env_checker=True).reset(seed=0)
        for observation in ("text", "grid"):
            envs = gymnasium.make_vec(spec.id, 2, observation=observation)
            envs.reset(seed=0)
            envs.step(np.zeros(2, np.int64))[4].get("action_mask")
