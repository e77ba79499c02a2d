"""The open sessions: the memory that they may hold, their owners, and when they expire."""

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
    """One environment or batch, and its owner: the address of the client that made it."""

    def __init__(self, env_id: str, env: ServedEnv, owner: str, size: int) -> None:
        self.id = f"{np.random.SeedSequence().entropy:032x}"  # 128 random bits; whoever knows them plays the session
        self.env_id, self.env, self.owner = env_id, env, owner
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
        self._of_client: Counter[str] = Counter()  # bytes

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, owner: str, size: int) -> None:
        """Take memory for a session that is about to be made.

        Raises:
            RequestError: there is not enough left.
        """
        self.expire()
        most = self._limits.max_memory
        for used, share, whose in (
            (self._of_client[owner], most // 2, "one client"),
            (self._of_client.total(), most, "all clients"),
        ):
            if size > share:
                raise RequestError(
                    "too_large",
                    f"this session may come to hold {size} bytes, and this server keeps {share} for {whose}: ask for a "
                    "smaller board, fewer environments or turns, or smaller pictures.",
                )
            if used + size > share:
                raise RequestError(
                    "full",
                    f"this server keeps {share} bytes for the sessions of {whose}; {used} are taken, and this session "
                    f"may need {size}: close some, or wait; a session that is not used for "
                    f"{self._limits.session_ttl:g} seconds is closed.",
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
        self.give_back(session.owner, session.size)
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
