"""Messages that hold pictures: lists of parts, in the shape that OpenAI's API and Hugging Face's chat templates share.

A part is ``{"type": "text", "text": …}`` or ``{"type": "image"}``; the pictures are kept apart, in the order of the
image parts, until ``with_images`` puts them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["IMAGE", "map_images", "parts_of", "plain_text", "with_images"]

#: What stands for a picture where a message is one text.
IMAGE = "<image>"


def parts_of(text: str, *, picture: bool = False) -> list[dict[str, Any]]:
    """The parts of a message of that text; with a ``picture``, its last ``<image>`` is one.

    The last one, because a board may stand before the picture but not after it, and its symbols could spell anything.
    """
    before, image, after = text.rpartition(IMAGE) if picture else ("", "", text)
    parts: list[dict[str, Any]] = [{"type": "text", "text": before}] if before else []
    if image:
        parts.append({"type": "image"})
    return parts + [{"type": "text", "text": after}] * bool(after or not parts)


def plain_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The content of a message as one text, ``<image>`` for each picture."""
    if isinstance(content, str):
        return content
    return "".join(IMAGE if part["type"] == "image" else part["text"] for part in content)


def with_images(messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Messages whose image parts hold their pictures: ``{"type": "image", "image": picture}``; others as they are.

    Args:
        messages: of the information of a ``TurnEnv``.
        images: as many pictures as there are image parts, in their order, such as ``TurnEnv.images``.
    """
    if not images:
        return tuple(messages)
    pictures = iter(images)
    return map_images(messages, lambda part: {**part, "image": next(pictures)})


def map_images(
    messages: Sequence[Mapping[str, Any]], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    """Messages with every image part changed; those of plain text as they are."""
    return tuple(
        message
        if isinstance(message["content"], str)
        else {
            **message,
            "content": [change(part) if part["type"] == "image" else part for part in message["content"]],
        }
        for message in messages
    )
