"""The open sessions and their environments; requests are carried out in threads, since a level may take long."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from threading import Lock
from typing import Any, TypeVar

import gymnasium
import numpy as np

from ragen_gym.core.turn_config import turn_config
from ragen_gym.core.validation import check_number
from ragen_gym.envs.turn import TurnEnv, make_turn
from ragen_gym.games._jit import compiling
from ragen_gym.games.registry import TABLE, GameSpec, build_game, find
from ragen_gym.render.png import encode_png
from ragen_gym.serve.schemas import CreateRequest, RequestError, ResetRequest, library_errors
from ragen_gym.serve.serialization import Json, Pixels, plain, space_json

T = TypeVar("T")

_THREADS = 4
_drawing = Lock()  # pygame's fonts are not thread-safe

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(answer: Any) -> bytes:
    """JSON in ASCII, so that even a lone surrogate can be sent back."""
    return _encoder.encode(answer).encode()


class ServedEnv:
    """One environment, with its state."""

    def __init__(self, env: Any) -> None:
        self.env = env  # as Gymnasium or ``ragen_gym.make_turn`` makes it
        self.playing = False  # whether a move or a reply will be taken
        self._reset_once = False

    def describe(self) -> Json:
        """The actions, spaces and horizon."""
        return {
            "action_names": [action.name.capitalize() for action in self.env.unwrapped.game.Action],
            "action_space": space_json(self.env.action_space),
            "observation_space": space_json(self.env.observation_space),
            "max_episode_steps": self.env.spec and self.env.spec.max_episode_steps,
            "instructions": None,
        }

    def reset(self, request: ResetRequest) -> Json:
        """Start an episode."""
        options = request.model_dump(exclude_none=True)
        seed = options.pop("seed", None)
        with library_errors():
            observation, info = self.env.reset(seed=seed, options=options or None)
        self._reset_once = self.playing = True
        return {**self._observed(observation), "info": self._info(info)}

    def step(self, action: int) -> Json:
        """Play one move."""
        raise RequestError("bad_value", "this session takes replies: create one with grain='step' for moves.")

    def turn(self, reply: str) -> Json:
        """Take a reply."""
        raise RequestError("bad_value", "this session takes moves: create one with grain='turn' for replies.")

    def state(self) -> Json:
        """Board and level as texts, None before the first reset."""
        inner = self.env.env if isinstance(self.env, TurnEnv) else self.env.unwrapped
        board, level = (inner.text, inner.level.text) if self._reset_once else (None, None)
        return {"playing": self.playing, "board": board, "level": level}

    def pixels(self) -> Pixels:
        """The picture of the board, uint8 (height, width, 3).

        Raises:
            RequestError: it was made without pictures, or no episode was started.
        """
        if self.env.render_mode is None:
            raise RequestError("bad_value", "this session draws nothing: create it with render=true.")
        with _drawing, library_errors():
            pixels: Pixels = self.env.render()
        return pixels

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _step(self, action: Any) -> Json:
        with library_errors():
            observation, reward, terminated, truncated, info = self.env.step(action)
        self.playing = not (terminated or truncated)
        ends = {"reward": float(reward), "terminated": terminated, "truncated": truncated}
        return {**self._observed(observation), **ends, "info": self._info(info)}

    def _observed(self, observation: Any) -> Json:
        return {"observation": plain(observation)}

    def _info(self, info: Json) -> Json:
        return {name: plain(value) for name, value in info.items()}


class ServedStep(ServedEnv):
    """Single moves: ``gymnasium.make`` of the spec's id."""

    def step(self, action: int) -> Json:  # noqa: D102
        if not self.playing:
            raise RequestError("no_episode", "the episode is over, or none was started: reset before a step.")
        return self._step(action)


class ServedTurn(ServedEnv):
    """Whole replies: ``ragen_gym.make_turn``."""

    def describe(self) -> Json:
        """The options of a turn and the system message too."""
        lowered = {name: getattr(self.env, name) for name in ("max_turns", "max_actions_per_turn", "max_actions")}
        return {
            **super().describe(),
            "max_episode_steps": self.env.max_turns,
            "instructions": self.env.instructions,
            "budgets": {**asdict(self.env.config), **lowered},  # a short game lowers them
        }

    def turn(self, reply: str) -> Json:  # noqa: D102
        return self._step(reply)

    def _observed(self, observation: Any) -> Json:
        if isinstance(observation, str):
            return {"observation": observation}
        picture = b64encode(encode_png(observation["image"])).decode()
        return {"observation": observation["text"], "images": [picture]}

    def _info(self, info: Json) -> Json:
        reply = info["reply"]  # the client has its text, and the conversation
        fields = reply and {name: value for name, value in vars(reply).items() if name != "text"}
        kept = {name: value for name, value in info.items() if name not in ("messages", "images")}
        return super()._info({**kept, "reply": fields, "action_names": self.env.action_names})


def _make_env(spec: GameSpec, request: CreateRequest) -> ServedEnv:
    """The environment that a request asks for; its game's options are known to be such.

    Raises:
        RequestError: the library does not allow a value, or arguments of the other grain were given.
    """
    by_turns = request.grain == "turn"
    for name, given, fits, needs in (
        ("budgets", request.budgets is not None, by_turns, "give grain='turn'"),
        ("max_episode_steps", request.max_episode_steps is not None, not by_turns, "give max_turns, among budgets"),
        ("observation='grid'", request.observation == "grid", not by_turns, "give the observation among budgets"),
    ):
        if given and not fits:
            raise RequestError("bad_value", f"{name} does not go with grain={request.grain!r}: {needs}.")
    fields = {"split", "preset", "levels", "skip_invalid", "text_format", "vocabulary", "tile_size"}
    arguments: Json = {**request.env_options, **request.model_dump(include=fields)}
    arguments["render_mode"] = "rgb_array" if request.render else None
    with library_errors():
        if request.render:
            from ragen_gym.render.canvas import load_pygame

            load_pygame()
        if by_turns:
            return ServedTurn(make_turn(spec.name, turn_config(None, request.budgets or {}), **arguments))
        if request.max_episode_steps is not None:
            arguments["max_episode_steps"] = request.max_episode_steps
        made = gymnasium.make(spec.id, disable_env_checker=True, observation=request.observation, **arguments)
        return ServedStep(made)


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
        with library_errors():
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
        env = session.env = _make_env(spec, request)
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
