"""Answers of a chat-completions server, checked field by field."""

from __future__ import annotations

import re
from typing import Any

from ragen_gym.bench.agent import AgentFailure, Answer
from ragen_gym.core.failures import Failure

__all__ = ["is_overflow", "read_completion", "with_reasoning"]

#: How OpenAI, vLLM, SGLang, llama.cpp, TGI and Anthropic's gateway say that a conversation is too long.
_OVERFLOW = re.compile(
    r"context.?length|context.?size|context.?window|max(imum)?.?(model|sequence|input|prompt).?len"
    r"|(prompt|input)\b.{0,60}\btoo (long|large)|too many (input )?tokens|inputs` must have less than",
    re.IGNORECASE | re.DOTALL,
)
_TAG = re.compile(r"<(/?(?:think|answer))>")


def is_overflow(text: str) -> bool:
    """Whether an error says that a conversation does not fit the model's context."""
    return _OVERFLOW.search(text) is not None


def read_completion(answer: Any, retries: int = 0) -> Answer:
    """The reply, the reasoning next to it and the counts of a completion, as its JSON was decoded.

    Raises:
        ValueError: it is no completion, or holds no reply.
        AgentFailure: it is an error that says that the conversation is too long.
    """
    if not isinstance(answer, dict):
        raise ValueError(f"the server answered no JSON object: {str(answer)[:200]!r}")
    if error := answer.get("error"):
        if is_overflow(str(error)):
            raise AgentFailure(Failure.CONTEXT_OVERFLOW, str(error))
        raise ValueError(f"the server answered an error: {error}")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError("the server answered no choice")
    content = message.get("content")
    content = "" if content is None else content  # nothing but reasoning was written before the length was spent
    if not isinstance(content, str):
        raise ValueError(f"the server answered no text: {str(content)[:200]!r}")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    reason = choice.get("finish_reason")
    return Answer(
        text=content,
        reasoning=reasoning if isinstance(reasoning, str) else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        finish_reason=reason if isinstance(reason, str) else None,
        retries=retries,
    )


def with_reasoning(content: str, reasoning: str) -> str:
    """The reply with its reasoning in thinking tags before it; tags quoted in the reasoning lose their brackets."""
    plain = _TAG.sub(r"\1", reasoning)
    return f"<think>{plain}</think>{content}"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
