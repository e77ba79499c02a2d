"""The open sessions, and what is done with them, in threads, since a level may take long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.core.validation import check_number
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import TABLE, GameSpec, build_game, find
from ragen_gym.serve.schemas import CreateRequest, RequestError, library_errors
from ragen_gym.serve.served_envs import ServedEnv, ServedTurn, make_env

__all__ = ["Service", "encode"]

T = TypeVar("T")

_THREADS = 4

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class Session:
    """One environment; ``env`` is there once the session's first request ends."""

    env: ServedEnv

    def __init__(self, env_id: str) -> None:
        self.id = f"{np.random.SeedSequence().entropy:032x}"  # 128 random bits; whoever knows them plays the session
        self.env_id = env_id
        self.lock = asyncio.Lock()  # held while a request is being carried out
        self.used = 0.0  # the event loop's clock at the last request


class Service:
    """The open sessions, and threads for the work on them."""

    def __init__(self, max_sessions: int, session_ttl: float) -> None:
        check_number("the server", "max_sessions", max_sessions, 1, whole=True)
        check_number("the server", "session_ttl", session_ttl, 1)
        self.max_sessions, self.session_ttl = max_sessions, session_ttl
        self._sessions: dict[str, Session] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "games")

    def __len__(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first request to the last."""
        await self._in_thread(_play_every_game)
        try:
            yield
        finally:
            self._threads.shutdown(cancel_futures=True)  # what has begun ends, also where its request was cancelled
            for session in self._sessions.values():
                session.env.close()

    async def create(self, request: CreateRequest) -> bytes:
        """Make a session; its description as JSON.

        Raises:
            RequestError: the server is full, or a value is not allowed.
        """
        for expired in list(filter(self._expired, self._sessions.values())):
            self._close(expired)
        if len(self) >= self.max_sessions:
            raise RequestError(
                "full",
                f"this server keeps {self.max_sessions} sessions, and all are in use: close some, or wait; a "
                f"session that is not used for {self.session_ttl:g} seconds is closed.",
            )
        with library_errors(request.env_options):
            spec = find(request.env)
            build_game(spec, request.env_options, request.preset)
        session = Session(spec.id)
        self._sessions[session.id] = session
        async with session.lock:
            try:
                return await self._in_thread(lambda: self._made(session, spec, request))
            except BaseException:
                del self._sessions[session.id]
                raise
            finally:
                session.used = _now()

    async def ask(
        self, session_id: str, call: Callable[[ServedEnv], Any], write: Callable[[Any], bytes] = encode
    ) -> bytes:
        """The answer of a session's environment, written as JSON or a PNG.

        Raises:
            RequestError: there is no such session, or a value is not allowed.
        """
        session = self._get(session_id)
        async with session.lock:  # one request of a session at a time
            self._get(session_id)  # the request before may have closed it
            try:
                return await self._in_thread(lambda: write(call(session.env)))
            finally:
                session.used = _now()

    async def state(self, session_id: str) -> bytes:
        """A session as it stands, as JSON."""
        session = self._get(session_id)
        return await self.ask(session_id, lambda env: {**self._named(session), **env.state()})

    async def close(self, session_id: str) -> None:
        """Close a session, after the requests that came before."""
        async with self._get(session_id).lock:
            self._close(self._get(session_id))

    def _get(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None or self._expired(session):
            raise RequestError(
                "unknown_session",
                "there is no such session: it was closed, it was not used for "
                f"{self.session_ttl:g} seconds, or the server was restarted; create another one.",
            )
        return session

    def _close(self, session: Session) -> None:
        del self._sessions[session.id]
        session.env.close()

    def _expired(self, session: Session) -> bool:
        return not session.lock.locked() and _now() - session.used > self.session_ttl

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _made(self, session: Session, spec: GameSpec, request: CreateRequest) -> bytes:
        env = session.env = make_env(spec, request)
        try:
            start = None if request.start is None else env.reset(request.start)
            return encode({**self._named(session), **env.describe(), "start": start})
        except BaseException:
            env.close()
            raise

    def _named(self, session: Session) -> dict[str, Any]:
        return {
            "session": session.id,
            "env": session.env_id,
            "grain": "turn" if isinstance(session.env, ServedTurn) else "step",
            "expires_after": self.session_ttl,
        }


def _now() -> float:
    return asyncio.get_running_loop().time()


@compiling()
def _play_every_game() -> None:
    """Compile what the games need, or load it from the cache, before the first request has to wait for it."""
    for spec in TABLE.values():
        gymnasium.make(spec.id, split="train", disable_env_checker=True).reset(seed=0)
        for observation in ("text", "grid"):
            envs = gymnasium.make_vec(spec.id, 2, observation=observation)
            envs.reset(seed=0)
            envs.step(np.zeros(2, np.int64))[4].get("action_mask")
