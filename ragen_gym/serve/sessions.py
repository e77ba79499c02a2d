"""The open sessions: the memory that they may hold, whose they are, and when they expire."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable

import numpy as np

from ragen_gym.serve.errors import RequestError
from ragen_gym.serve.limits import Limits
from ragen_gym.serve.served_envs import ServedEnv

__all__ = ["Session", "SessionStore"]


class Session:
    """One environment or batch, and what the server knows of it."""

    def __init__(self, env_id: str, env: ServedEnv, num_envs: int | None, owner: str, size: int) -> None:
        self.id = f"{np.random.SeedSequence().entropy:032x}"  # 128 random bits; whoever knows them plays the session
        self.env_id, self.env, self.num_envs = env_id, env, num_envs
        self.owner = owner  # address of the client that made it
        self.size = size  # bytes that it may come to hold
        self.quick = False  # whether its resets, and a batch's steps, are over so soon that they need no thread
        self.lock = asyncio.Lock()  # held while a request is being carried out
        self.used = 0.0  # the clock at the last request


class SessionStore:
    """All open sessions, the longest unused first.

    Memory is taken before an environment's first levels are made, so that requests that arrive together cannot exceed
    the limits.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._of_client: Counter[str] = Counter()  # bytes

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def envs(self) -> int:
        """The number of environments in batches."""
        return sum(session.num_envs or 0 for session in self._sessions.values())

    def take(self, owner: str, size: int) -> None:
        """Take memory for a session that is about to be made.

        Raises:
            RequestError: there is not enough left.
        """
        self.expire()
        limits = self._limits
        for used, most, whose in (
            (self._of_client[owner], limits.max_memory_per_client or limits.max_memory // 2, "one client"),
            (self._of_client.total(), limits.max_memory, "all clients"),
        ):
            if size > most:
                raise RequestError(
                    "too_large",
                    f"this session may come to hold {size} bytes, and this server keeps {most} for {whose}: ask for a "
                    "smaller board, fewer environments or turns, or smaller pictures.",
                )
            if used + size > most:
                raise RequestError(
                    "full",
                    f"this server keeps {most} bytes for the sessions of {whose}; {used} are taken, and this session "
                    f"may need {size}: close some, or wait; a session that is not used for {limits.session_ttl:g} "
                    "seconds is closed.",
                    retry_after=min(60.0, limits.session_ttl),
                )
        self._of_client[owner] += size

    def give_back(self, owner: str, size: int) -> None:
        """Give the memory back of a session that was not made, or is closed."""
        self._of_client[owner] -= size
        if not self._of_client[owner]:
            del self._of_client[owner]

    def put(self, session: Session) -> None:
        """Open a session whose memory is taken."""
        session.used = self._clock()
        self._sessions[session.id] = session

    def get(self, session_id: str) -> Session:
        """The session of that id, which is used by that.

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

    def close(self, session_id: str) -> None:
        """Close a session.

        Raises:
            RequestError: there is none.
        """
        session = self.get(session_id)
        del self._sessions[session_id]
        self.give_back(session.owner, session.size)
        session.env.close()

    def expire(self) -> None:
        """Close the sessions that were not used for long."""
        for session in list(self._sessions.values()):
            if self._expired(session):
                del self._sessions[session.id]
                self.give_back(session.owner, session.size)
                session.env.close()
            elif not session.lock.locked():
                break  # those behind it were used later

    def close_all(self) -> None:
        """Close every session."""
        for session in self._sessions.values():
            session.env.close()
        self._sessions.clear()

    def _expired(self, session: Session) -> bool:
        return not session.lock.locked() and self._clock() - session.used > self._limits.session_ttl
