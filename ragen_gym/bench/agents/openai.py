"""``openai:MODEL``: a model behind any server that speaks OpenAI's chat completions, through the official client.

**The key** is read from the environment, from ``OPENAI_API_KEY`` or the variable that ``key_env`` names, and is written
nowhere; should a server's answer quote it, it is redacted. A server that asks for no key needs none.

**Thinking.** Servers that separate the reasoning from the reply take the model's thinking tags away. Where a suite
wants replies that think, and a reply has no ``<think>`` of its own, the reasoning is put back before it:
``<think>reasoning</think>reply`` is what is parsed, recorded, and sent back as the conversation goes on. A reply with
one ``</think>`` and no ``<think>`` completes a thinking that the chat template has begun. With ``reasoning=drop`` the
reply is parsed as it came. Either way the record keeps the reasoning as the server gave it.

**Pictures** are sent as image parts, PNG files in data URLs.

**A system message** that the endpoint does not take begins the first user message, as in training with a chat template
without a place for one. The first refusal shows it, for the rest of the run.

**Failures.** The client sends a request again after a timeout, a cut connection, and HTTP 408, 409, 429 and 5xx, up to
``retries`` times, later each time or when ``Retry-After`` says. What still fails is a ``Failure.TIMEOUT`` or a
``Failure.MODEL_ERROR``; a conversation that is too long for the model is a ``Failure.CONTEXT_OVERFLOW``.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task, as_data_urls
from ragen_gym.bench.records import MOST
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import mix
from ragen_gym.core.text import without_controls
from ragen_gym.core.validation import check_number
from ragen_gym.envs.messages import fold_system, read_answer
from ragen_gym.envs.reply import whole_reply

_LOG = logging.getLogger(__name__)

_KEY = "OPENAI_API_KEY"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FLAGS = re.IGNORECASE | re.DOTALL
#: A conversation is too long, in the words of OpenAI, Anthropic, Gemini, vLLM, SGLang, llama.cpp and TGI.
_OVERFLOW = re.compile(
    r"context.?(length|size|window)|maximum (model|sequence|input|prompt)?.?length"
    r"|\b(prompt|input|messages|request)\b.{0,60}\btoo (long|large)|reduce the length of the (messages|prompt)"
    r"|\b(input|prompt|token)\b.{0,40}\bexceed.{0,40}\b(max|limit)|inputs`? (must have less|tokens \+)",
    _FLAGS,
)
#: A limit of the account speaks of tokens, too.
_RATE = re.compile(r"rate.?limit|per.(minute|hour|day)\b|\b[TR]P[MD]\b|quota", _FLAGS)
#: An endpoint may take no system message: the other way is tried once, and kept if it helps.
_SYSTEM = re.compile(r"\b(system|developer)\b|roles? must alternate", _FLAGS)
#: Finish reasons of a provider's failure.
_BROKEN = ("error", "insufficient_system_resource")


class OpenAIAgent:
    """Asks a chat-completions server.

    Args:
        model: the model's name there.
        base_url: where the server is, such as ``"http://127.0.0.1:8000/v1"``; None for OpenAI's own, or what
            ``OPENAI_BASE_URL`` says.
        max_tokens: the most tokens of a reply, reasoning included; None leaves it to the server. Where a suite limits
            the tokens of a turn, the lower limit holds.
        key_env: the environment variable that holds the key.
        timeout: seconds for one request.
        retries: how often a failed request is sent again.
        reasoning: ``"think"`` or ``"drop"``; see the module.
        omit: names of fields that the server refuses, such as ``"temperature,seed"``.
        extra: further fields of the request, such as ``{"top_p": 0.9}``; they go before the agent's own.

    Raises:
        ValueError: a setting that is not allowed, or no key for a server that is not on this machine.
        ImportError: the extra ``bench`` is not installed.
    """

    keeps_time = whole_replies = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        max_tokens: int | None = None,
        key_env: str = _KEY,
        timeout: float = 120.0,
        retries: int = 5,
        reasoning: str = "think",
        omit: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self._model = f"openai:{model}", model
        check_number(self.name, "timeout", timeout, 0)
        check_number(self.name, "retries", retries, 0, whole=True)
        check_number(self.name, "max_tokens", max_tokens, 1, whole=True, none=True)
        if reasoning not in ("think", "drop"):
            raise ValueError(f"{self.name}: reasoning={reasoning!r} must be 'think' or 'drop'.")
        self._key = os.environ.get(key_env, "").strip()
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        place = _address(self._base_url or "https://api.openai.com/v1")
        if not self._key and (self._base_url is None or key_env != _KEY):
            raise ValueError(
                f"{self.name}: the environment variable {key_env} holds no key: set it, or give --key-env."
            )
        self._max_tokens, self._timeout, self._retries = max_tokens, float(timeout), retries
        self._reasoning, self._omit = reasoning, frozenset(filter(None, (name.strip() for name in omit.split(","))))
        self._extra = dict(extra or {})
        if self._extra.get("stream"):
            raise ValueError(f'{self.name}: extra has "stream", and replies are not streamed: leave it out.')
        self._folds = False
        try:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        except ImportError as error:
            raise ImportError("openai: agents need the extra `bench`: pip install 'ragen-gym[bench]'") from error
        self._client = AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._base_url,
            timeout=self._timeout,
            max_retries=self._retries,
            http_client=DefaultAsyncHttpxClient(trust_env=place.hostname not in _LOOPBACK),  # no proxy to this machine
        )
        self.settings = {
            # Without the port: a server that was started again may listen at another.
            "server": f"{place.hostname}{place.path.rstrip('/')}",
            "max_tokens": max_tokens,
            "reasoning": reasoning,
            "omit": sorted(self._omit),
            "extra": self._extra,
        }
        self.circumstances = {"base_url": place.geturl(), "timeout": self._timeout, "retries": retries}

    async def start(self) -> str | None:
        """See that the server is there; a notice where it does not list the model.

        Raises:
            ValueError: it cannot be reached, or refuses the key.
        """
        import openai

        url = self.circumstances["base_url"]
        try:
            quick = self._client.with_options(max_retries=0, timeout=min(self._timeout, 10.0))
            known = [model.id for model in (await quick.models.list()).data]
        except openai.AuthenticationError as error:
            raise ValueError(f"{url} refuses the key: {self._clean(str(error))}") from None
        except openai.APIConnectionError as error:
            if type(error.__cause__).__name__ == "ConnectError":
                raise ValueError(f"cannot reach {url}: start the server, or correct --base-url.") from None
            return None
        except Exception:  # many servers list no models; the requests themselves will say what is wrong
            return None
        if known and self._model not in known:
            return self._clean(f"the server lists {', '.join(known[:5])}{' …' * (len(known) > 5)}, not {self._model}")
        return None

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """The model's reply.

        Raises:
            AgentFailure: the server refused, broke, or took too long.
        """
        import openai

        try:
            answer = await self._ask(messages, task)
        except openai.APITimeoutError:
            detail = f"no answer within {self._timeout:g} s (asked {self._retries + 1} times)"
            raise AgentFailure(Failure.TIMEOUT, detail) from None
        except Exception as error:
            raise self._failure(error) from None
        text, reasoning = self._redact(answer.text), answer.reasoning and self._redact(answer.reasoning)
        if self._reasoning == "think":
            text = whole_reply(text, reasoning=reasoning, think=task.env.config.think)
        return replace(answer, text=text, reasoning=reasoning)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(self, messages: Sequence[Message], task: Task) -> Answer:
        import openai

        try:
            return await self._send(fold_system(messages) if self._folds else messages, task)
        except openai.APIStatusError as error:
            if self._folds or messages[0]["role"] != "system" or not _SYSTEM.search(_said(error)):
                raise
            answer = await self._send(fold_system(messages), task)
        _LOG.warning("%s takes no system message: it begins the first user message instead", self.name)
        self._folds = True
        return answer

    async def _send(self, messages: Sequence[Message], task: Task) -> Answer:
        body: dict[str, Any] = {
            "temperature": task.temperature,
            # Another one for each turn, below 2**31, which every server takes.
            "seed": mix(task.seed + len(messages)) & 0x7FFFFFFF,
        }
        limits = [limit for limit in (self._max_tokens, task.env.config.max_tokens_per_turn) if limit is not None]
        if limits:
            body["max_tokens"] = min(limits)
        body = {name: value for name, value in (body | self._extra).items() if name not in self._omit}
        answer = await self._client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=as_data_urls(messages),  # type: ignore[arg-type]  # unions of dictionaries in its signature
            extra_body=body,
        )
        return _read_completion(answer.text, answer.retries_taken)

    def _failure(self, error: Exception) -> AgentFailure:
        """An error of a request as the failure of the episode."""
        response, said = getattr(error, "response", None), _said(error)
        too_long = getattr(response, "status_code", None) == 413 or _OVERFLOW.search(said)
        if response is not None and response.status_code != 429 and too_long and not _RATE.search(said):
            return AgentFailure(Failure.CONTEXT_OVERFLOW, self._clean(said))
        status = "" if response is None else f"HTTP {response.status_code}: "
        cause = f": {error.__cause__}" if error.__cause__ else ""
        return AgentFailure(Failure.MODEL_ERROR, self._clean(f"{status}{said}{cause}"))

    def _redact(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= 6 else text  # shorter ones occur in any text

    def _clean(self, text: str) -> str:
        """An error in a line, without the key and what a terminal would obey."""
        return without_controls(self._redact(" ".join(text.split()))[:500])


def _said(error: Any) -> str:
    """The text of an error, with what its body has besides a message: a gateway's quotes of the server behind it."""
    text, body = str(getattr(error, "message", error)), getattr(error, "body", None)
    return f"{text} {body}" if body and str(body) not in text else text


def _read_completion(text: str, retries: int) -> Answer:
    """The reply, the reasoning next to it and the counts of a completion's JSON; a ValueError if it is not one."""
    try:
        completion = json.loads(text)
        choice = completion["choices"][0]
        reply, reasoning = read_answer(choice["message"])
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"the server answered no completion: {text[:200]!r}") from None
    reason = choice.get("finish_reason")
    if completion.get("error") or choice.get("error") or reason in _BROKEN:
        raise ValueError(f"the server answered an error: {text[:200]!r}")
    usage = completion.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt, written = (
        count if type(count) is int and 0 <= count <= MOST else None
        for count in map(counts.get, ("prompt_tokens", "completion_tokens"))
    )
    return Answer(reply, reasoning, prompt, written, reason if isinstance(reason, str) else None, retries)


def _address(url: str) -> SplitResult:
    """The parts of an address; raises a ValueError if it is none, or holds a password."""
    if "@" in url:
        raise ValueError("base_url holds a user's name or password: give a key in the environment instead.")
    with suppress(ValueError):  # no port, no IPv6 address
        place = urlsplit(url)
        if place.scheme in ("http", "https") and place.hostname and (place.port is None or place.port > 0):
            return place
    raise ValueError(f"base_url={url!r} is not a valid URL; use e.g. http://127.0.0.1:8000/v1.")
