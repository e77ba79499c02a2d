"""Messages of chat APIs: pictures among their parts, the system message, and the answers of servers.

Messages that hold pictures are lists of parts, in the shape that OpenAI's API and Hugging Face's chat templates share.
A part is ``{"type": "text", "text": …}`` or ``{"type": "image"}``; the pictures are kept apart, in the order of the
image parts, until ``with_images`` puts them in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: What stands for a picture where a message is one text.
IMAGE = "<image>"

#: Where servers put a reasoning that they keep apart from the text, the most common first.
_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
#: The entries of a part that hold text or further parts, and those that hold reasoning.
_TEXTS = ("text", "value", "content", "parts", "refusal")
_THOUGHTS = (*_REASONING, "summary", "reasoningContent", "reasoningText")
_THINKING = re.compile("think|thought|reason", re.IGNORECASE)


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


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose system message begins the first user message, before an empty line; others as they are."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *others = messages
    if not others or others[0]["role"] != "user":  # whose message does not become the user's
        return [{**system, "role": "user"}, *others]
    lead, content = f"{system['content']}\n\n", others[0]["content"]
    folded = lead + content if isinstance(content, str) else [*parts_of(lead), *content]
    return [{**others[0], "content": folded}, *others[1:]]


def read_answer(message: Any) -> tuple[str, str | None]:
    """The text of a server's message and the reasoning that it keeps apart, or None.

    The text may be a list or a dict of parts, of which those that think are reasoning. A message without a text is its
    refusal, if it has one.

    Args:
        message: of a chat completion, or one of its parts, or several: JSON, or objects of a client library.

    Raises:
        ValueError: its content is neither text nor parts.
    """
    fields = _plain(message)
    if not isinstance(fields, Mapping):
        fields = {"content": fields}
    said, thought = list[str](), list[str]()
    content = fields.get("content")
    if not isinstance(content, Sequence | Mapping | None):
        raise ValueError(f"the server answered no text: {str(content)[:200]!r}")
    _collect(content, said, thought, thinks=False)
    for name in _REASONING:
        if not "".join(thought):
            _collect(fields.get(name), thought, thought, thinks=True)
    if not "".join(said):
        _collect(fields.get("refusal"), said, said, thinks=False)
    return "".join(said), "".join(thought) or None


def _collect(value: Any, said: list[str], thought: list[str], *, thinks: bool) -> None:
    value = _plain(value)
    if isinstance(value, str):
        (thought if thinks else said).append(value)
    elif isinstance(value, Mapping):
        thinks = thinks or value.get("thought") is True or bool(_THINKING.search(str(value.get("type"))))
        for name, inner in value.items():
            if name in _TEXTS or name in _THOUGHTS:
                _collect(inner, said, thought, thinks=thinks or name in _THOUGHTS)
    elif isinstance(value, Sequence):
        for part in value:
            _collect(part, said, thought, thinks=thinks)


def _plain(value: Any) -> Any:
    """A value of JSON; of an object of a pydantic model its fields, further ones included."""
    return dict(value) if hasattr(value, "model_dump") else value


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
