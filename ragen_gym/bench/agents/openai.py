"""``openai:MODEL``: a model behind any server that speaks OpenAI's chat completions, through the official client.

**The key** is read from the environment, from ``OPENAI_API_KEY`` or the variable that ``key_env`` names, and is written
nowhere; should a server's answer quote it, it is redacted. A server that asks for no key needs none.

**Thinking.** Servers that separate a model's reasoning from its reply (``reasoning_content``, ``reasoning``,
``reasoning_details``, parts of the content that think) take the model's thinking tags away. Where a suite wants replies
that think, and a reply has no ``<think>`` of its own, the reasoning is put back before it:
``<think>reasoning</think>reply`` is what is parsed, recorded, and sent back as the conversation goes on. Tags quoted
inside the reasoning lose their brackets, since it is clear which answer is meant. A reply with one ``</think>`` and no
``<think>`` completes a thinking that the chat template has begun. With ``reasoning=drop`` the reply is parsed as it
came. Either way the record keeps the reasoning as the server gave it.

**Pictures** are sent as image parts, PNG files in data URLs.

**What an endpoint does not take.** If it takes no system message, the system message begins the first user message, as
in training with a chat template without a place for one. If it only streams, replies are streamed (always with
``extra={"stream": true}``). Either is found out by the first refusal, and holds for the rest of the run.

**Failures.** After a timeout, a cut connection, an answer that is no JSON or holds no choice, an error inside an answer
(in a choice too, or as a finish reason such as ``error`` or ``insufficient_system_resource``), and HTTP 408, 409, 425,
429 and 5xx, a request is sent again, up to ``retries`` times and later each time. Where the server says
``Retry-After``, all requests of the agent wait as long, and ten such waits count as one retry. What still fails is a
``Failure.TIMEOUT`` or a ``Failure.MODEL_ERROR``. An error because the conversation is too long for the model is a
``Failure.CONTEXT_OVERFLOW``. A refusal is the model's reply, whether the model writes it (``refusal``) or a filter of
its provider blocks the prompt, whose error is then the text, with the finish reason ``content_filter``. After any other
error (400, 401, 403, 404, 422, a spent quota) nothing is sent again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ragen_gym.bench.agent import AgentFailure, Answer, Message, Task, as_data_urls
from ragen_gym.bench.agents.chat_answers import Trouble, joined_chunks, read_completion, said_by, trouble_of
from ragen_gym.core.failures import Failure
from ragen_gym.core.seeding import GOLDEN, mix
from ragen_gym.core.text import without_controls
from ragen_gym.core.validation import check_number
from ragen_gym.envs.messages import fold_system
from ragen_gym.envs.reply import whole_reply

__all__ = ["OpenAIAgent", "RequestPacer", "backoff", "retry_after"]

_LOG = logging.getLogger(__name__)

_KEY = "OPENAI_API_KEY"
_WAITS = 10  # waits that the server asked for which count as one retry
_LONGEST_WAIT = 900.0
_LONGEST_ANSWER = 2**25  # bytes
_STREAM = re.compile(r"\s*(data|event|id|retry)?:")  # the first line of server-sent events
_DATA = re.compile(r"^data: ?(.*?)\r?$", re.MULTILINE)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


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
        requests_per_minute: the most requests a minute, or None for any number.
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
        requests_per_minute: float | None = None,
        reasoning: str = "think",
        omit: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if not model:
            raise ValueError("openai: names no model: write openai:MODEL, with the name that the server knows it by.")
        self.name, self._model = f"openai:{model}", model
        check_number(self.name, "timeout", timeout, 0)
        check_number(self.name, "retries", retries, 0, whole=True)
        check_number(self.name, "max_tokens", max_tokens, 1, whole=True, none=True)
        check_number(self.name, "requests_per_minute", requests_per_minute, 0, none=True)
        if requests_per_minute == 0:
            raise ValueError(f"{self.name}: requests_per_minute=0 would never ask: give a positive number.")
        if reasoning not in ("think", "drop"):
            raise ValueError(f"{self.name}: reasoning={reasoning!r} must be 'think' or 'drop'.")
        self._key = os.environ.get(key_env, "").strip()
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        place = _address(self._base_url or "https://api.openai.com/v1")
        if not self._key and (self._base_url is None or key_env != _KEY):
            raise ValueError(
                f"{self.name}: the environment variable {key_env} holds no key: set it, or give --key-env."
            )
        self._secrets = _secrets(self._key, place.username, place.password)
        self._local = place.hostname in _LOOPBACK
        self._max_tokens, self._timeout, self._retries = max_tokens, float(timeout), retries
        self._reasoning, self._omit = reasoning, frozenset(filter(None, (name.strip() for name in omit.split(","))))
        self._extra = dict(extra or {})
        if not isinstance(stream := self._extra.get("stream", False), bool):
            raise ValueError(f'{self.name}: extra has "stream": {stream!r}, which must be true or false.')
        self._folds, self._streams = False, stream
        self._pace = RequestPacer(requests_per_minute)
        self._client: Any = None
        self.settings = {
            # Without the port: a server that was started again may listen at another.
            "server": f"{place.hostname}{place.path.rstrip('/')}",
            "max_tokens": max_tokens,
            "reasoning": reasoning,
            "omit": sorted(self._omit),
            "extra": self._extra,
        }
        self.circumstances = {
            "base_url": f"{place.scheme}://{place.hostname}{f':{place.port}' if place.port else ''}{place.path}",
            "timeout": self._timeout,
            "retries": retries,
            "requests_per_minute": requests_per_minute,
        }

    async def start(self) -> str | None:
        """See that the server is there; a notice where it does not list the model.

        Raises:
            ValueError: it cannot be reached, or refuses the key.
        """
        import openai

        try:
            async with asyncio.timeout(min(self._timeout, 10.0)):
                page = await self._connected().models.list()
            known = [model.id for model in page.data]
        except openai.AuthenticationError as error:
            raise ValueError(f"{self.circumstances['base_url']} refuses the key: {self._clean(str(error))}") from None
        except openai.APIConnectionError as error:
            if type(error.__cause__).__name__ == "ConnectError":
                raise ValueError(
                    f"cannot reach {self.circumstances['base_url']}: start the server, or correct --base-url."
                ) from None
            return None
        except Exception:  # many servers list no models; the requests themselves will say what is wrong
            return None
        if known and self._model not in known:
            return self._clean(f"the server lists {', '.join(known[:5])}{' …' * (len(known) > 5)}, not {self._model}")
        return None

    async def reply(self, messages: Sequence[Message], task: Task) -> Answer:
        """Ask until there is an answer, or no more retries; see ``complete``."""
        config = task.env.config
        answer = await self.complete(
            messages, temperature=task.temperature, seed=task.seed, max_tokens=config.max_tokens_per_turn
        )
        if self._reasoning == "drop":
            return answer
        return replace(answer, text=whole_reply(answer.text, reasoning=answer.reasoning, think=config.think))

    async def complete(
        self, messages: Sequence[Message], *, temperature: float, seed: int, max_tokens: int | None = None
    ) -> Answer:
        """A completion of any conversation; ``max_tokens`` goes with the agent's own limit, the lower holds.

        Raises:
            AgentFailure: the server refused, broke, or took too long.
        """
        failures = waits = 0
        folds, streams = self._folds, self._streams
        while True:
            await self._pace.turn()
            try:
                async with asyncio.timeout(self._timeout):
                    body = self._body(messages, temperature, seed, max_tokens, folds=folds, streams=streams)
                    answer = read_completion(await self._post(body), failures + waits)
                self._keep(folds=folds, streams=streams)
                return self._without_key(answer)
            except TimeoutError:
                failure, detail, wait = Failure.TIMEOUT, f"no answer within {self._timeout:g} s", None
            except AgentFailure:
                raise
            except Exception as error:
                failure, detail, wait = Failure.MODEL_ERROR, self._describe(error), _wait_of(error)
                trouble = trouble_of(error, folds=folds or messages[0]["role"] != "system", streams=streams)
                if trouble is Trouble.BLOCKED:
                    return Answer(detail, finish_reason="content_filter", retries=failures + waits)
                if trouble is Trouble.OVERFLOW:
                    raise AgentFailure(Failure.CONTEXT_OVERFLOW, detail) from None
                if trouble is Trouble.REFUSED:
                    raise AgentFailure(failure, detail) from None
                if trouble is not Trouble.BROKEN:
                    folds, streams = folds or trouble is Trouble.NO_SYSTEM, streams or trouble is Trouble.STREAM_ONLY
                    continue
            waits, failures = (waits, failures + 1) if wait is None else (waits + 1, failures)
            if failures + waits // _WAITS > self._retries:
                raise AgentFailure(failure, f"{detail} (asked {failures + waits} times)")
            if wait is None:
                await asyncio.sleep(backoff(failures, seed))
            elif wait > _LONGEST_WAIT:
                raise AgentFailure(failure, f"{detail} (the server asks to wait {wait:g} s)")
            else:
                self._pace.pause(wait)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self) -> Any:
        if self._client is None:
            try:
                from openai import AsyncOpenAI, DefaultAsyncHttpxClient
            except ImportError as error:
                raise ImportError("openai: agents need the extra `bench`: pip install 'ragen-gym[bench]'") from error
            self._client = AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self._base_url,
                timeout=None,  # a whole request has one, see `complete`
                max_retries=0,
                default_headers={"Accept-Encoding": "identity"},
                http_client=DefaultAsyncHttpxClient(trust_env=not self._local),  # no proxy to this machine
            )
        return self._client

    async def _post(self, body: dict[str, Any]) -> Any:
        """The JSON of an answer, or its text; of a streamed one a completion of its chunks."""
        from openai import AsyncStream

        stream = await self._connected().post(
            "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )
        content = bytearray()
        try:
            async for piece in stream.response.aiter_bytes():
                content += piece
                if len(content) > _LONGEST_ANSWER:
                    detail = f"the server's answer has more than {_LONGEST_ANSWER:,} bytes"
                    raise AgentFailure(Failure.MODEL_ERROR, detail)
        finally:
            await stream.response.aclose()
        text = content.decode("utf-8", "replace")
        with suppress(ValueError):
            return json.loads(text)
        if not _STREAM.match(text):  # some servers stream under another content type
            return text
        events = [_DATA.findall(event) for event in re.split(r"\r?\n\r?\n", text)]
        data = ["\n".join(lines) for lines in events if lines]
        ended = bool(data) and data[-1].strip() == "[DONE]"
        return joined_chunks([json.loads(each) for each in data[: len(data) - ended]], ended=ended)

    def _keep(self, *, folds: bool, streams: bool) -> None:
        """Do for the rest of the run what an answer was got with."""
        if folds and not self._folds:
            _LOG.warning("%s takes no system message: it begins the first user message instead", self.name)
        if streams and not self._streams:
            _LOG.warning("%s only streams: its replies are streamed", self.name)
        self._folds, self._streams = self._folds or folds, self._streams or streams

    def _body(
        self,
        messages: Sequence[Message],
        temperature: float,
        seed: int,
        max_tokens: int | None,
        *,
        folds: bool,
        streams: bool,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": as_data_urls(fold_system(messages) if folds else messages),
            "temperature": temperature,
            # Another one for each turn, below 2**31, which every server takes.
            "seed": mix(seed + len(messages)) & 0x7FFFFFFF,
        }
        limits = [limit for limit in (self._max_tokens, max_tokens) if limit is not None]
        if limits:
            body["max_tokens"] = min(limits)
        if streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {name: value for name, value in (body | self._extra).items() if name not in self._omit}

    def _without_key(self, answer: Answer) -> Answer:
        """The answer with the key redacted."""
        return replace(
            answer, text=self._redact(answer.text), reasoning=answer.reasoning and self._redact(answer.reasoning)
        )

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    def _describe(self, error: BaseException) -> str:
        """An error of a request in a line."""
        said = said_by(error)
        if response := getattr(error, "response", None):
            return self._clean(f"HTTP {response.status_code}: {said}")
        return self._clean(f"{said}: {error.__cause__}" if error.__cause__ else said)

    def _clean(self, text: str) -> str:
        """An error in a line, without the key and what a terminal would obey."""
        return without_controls(self._redact(" ".join(text.split()))[:500])


def _wait_of(error: Any) -> float | None:
    """Seconds that the server asks to wait, or None."""
    response = getattr(error, "response", None)
    return None if response is None else retry_after(response.headers)


def _address(url: str) -> SplitResult:
    """The parts of an address; raises a ValueError if it is none."""
    with suppress(ValueError):  # no port, no IPv6 address
        place = urlsplit(url)
        if place.scheme in ("http", "https") and place.hostname and (place.port is None or place.port > 0):
            return place
    raise ValueError(f"base_url={url!r} is no address: write it as http://127.0.0.1:8000/v1.")


def _secrets(key: str, user: str | None, password: str | None) -> list[str]:
    """What must not be written: the key, and what an address may hold, in plain and as it is sent."""
    found = [key, password or ""]
    if user is not None:
        found.append(base64.b64encode(f"{user}:{password or ''}".encode()).decode())
    return [secret for secret in found if len(secret) >= 6]  # shorter ones occur in any text


_FIRST, _LONGEST = 0.5, 30.0
_WORD = 0xFFFFFFFFFFFFFFFF


class RequestPacer:
    """Lets all requests of an agent wait together.

    Args:
        per_minute: requests in a minute, evenly spaced, or None for as many as there are.
    """

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next = self._pause_ends = 0.0

    async def turn(self) -> None:
        """Wait until a request may go out; whom a pause meets while it waits gets another place after it."""
        while True:
            now = time.monotonic()
            mine = max(self._next, self._pause_ends, now)
            self._next = mine + self._gap
            if mine > now:
                await asyncio.sleep(mine - now)
            if self._pause_ends <= mine:
                return

    def pause(self, seconds: float) -> None:
        """Let no request out for so long."""
        self._pause_ends = max(self._pause_ends, time.monotonic() + seconds)


def backoff(failures: int, seed: int) -> float:
    """Seconds to wait after that many failures, from 1 on: 0.5, 1, 2, … up to 30, less up to half of it.

    The part that is taken off is decided by the seed, so that requests that failed together do not come back together.
    """
    share = (mix((seed + failures * GOLDEN) & _WORD) >> 11) / 2**53
    return min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 20)) * (1 - share / 2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait (RFC 9110, section 10.2.3), at least 0.5; None where it names no time to come.

    ``Retry-After-Ms``, which some servers send, is the more exact of the two.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value)
        if 0 < seconds < float("inf"):
            return max(_FIRST, seconds)
    return None


def _until(date: str) -> float:
    """Seconds to an HTTP date, 0 if it has gone by, -1 if it is none."""
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return -1.0
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
