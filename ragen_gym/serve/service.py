"""The open sessions, and what is done with them, in threads where it may take long."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
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
from ragen_gym.serve.limits import Limits, session_bytes
from ragen_gym.serve.schemas import CreateRequest, RequestError, library_errors
from ragen_gym.serve.served_envs import ServedEnv, ServedTurn, make_env

__all__ = ["Service", "Session", "SessionStore", "encode"]

T = TypeVar("T")

#: Threads for levels and batches.
_THREADS = 4

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class Session:
    """One environment or batch."""

    def __init__(self, env_id: str, env: ServedEnv, size: int) -> None:
        self.id = f"{np.random.SeedSequence().entropy:032x}"  # 128 random bits; whoever knows them plays the session
        self.env_id, self.env = env_id, env
        self.size = size  # bytes that it may come to hold
        self.lock = asyncio.Lock()  # held while a request is being carried out
        self.used = 0.0  # the clock at the last request


class SessionStore:
    """All open sessions, the longest unused first.

    Memory is taken before an environment is made, so that requests that arrive together cannot exceed the limits.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._taken = 0  # bytes

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, size: int) -> None:
        """Take memory for a session that is about to be made.

        Raises:
            RequestError: there is not enough left.
        """
        self.expire()
        most = self._limits.max_memory
        if size > most:
            raise RequestError(
                "too_large",
                f"this session may come to hold {size} bytes, and this server keeps {most} for all: ask for a smaller "
                "board, fewer environments or turns, or smaller pictures.",
            )
        if self._taken + size > most:
            raise RequestError(
                "full",
                f"this server keeps {most} bytes for all sessions; {self._taken} are taken, and this session may need "
                f"{size}: close some, or wait; a session that is not used for {self._limits.session_ttl:g} seconds is "
                "closed.",
            )
        self._taken += size

    def give_back(self, size: int) -> None:
        """Give the memory back of a session that was not made, or is closed."""
        self._taken -= size

    def put(self, session: Session) -> None:
        """Open a session whose memory is taken."""
        session.used = self._clock()
        self._sessions[session.id] = session

    def get(self, session_id: str) -> Session:
        """The session of that id, which counts as used.

        Raises:
            RequestError: there is none.
        """
        session = self._sessions.get(session_id)
        if session is None or self._expired(session):
            raise RequestError(
                "unknown_session",
                "there is no such session: it was closed, it was not used for "
                f"{self._limits.session_ttl:g} seconds, or the server was restarted; create another one.",
            )
        session.used = self._clock()
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session: Session) -> None:
        """Close an open session."""
        del self._sessions[session.id]
        self.give_back(session.size)
        session.env.close()

    def expire(self) -> None:
        """Close the sessions that were not used for long."""
        for session in list(self._sessions.values()):
            if self._expired(session):
                self.close(session)
            elif not session.lock.locked():
                break  # those behind it were used later

    def close_all(self) -> None:
        """Close every session."""
        for session in list(self._sessions.values()):
            self.close(session)

    def _expired(self, session: Session) -> bool:
        return not session.lock.locked() and self._clock() - session.used > self._limits.session_ttl


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

    async def ask(
        self,
        session_id: str,
        call: Callable[[ServedEnv], Any],
        *,
        light: bool = False,
        write: Callable[[Any], bytes] = encode,
    ) -> bytes:
        """The answer of a session's environment as JSON or a PNG, made in a thread unless it is ``light``.

        Raises:
            RequestError: there is no such session, or a value is not allowed.
        """
        session = self.store.get(session_id)
        threads = self._pictures if write is encode_png else self._levels
        async with session.lock:  # one request of a session at a time
            self.store.get(session_id)  # the request before may have closed it
            if light and not session.env.slow:
                answer = write(call(session.env))
            else:
                answer = await self._in_thread(lambda: write(call(session.env)), threads)
            self.store.get(session_id)  # it was in use until now
            return answer

    async def state(self, session_id: str) -> bytes:
        """A session as it stands, as JSON."""
        named = self._named(self.store.get(session_id))
        return await self.ask(session_id, lambda env: {**named, **env.state()})

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
