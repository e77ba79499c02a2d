"""Pictures of a conversation in the form that an agent beyond this process takes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_gym.bench.agent import AgentFailure, Message
from ragen_gym.core.failures import Failure
from ragen_gym.envs.messages import map_images
from ragen_gym.render.png import encode_png

__all__ = ["as_data_urls", "as_png", "refuse_pictures"]


def as_data_urls(messages: Sequence[Message]) -> list[Message]:
    """Messages with pictures as parts ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}``."""

    def part_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(part)}"}}

    return list(map_images(messages, part_of))


def as_png(messages: Sequence[Message]) -> list[Message]:
    """Messages with pictures as parts ``{"type": "image", "png": "…"}``, a PNG file in base64."""
    return list(map_images(messages, lambda part: {"type": "image", "png": _base64(part)}))


def refuse_pictures(messages: Sequence[Message], model: str) -> None:
    """Raise an ``AgentFailure`` where a text-only model is shown pictures."""
    if any(not isinstance(message["content"], str) for message in messages):
        raise AgentFailure(
            Failure.MODEL_ERROR,
            f"{model} reads text only, and the split shows pictures: choose a visual model, or a split with "
            "observation = 'text'",
        )


def _base64(part: Mapping[str, Any]) -> str:
    return b64encode(encode_png(part["image"])).decode()
