"""Answers of chat completion servers: completions, whole or streamed, and errors in the words of many vendors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from ragen_gym.bench.agent import Answer
from ragen_gym.bench.records import MOST
from ragen_gym.envs.messages import read_answer

__all__ = [
    "RETRIED",
    "ProviderError",
    "Trouble",
    "is_overflow",
    "joined_chunks",
    "read_completion",
    "said_by",
    "trouble_of",
]

#: The statuses below 500 after which a request is sent again.
RETRIED = frozenset({408, 409, 425, 429})
_NOT_ABOUT_THE_REQUEST = RETRIED | {401, 402, 404}

_FLAGS = re.IGNORECASE | re.DOTALL
#: A conversation is too long. The tests name whose words these are, as for the rest.
_OVERFLOW = re.compile(
    r"context.?(length|size|window|limit)|context.{0,10}overflow|max(imum)?.?(allowed.)?(model|sequence|input|prompt|seq).?len"
    r"|\b(prompt|input|messages?|request|conversation)\b.{0,60}\btoo (long|large)"
    r"|inputs`? (must have less|tokens \+)|string too long|too many (input |prompt )?tokens|too many.{0,20} bytes"
    r"|\btoken.?(limit|count)\b.{0,40}(exceed|only supports)|exceed.{0,40}\b(token|input|prompt|size).?limit"
    r"|\b(input|prompt|tokens?|size)\b.{0,10}limit exceeded"
    r"|\b(input|prompt|(?<!maximum )tokens?)\b.{0,40}\b(exceed|(greater|more) than).{0,40}(max|limit|capacity|allow)"
    r"|input.?tokens.{0,20}\+.{0,40}>|tokens\W{0,3} must be at least 1, got (0|-)|maxLength: \d"
    r"|range of input length|reduce the length of the (messages|prompt|input)|tokens_limit_reached"
    r"|larger than the model capacity|max_num_tokens|string_above_max_length|error_limit"
    r"|超长|过长|超[过出].{0,12}(长度|上限|上下文)|(长度|tokens?).{0,6}超[过出]",
    _FLAGS,
)
#: Limits and states of an account, and of settings, which speak of tokens and policies too.
_ACCOUNT = re.compile(
    r"rate.?limit|per.(minute|hour|day|second)\b|\b[TR]P[MD]\b|daily|monthly|quota|throttl|please wait"
    r"|too many requests|billing|suspend|deactivat|\baccount\b|\borgani[sz]ation\b"
    r"|\byour plan\b|max_(completion_|output_)?tokens\W{0,3} must be(?! at least 1, got (0|-))",
    _FLAGS,
)
#: A provider's filter blocks the prompt.
_BLOCKED = re.compile(
    r"content.?filter(?!_(result|offset))|content.?(management.?)?policy|usage (policy|policies|guidelines)"
    r"|invalid_prompt|responsible.?ai|data.?inspection.?failed|inappropriate.content|\bflagged\b"
    r"|prohibited.?(content|use)|(safety|moderation).{0,20}(system|filter|block|reject|polic|violat)"
    r"|block.?reason|blocked.{0,20}safety|guardrail.{0,20}interven"
    r"|content exists risk|considered high risk|sensitive.{0,3}(content|words?|information)|new_sensitive"
    r"|敏感|违规|不安全",
    _FLAGS,
)
#: A field of the request is refused, whose name may be that of a filter.
_FIELD = re.compile(
    r"(unsupported|unknown|unrecogni[sz]ed|unexpected|invalid|extra)\W(request\W)?(parameter|argument|field|keyword|input)"
    r"|is not a (valid|supported) (parameter|argument|field)"
    r"|(parameter|argument|field)\b.{0,40}\bnot (supported|permitted|allowed)",
    _FLAGS,
)
#: An endpoint takes no system message, or only streams. The other way is tried once, and kept if it helps.
_NO_SYSTEM = re.compile(
    r"\b(system|developer)[\W_]{0,3}(role|message|prompt|instruction)s?\b.{0,60}(\bnot\b|n't|unsupported|disabled|invalid)"
    r"|(not|n't|un)\W?(support|allow|accept|permit|take|recogni[sz]ed)\w*\b.{0,60}\b(system|developer)\b"
    r"|\b(no|invalid|un\w+)\b.{0,30}\b(role|message|value|variant)\b.{0,20}\b(system|developer)\b"
    r"|\brole\W{1,4}(system|developer)\W{0,3}.{0,10}(\bnot\b|n't|\bun|invalid|illegal)|system\W{1,3}is not a valid role"
    r"|\bno system role|roles? must alternate|\bonly user\b.{0,40}\broles?"
    r"|\b(first|message|role|conversation)\b.{0,60}(must|should) (be|use|have|start).{0,20}\buser\b"
    r"|\buser\W{1,4}((or|and)\W{1,4})?(assistant|model)\b|system.{0,12}不支持|不支持.{0,12}system",
    _FLAGS,
)
_STREAM_ONLY = re.compile(
    r"non.?stream|\bonly.{0,20}\bstream|\bstream\w*\W{0,3}.{0,30}\b(required|must|true|enable|false)"
    r"|\b(requires?|must|enable|set|expected)\b.{0,30}\bstream|not support http call",
    _FLAGS,
)
#: Finish reasons of a filter, and of a provider's failure.
_FILTERED = re.compile(
    r"filter|safety|sensitive|blocklist|prohibited|recitation|spii|guardrail|refusal|toxic|moderation|policy",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"error|resource|abort|cancel|time.?out|interrupt|overload|unavailable|fail", re.IGNORECASE)


class ProviderError(Exception):
    """An answer with status 200 that holds an error, or not what a completion holds.

    Args:
        message: what the server says.
        code: its code, if it has one. One of HTTP's is also the ``status_code``.
    """

    def __init__(self, message: str, code: Any = None) -> None:
        super().__init__(message)
        self.message, self.code = message, code
        self.status_code = int(code) if re.fullmatch(r"[45]\d\d", str(code)) else None


class Trouble(Enum):
    """The kind of an error, by what helps."""

    BROKEN = auto()
    """Sending the request again may help."""
    REFUSED = auto()
    """Nothing helps."""
    OVERFLOW = auto()
    """The conversation does not fit the model's context."""
    BLOCKED = auto()
    """A filter of the provider blocks the prompt."""
    NO_SYSTEM = auto()
    """A conversation without a system message helps."""
    STREAM_ONLY = auto()
    """Streaming helps."""


def said_by(error: BaseException) -> str:
    """The text of an error, with what its body has besides a message: a gateway's quotes of the server behind it."""
    text, body = str(getattr(error, "message", "")), getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("message"), str):
        body = body.get("metadata")
    more = str(body) if body and str(body) not in text else ""
    return " ".join(filter(None, (text, more))) or f"{type(error).__name__}: {error}"


def trouble_of(error: Any, *, folds: bool, streams: bool) -> Trouble:
    """The kind of an error that a request was answered with.

    Args:
        error: of the client, or a ``ProviderError``; any other is taken for a cut answer.
        folds: whether the request had no system message.
        streams: whether it asked for a stream.
    """
    status, code = getattr(error, "status_code", None), str(getattr(error, "code", None))
    said = f"{code} {getattr(error, 'type', '')} {said_by(error)}"
    if status not in _NOT_ABOUT_THE_REQUEST and not _ACCOUNT.search(said):
        about_the_prompt = (not status or status < 500) and not _FIELD.search(said)
        kinds = [(Trouble.OVERFLOW, _OVERFLOW)] + [(Trouble.BLOCKED, _BLOCKED)] * about_the_prompt
        kinds += [(Trouble.NO_SYSTEM, _NO_SYSTEM)] * (not folds) + [(Trouble.STREAM_ONLY, _STREAM_ONLY)] * (not streams)
        for kind, words in kinds:
            if words.search(said):
                return kind
        if status == 413:
            return Trouble.OVERFLOW
    refused = status is not None and status < 500 and status not in RETRIED
    return Trouble.REFUSED if refused or code == "insufficient_quota" else Trouble.BROKEN


def is_overflow(text: str) -> bool:
    """True if an error says that a conversation does not fit the model's context."""
    return _OVERFLOW.search(text) is not None and _ACCOUNT.search(text) is None


def read_completion(answer: Any, retries: int = 0) -> Answer:
    """The reply, the reasoning next to it and the counts of a completion, as its JSON was decoded.

    Raises:
        ProviderError: it is not a completion, or it holds an error or no reply.
    """
    if not isinstance(answer, Mapping):
        raise ProviderError(f"the server answered no JSON object: {str(answer)[:200]!r}")
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    message, reason = choice.get("message"), choice.get("finish_reason")
    reason = reason if isinstance(reason, str) else None
    filtered = reason is not None and _FILTERED.search(reason) is not None
    message = {} if message is None and filtered else message
    for place in (answer, choice, message):
        if isinstance(place, Mapping) and (error := place.get("error")):
            code = error.get("code") if isinstance(error, Mapping) else None
            raise ProviderError(f"the server answered an error: {error}", code)
    if not isinstance(message, Mapping):
        raise ProviderError(f"the server answered no choice: {str(answer)[:200]}", answer.get("code"))
    try:
        text, reasoning = read_answer(message)
    except ValueError as error:
        raise ProviderError(str(error)) from None
    if reason and not filtered and (_BROKEN.search(reason) or (not text and is_overflow(reason))):
        raise ProviderError(f"the server broke off, with finish_reason {reason!r}")
    usage = answer.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    return Answer(
        text=text,
        reasoning=reasoning,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        finish_reason=reason,
        retries=retries,
    )


def joined_chunks(chunks: Sequence[Any], *, ended: bool) -> dict[str, Any]:
    """The completion that the chunks of a stream make; the fragments of a field stand in it as a list of parts.

    Args:
        chunks: as their JSON was decoded.
        ended: whether the stream said that it had ended.

    Raises:
        ProviderError: a chunk is not an object, or the stream ended before the reply.
    """
    answer: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: dict[str, list[Any]] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise ProviderError(f"the server streamed no JSON object: {str(chunk)[:200]!r}")
        answer |= {name: value for name, value in chunk.items() if value}
        for each in chunk.get("choices") or ():
            if isinstance(each, dict) and not each.get("index"):
                choice |= {name: value for name, value in each.items() if value} | {"message": message}
                for name, value in (each.get("delta") or each.get("message") or {}).items():
                    message.setdefault(name, []).append(value)
    if choice and not (ended or choice.get("finish_reason") or answer.get("error")):
        raise ProviderError("the server's stream ended before the reply did")
    return {**answer, "choices": [choice] * bool(choice)}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST else None
