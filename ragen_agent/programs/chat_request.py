"""Supported part of a chat-completions request: messages, length limit and stop sequences; all else is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragen_agent.programs.endpoint import RequestError
from ragen_gym.core.text import replace_surrogates

__all__ = ["ChatRequest", "Message", "read_request"]

Message = dict[str, str]

#: Fields that are read, or that do not change the text: names, storage, caching, speed. Training sets the temperature.
_TAKEN = {
    *("messages", "model", "stop", "max_tokens", "max_completion_tokens", "temperature"),
    *("user", "safety_identifier", "store", "metadata", "service_tier", "prediction", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
#: Neutral values of other fields. Null is neutral for every field.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stream": (False,),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    # Fields of vLLM and other servers, sent by clients as extra_body.
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


@dataclass(frozen=True)
class ChatRequest:
    """The part of a request that decides its reply.

    Attributes:
        messages: texts of the system, the user and the assistant, the last one the user's.
        most: maximum tokens of the reply; None for the limit of the settings.
        stop: texts before which the reply ends.
    """

    messages: list[Message]
    most: int | None
    stop: tuple[str, ...]


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request.

    Raises:
        RequestError: a value that is not allowed, or a field that would change the reply and is not supported.
    """
    for name, value in body.items():
        if value is None or name in _TAKEN:
            continue
        allowed = _NEUTRAL.get(name, ())
        if value not in allowed or isinstance(value, bool) is not isinstance(allowed[0], bool):
            neutral = f"{name} must be {json.dumps(allowed[0])}, or left out" if allowed else "leave it out"
            raise RequestError(400, "unsupported", f"{name} is not supported here (got {value!r:.100}): {neutral}.")
    most = body.get("max_completion_tokens")
    most = body.get("max_tokens") if most is None else most
    if most is not None and (type(most) is not int or most < 1):
        raise RequestError(400, "invalid", f"max_tokens is {most!r}; it must be a whole number from 1 on.")
    stop = body.get("stop")
    stop = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stop, list) or not all(isinstance(each, str) and each for each in stop):
        raise RequestError(400, "invalid", f"stop is {body['stop']!r:.100}; it must be a text or a list of texts.")
    try:
        return ChatRequest(_messages(body.get("messages")), most, tuple(stop))
    except ValueError as error:
        raise RequestError(400, "invalid", str(error)) from None


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list of at least one message.")
    messages = []
    for number, message in enumerate(value):
        role = message.get("role") if isinstance(message, Mapping) else None
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant") or (role == "system" and number):
            raise ValueError(
                f"messages[{number}] has the role {role!r}: it must be user or assistant, or system for the first."
            )
        for name, entry in message.items():
            if entry and name not in ("role", "content"):
                raise ValueError(f"messages[{number}] has {name}, which is not supported here: leave it out.")
        messages.append({"role": role, "content": _text(message.get("content"), number)})
    if messages[-1]["role"] != "user":
        raise ValueError("the last message must be the user's.")
    return messages


def _text(content: Any, number: int) -> str:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    ):
        raise ValueError(f"messages[{number}] must hold text: pictures and tools are not supported.")
    return replace_surrogates("".join(part["text"] for part in parts))
