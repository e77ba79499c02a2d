"""OpenAI's Responses, without stored responses: a request holds the whole conversation."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from ragen_agent.programs.request import Completion, Request, RequestError, check_fields, read_limit, read_messages

#: Fields that are read, or that do not change the text; see ``chat``.
_TAKEN = {
    *("input", "model", "instructions", "max_output_tokens", "temperature", "stream", "stream_options"),
    *("user", "safety_identifier", "store", "metadata", "service_tier", "parallel_tool_calls", "max_tool_calls"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([],),
    "text": ({"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}, {}),
    "tool_choice": ("none", "auto"),
    "truncation": ("disabled",),
}


def read(body: Mapping[str, Any]) -> Request:
    """A request; see ``Dialect``."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            said = f"{name} is not supported here, since no response is stored: send the whole conversation as input."
            raise RequestError(400, "unsupported", said)
    check_fields(body, _TAKEN, _NEUTRAL)
    items, instructions = body.get("input"), body.get("instructions")
    if not isinstance(instructions, str | None):
        raise RequestError(400, "invalid", f"instructions are {instructions!r:.100}; they must be a text.")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    for number, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type", "message") if isinstance(item, Mapping) else "message"
        if kind != "message":
            raise RequestError(400, "unsupported", f"input[{number}] has the type {kind!r:.100}: it must be message.")
    kinds, unread = ("input_text", "output_text"), ("type", "id", "status")
    messages = read_messages(items, "input", system=instructions or "", kinds=kinds, unread=unread)
    return Request(messages, read_limit(body, "max_output_tokens"))


def answer(body: Mapping[str, Any], reply: Completion) -> dict[str, Any]:
    """A reply; see ``Dialect``."""
    status = "completed" if reply.stopped else "incomplete"
    text = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "status": status}
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.tokens,
    }
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None if reply.stopped else {"reason": "max_output_tokens"},
        "model": str(body.get("model", "policy")),
        "output": [{**item, "content": [text]}],
        "usage": usage,
        **{name: body.get(name) for name in ("instructions", "metadata", "max_output_tokens")},
        **{"parallel_tool_calls": False, "tool_choice": "none", "tools": [], "store": False},
    }


def stream(body: Mapping[str, Any], reply: Completion) -> str:
    """A reply as server-sent events; see ``Dialect``."""
    whole = answer(body, reply)
    [item] = whole["output"]
    [part] = item["content"]
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": begun}),
        ("in_progress", {"response": begun}),
        ("output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("content_part.added", {**place, "part": {**part, "text": ""}}),
        ("output_text.delta", {**place, "delta": part["text"], "logprobs": []}),
        ("output_text.done", {**place, "text": part["text"], "logprobs": []}),
        ("content_part.done", {**place, "part": part}),
        ("output_item.done", {"output_index": 0, "item": item}),
        (whole["status"], {"response": whole}),
    ]
    return "".join(
        f"event: response.{kind}\ndata: {json.dumps({'type': f'response.{kind}', 'sequence_number': n, **event})}\n\n"
        for n, (kind, event) in enumerate(events)
    )
