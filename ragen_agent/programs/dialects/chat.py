"""OpenAI's chat completions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ragen_agent.programs.request import (
    Completion,
    Request,
    RequestError,
    check_fields,
    read_limit,
    read_messages,
    read_stop,
)

#: Fields that are read, or that do not change the text: names, storage, caching, speed. Training sets the temperature.
_TAKEN = {
    *("messages", "model", "stop", "max_tokens", "max_completion_tokens", "temperature", "stream", "stream_options"),
    *("user", "safety_identifier", "store", "metadata", "service_tier", "prediction", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
}


def read(body: Mapping[str, Any]) -> Request:
    """A request; see ``Dialect``."""
    check_fields(body, _TAKEN, _NEUTRAL)
    most = read_limit(body, "max_completion_tokens")
    most = read_limit(body, "max_tokens") if most is None else most
    return Request(read_messages(body.get("messages"), "messages"), most, read_stop(body, "stop"))


def answer(body: Mapping[str, Any], reply: Completion) -> dict[str, Any]:
    """A reply; see ``Dialect``."""
    message = {"role": "assistant", "content": reply.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if reply.stopped else "length", "logprobs": None}
    usage = {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.tokens,
        "total_tokens": reply.prompt_tokens + reply.tokens,
    }
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(body.get("model", "policy")),
        "choices": [choice],
        "usage": usage,
    }


def stream(body: Mapping[str, Any], reply: Completion) -> str:
    """A reply as server-sent events; see ``Dialect``."""
    whole = answer(body, reply)
    [choice], usage = whole.pop("choices"), whole.pop("usage")
    end, delta = choice["finish_reason"], {"delta": choice.pop("message")}
    chunks = [
        {"choices": [{**choice, **delta, "finish_reason": None}]},
        {"choices": [{**choice, "delta": {}, "finish_reason": end}]},
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks = [{**chunk, "usage": None} for chunk in chunks] + [{"choices": [], "usage": usage}]
    head = {**whole, "object": "chat.completion.chunk"}
    return "".join(f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def refusal(error: RequestError) -> dict[str, Any]:
    """An error; see ``Dialect``."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
