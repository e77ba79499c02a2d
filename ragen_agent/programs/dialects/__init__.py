"""The APIs that the endpoint speaks: each reads a request, and writes a reply, its stream and an error in its form.

A reply is sampled whole before it is sent, so a stream holds its text in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ragen_agent.programs.dialects import chat, messages, responses
from ragen_agent.programs.request import Completion, Request, RequestError

__all__ = ["CHAT", "DIALECTS", "Dialect"]


@dataclass(frozen=True)
class Dialect:
    """An API.

    Attributes:
        read: a request from its JSON body; raises a ``RequestError``.
        answer: a reply to this body as a JSON object.
        stream: the same as server-sent events.
        refusal: an error as a JSON object.
    """

    read: Callable[[Mapping[str, Any]], Request]
    answer: Callable[[Mapping[str, Any], Completion], dict[str, Any]]
    stream: Callable[[Mapping[str, Any], Completion], str]
    refusal: Callable[[RequestError], dict[str, Any]]


CHAT = Dialect(chat.read, chat.answer, chat.stream, chat.refusal)
#: APIs by the path of their requests.
DIALECTS = {
    "v1/chat/completions": CHAT,
    "v1/messages": Dialect(messages.read, messages.answer, messages.stream, messages.refusal),
    "v1/responses": Dialect(responses.read, responses.answer, responses.stream, chat.refusal),
}
