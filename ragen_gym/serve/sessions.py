"""The sessions that are open: how many there may be, whose they are, and when they expire."""

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

    def __init__(self, env_id: str, env: ServedEnv, num_envs: int | None, owner: str) -> None:
        self.id = f"{np.random.SeedSequence().entropy:032x}"  # 128 random bits; whoever knows them plays the session
        self.env_id, self.env, self.num_envs = env_id, env, num_envs
        self.owner = owner  # address of the client that made it
        self.quick = False  # whether its resets, and a batch's steps, are over so soon that they need no thread
        self.lock = asyncio.Lock()  # held while a request is being carried out
        self.used = 0.0  # the clock at the last request


class SessionStore:
    """All open sessions, the longest unused first.

    Places are taken before an environment is made, so that requests that arrive together cannot exceed the limits.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._of_client: Counter[str] = Counter()
        self.places = 0
        self.envs = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def take_place(self, owner: str, num_envs: int | None) -> None:
        """Take a place for a session that is about to be made.

        Raises:
            RequestError: there is none left.
        """
        self.expire()
        limits, envs = self._limits, num_envs or 0
        if envs > limits.max_batch:
            raise RequestError(
                "too_large", f"num_envs={envs} is above {limits.max_batch}, the most that a batch may have."
            )
        for used, most, what in (
            (self.places + 1, limits.max_sessions, "sessions"),
            (self._of_client[owner] + 1, limits.max_per_client or limits.max_sessions, "sessions of one client"),
            (self.envs + envs, limits.max_envs, "environments in batches"),
        ):
            if used > most:
                raise RequestError(
                    "full",
                    f"this server has {most} {what} at most, and they are taken: close some, or wait; a session that "
                    f"is not used for {limits.session_ttl:g} seconds is closed.",
                    retry_after=min(60.0, limits.session_ttl),
                )
        self.places += 1
        self.envs += envs
        self._of_client[owner] += 1

    def give_place_back(self, owner: str, num_envs: int | None) -> None:
        """Give a place back whose session was not made, or is closed."""
        self.places -= 1
        self.envs -= num_envs or 0
        self._of_client[owner] -= 1
        if not self._of_client[owner]:
            del self._of_client[owner]

    def put(self, session: Session) -> None:
        """Open a session whose place is taken."""
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
        self.give_place_back(session.owner, session.num_envs)
        session.env.close()

    def expire(self) -> None:
        """Close the sessions that were not used for long."""
        for session in list(self._sessions.values()):
            if self._expired(session):
                del self._sessions[session.id]
                self.give_place_back(session.owner, session.num_envs)
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
