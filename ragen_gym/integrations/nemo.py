"""The games as resources servers of NeMo Gym (0.7), which its ``gymnasium_agent`` plays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Literal

from fastapi import FastAPI, HTTPException, Request
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import BaseModel, Field, ValidationError
from resources_servers.gymnasium import GymnasiumServer

from ragen_gym.integrations.rollout import Rollout, noise_seed_of

Step = tuple[str, float, bool, bool, dict[str, Any]]
_EPISODES = count()


class Level(BaseModel):
    """Fields of a row about its episode, besides the keys of NeMo Gym."""

    seed: int = Field(ge=0, strict=True)
    split: Literal["train", "validation", "test"]
    level_id: str | None = None  # checked, where it is given
    noise_seed: int | None = Field(None, ge=0, strict=True)  # of the transition noise; None: of this rollout alone


@dataclass
class _Session:
    rollout: Rollout
    noise_seed: int
    request: str | None = None  # the agent's id of the last step, with which it may ask for that step again
    last: Step | None = None

    def info(self) -> dict[str, Any]:
        seeds = {"seed": self.rollout.seed, "noise_seed": self.noise_seed, "level_id": self.rollout.level_id}
        return {**seeds, "game_return": self.rollout.total, **self.rollout.metrics()}


class GameServer(GymnasiumServer):
    """A server of one game. A session plays one episode, any number of them at a time.

    The reward is 1 for the reply that wins and 0 for any other; ``game_return`` of ``info`` sums up the game's own.
    """

    ray_enabled = False
    game: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}  # see ``Rollout``

    def setup_webserver(self) -> FastAPI:
        """The routes of ``GymnasiumServer``, and ``/close``, which its agent calls at the end of every episode."""
        app: FastAPI = super().setup_webserver()
        app.post("/close")(self._close)
        return app

    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of a row; the first user message. Status 422: no ``Level``, or not that of ``level_id``."""
        try:
            row = Level.model_validate(metadata)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise HTTPException(422, f"the row names no level of {self.game}: {said}.") from error
        index = metadata.get(TASK_INDEX_KEY_NAME), metadata.get(ROLLOUT_INDEX_KEY_NAME)
        name = f"{row.split} {row.seed} {index}" if None not in index else str(next(_EPISODES))
        noise_seed = noise_seed_of(f"nemo {name}") if row.noise_seed is None else row.noise_seed
        rollout = Rollout(self.game, split=row.split, **self.options)
        message = rollout.begin(row.seed, noise_seed)
        if row.level_id not in (None, rollout.level_id):
            problem = f"seed {row.seed} of {row.split} is level {rollout.level_id}, the row says {row.level_id}"
            raise HTTPException(422, f"{problem}: were the rows written with other options of the game?")
        self.session_state[session_id] = session = _Session(rollout, noise_seed)
        return message, {**session.info(), "supports_explicit_close": True, "supports_step_idempotency": True}

    async def step(self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str | None = None) -> Step:
        """Take the text of a reply; the next user message. Status 409: the session has no episode, or it is over."""
        session: _Session | None = self.session_state.get(session_id)
        request = metadata.get("_ng_step_request_id")
        if session and session.last and request and request == session.request:
            return session.last
        if session is None or session.rollout.over:
            raise HTTPException(409, "this session has no episode to go on with: POST /reset first, with its cookie.")
        rollout, text = session.rollout, session.rollout.reply_message(action.output)
        won, truncated = bool(rollout.info["success"]), bool(rollout.metrics()["truncated"])
        session.last = step = (text, float(won), rollout.over and not truncated, truncated, session.info())
        session.request = request
        return step

    async def close_session(self, session_id: str | None) -> None:
        """Release an episode that is over, or leave it to ``/close`` where the agent may repeat its last step."""
        if not getattr(self.session_state.get(session_id), "request", None):
            self._cleanup_session(session_id)

    async def _close(self, request: Request) -> dict[str, bool]:
        self._cleanup_session(request.session.get(SESSION_ID_KEY))
        return {"ok": True}
