"""Anthropic's Messages."""

from __future__ import annotations

import json
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
    read_text,
)

#: Fields that are read, or that do not change the text; see ``chat``.
_TAKEN = {
    *("messages", "model", "system", "stop_sequences", "max_tokens", "temperature", "stream"),
    *("metadata", "service_tier", "speed", "inference_geo", "cache_control", "diagnostics"),
    *("user_profile_id", "workspace_id"),
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "output_config": ({},),
}
#: Types of errors by their status; others are invalid requests.
_ERRORS = {404: "not_found_error", 408: "timeout_error", 409: "conflict_error", 413: "request_too_large"}


def read(body: Mapping[str, Any]) -> Request:
    """A request; see ``Dialect``."""
    check_fields(body, _TAKEN, _NEUTRAL)
    system = read_text(body.get("system") or "", "system")
    messages = read_messages(body.get("messages"), "messages", system=system)
    return Request(messages, read_limit(body, "max_tokens"), read_stop(body, "stop_sequences"))


def answer(body: Mapping[str, Any], reply: Completion) -> dict[str, Any]:
    """A reply; see ``Dialect``."""
    ended = "end_turn" if reply.stop is None else "stop_sequence"
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model", "policy")),
        "content": [{"type": "text", "text": reply.text}],
        "stop_reason": ended if reply.stopped else "max_tokens",
        "stop_sequence": reply.stop,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.tokens},
    }


def stream(body: Mapping[str, Any], reply: Completion) -> str:
    """A reply as server-sent events; see ``Dialect``."""
    whole = answer(body, reply)
    [block], usage = whole["content"], whole["usage"]
    end = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    begun = {**whole, "content": [], **dict.fromkeys(end), "usage": {**usage, "output_tokens": 0}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {**block, "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def refusal(error: RequestError) -> dict[str, Any]:
    """An error; see ``Dialect``."""
    kind = "api_error" if error.status >= 500 else _ERRORS.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": None}
