"""The cases that NeMo Gym's ``gym env test`` plays against a game's server, without starting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.verifier_fixture import VerifierFixture
from pydantic import BaseModel

from ragen_gym.integrations.nemo import GameServer
from ragen_gym.integrations.rollout import Rollout


class Episode(BaseModel):
    """The request of a case of ``verifier_fixture``: a row and the replies to the messages of its episode."""

    row: dict[str, Any]
    replies: list[str]


def verifier_fixture(server: type[GameServer], cases: Path) -> VerifierFixture:
    """Cases of ``gym env test``, an ``Episode`` each, paid by the sum of the rewards of its replies."""
    Rollout(server.game, **server.options)  # an unknown game or option is an error here, and a module is imported once

    async def play(made: Any, request: Any) -> float:
        await made.reset(request.row)
        return float(sum([(await made.step(response(reply), {}))[1] for reply in request.replies]))

    def fix_noise(made: Any, request: Any) -> None:
        request.row.setdefault("noise_seed", 0)

    return VerifierFixture(lambda: server.model_construct(session_state={}), Episode, cases, play, fix_noise)


def response(text: str) -> NeMoGymResponse:
    """Answer of a model's server, with a text alone."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "0", "role": "assistant", "status": "completed", "content": content}
    kept = {"output": [message], "parallel_tool_calls": False, "tool_choice": "none", "tools": []}
    return NeMoGymResponse.model_validate({"id": "0", "created_at": 0, "model": "", "object": "response", **kept})
