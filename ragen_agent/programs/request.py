"""A program's request and its reply in no API's form, and what the readers of the APIs share.

Of a request messages, length limit and stop sequences are supported; any other field that would change the reply is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from ragen_gym.core.text import replace_surrogates

Message = dict[str, str]

#: Neutral values of fields that would change the reply. Null is neutral for every field.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "tools": ([],),
    # Fields of vLLM and other servers, sent by clients as extra_body.
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


class RequestError(Exception):
    """A refused request, with its HTTP ``status``."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Request:
    """The part of a request that decides its reply.

    Attributes:
        messages: texts of the system, the user and the assistant, the last one the user's.
        most: maximum tokens of the reply; None for the limit of the settings.
        stop: texts before which the reply ends.
    """

    messages: list[Message]
    most: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A reply to a request.

    Attributes:
        text: the text for the program, which ends before a stop sequence.
        prompt_tokens: number of tokens of the messages.
        tokens: number of tokens of the reply.
        stopped: True if the model or a stop sequence ended it, not its limit.
        stop: the stop sequence that ended it; None for none.
    """

    text: str
    prompt_tokens: int
    tokens: int
    stopped: bool
    stop: str | None = None


def check_fields(body: Mapping[str, Any], taken: Container[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse the fields of a request that would change the reply and are not supported.

    Args:
        body: the request.
        taken: fields that are read, or that do not change the text.
        neutral: of other fields of the API, the values that change nothing.

    Raises:
        RequestError: a field that is not in ``taken`` and has another value than a neutral one.
    """
    for name, value in body.items():
        if value is None or name in taken:
            continue
        allowed = neutral.get(name, _NEUTRAL.get(name, ()))
        if value not in allowed or isinstance(value, bool) is not isinstance(allowed[0], bool):
            hint = f"{name} must be {json.dumps(allowed[0])}, or left out" if allowed else "leave it out"
            raise RequestError(400, "unsupported", f"{name} is not supported here (got {value!r:.100}): {hint}.")
    for name, kind, said in (("stream", bool, "true or false"), ("stream_options", dict, "an object")):
        if not isinstance(body.get(name), kind | None):
            raise RequestError(400, "invalid", f"{name} is {body[name]!r:.100}; it must be {said}.")


def read_limit(body: Mapping[str, Any], name: str) -> int | None:
    """The maximum tokens of the reply by this field; None without it.

    Raises:
        RequestError: not a whole number from 1 on.
    """
    most = body.get(name)
    if most is not None and (type(most) is not int or most < 1):
        raise RequestError(400, "invalid", f"{name} is {most!r:.100}; it must be a whole number from 1 on.")
    return most


def read_stop(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The stop sequences by this field, a text or a list of texts.

    Raises:
        RequestError: anything else, or an empty text.
    """
    stop = body.get(name)
    stop = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stop, list) or not all(isinstance(each, str) and each for each in stop):
        raise RequestError(400, "invalid", f"{name} is {body[name]!r:.100}; it must be a text or a list of texts.")
    return tuple(stop)


def read_messages(
    value: Any, name: str, *, system: str = "", kinds: Container[str] = ("text",), unread: Container[str] = ()
) -> list[Message]:
    """The messages of a request.

    Args:
        value: the value of its field.
        name: the field's name.
        system: the system message, where another field holds it; empty for none.
        kinds: types of the content blocks that are text.
        unread: fields of a message besides its role and content that do not change the text.

    Raises:
        RequestError: no messages, or some that are not supported.
    """
    if not isinstance(value, list) or not value:
        raise RequestError(400, "invalid", f"{name} must be a list of at least one message.")
    messages = [{"role": "system", "content": system}] if system else []
    for number, message in enumerate(value):
        where = f"{name}[{number}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant") or (role == "system" and messages):
            hint = "user or assistant" if system else "user or assistant, or system for the first"
            raise RequestError(400, "invalid", f"{where} has the role {role!r:.100}: it must be {hint}.")
        for field, entry in message.items():
            if entry and field not in ("role", "content") and field not in unread:
                raise RequestError(400, "invalid", f"{where} has {field}, which is not supported here: leave it out.")
        messages.append({"role": role, "content": read_text(message.get("content"), where, kinds)})
    if messages[-1]["role"] != "user":
        raise RequestError(400, "invalid", "the last message must be the user's.")
    return messages


def read_text(content: Any, where: str, kinds: Container[str] = ("text",)) -> str:
    """A text, or the joined texts of content blocks of these ``kinds``; ``where`` names it in errors.

    Raises:
        RequestError: a block of another kind, such as a picture.
    """
    if isinstance(content, str):
        return replace_surrogates(content)
    if not isinstance(content, list) or not all(
        isinstance(part, Mapping) and part.get("type") in kinds and isinstance(part.get("text"), str)
        for part in content
    ):
        raise RequestError(400, "invalid", f"{where} must hold text: pictures and tools are not supported.")
    return replace_surrogates("".join(part["text"] for part in content))
