"""The open sessions: the memory that they may hold, and when they expire."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ragen_gym.core.turn_config import TurnConfig
from ragen_gym.games.game import Game
from ragen_gym.serve import Limits
from ragen_gym.serve.schemas import CreateRequest, RequestError

if TYPE_CHECKING:
    from ragen_gym.serve.served_envs import ServedEnv

__all__ = ["Session", "SessionStore", "session_bytes"]


def session_bytes(game: Game, request: CreateRequest, turns: TurnConfig, max_reply: int) -> int:
    """An upper estimate of the bytes that a session comes to hold; measured for every game at its largest."""
    levels = [text.split("\n") for text in request.levels or []]
    height = max([game.height, *map(len, levels)])
    width = max([game.width, *(len(line) for lines in levels for line in lines)])
    board = height * width
    held = 2**16 + sum(1_024 + 16 * len(text) for text in request.levels or [])
    held += 4 * board * 256 if request.num_envs is None else (1_024 + 32 * board) * request.num_envs
    if request.grain == "turn":
        pixels = 0
        if turns.sees:
            from ragen_gym.render.frames import frame_shape

            side = frame_shape(game, turns.image_tile_size)[0] // game.height
            margin = int(turns.image_coordinates)
            pixels = (height + margin) * (width + margin) * side**2 * 3
        # Five pictures more for the bounds of the space and for the painter.
        held += (turns.max_turns + 1) * (pixels + 8 * board) + 5 * pixels + 4 * max_reply
    return held


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
