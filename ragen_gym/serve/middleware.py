"""Middleware that every request passes first: token, host, rate limit, and the size of its body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragen_gym.serve.errors import RequestError
from ragen_gym.serve.limits import Limits

__all__ = ["OPEN_PATHS", "AccessMiddleware", "RateLimiter", "is_loopback"]

#: Served without a token: that the server runs, and how it is spoken to.
OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})

_log = logging.getLogger("ragen_gym.serve")

_BODY_SECONDS = 30.0
_BURST_SECONDS = 2.0
_CLIENTS = 10_000


class RateLimiter:
    """How many requests a second each client may make, as a token bucket; 0 is no limit."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._full = max(1.0, rate * _BURST_SECONDS)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, client: str) -> None:
        """Count a request of this client.

        Raises:
            RequestError: it made too many.
        """
        if not self._rate:
            return
        now = self._clock()
        tokens, then = self._buckets.get(client, (self._full, now))
        tokens = min(self._full, tokens + (now - then) * self._rate)
        if tokens < 1.0:
            raise RequestError(
                "too_many_requests",
                f"one client may make {self._rate:g} requests a second: slow down, or put many environments into one "
                "session with num_envs.",
                retry_after=(1.0 - tokens) / self._rate,
            )
        self._buckets[client] = tokens - 1.0, now
        if len(self._buckets) > _CLIENTS:
            self._drop_full(now)

    def _drop_full(self, now: float) -> None:
        """Drop the clients whose buckets are full again, or all where none is."""
        rate = self._rate
        kept = {c: (n, at) for c, (n, at) in self._buckets.items() if n + (now - at) * rate < self._full}
        self._buckets = kept if len(kept) < _CLIENTS else {}


class AccessMiddleware:
    """An ASGI application around the server's own.

    Requests must carry the bearer token. Without a token only requests are served that were addressed to a loopback
    name, so that no web page can reach the server through a name of its own.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, token: str | None, clock: Callable[[], float]) -> None:
        self._app, self._limits = app, limits
        self._token = None if token is None else token.encode()
        self._rate_limiter = RateLimiter(limits.rate, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._rate_limiter.take(client_of(scope))
            self._admit(scope["path"], headers)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._whole_body(headers, receive)
        except RequestError as error:
            await _send(error, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:  # a mistake of the server's: no response was begun, since each is sent whole
            _log.exception("%s %s failed", scope["method"], scope["path"])
            await _send(RequestError("internal", "the server failed at this request; its log says how."), send)

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            if not is_loopback(_host_name(headers.get(b"host", b"").decode("latin-1"))):
                raise RequestError(
                    "foreign_host",
                    "this server has no token, so it answers only requests to localhost or a loopback address.",
                )
        elif path not in OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise RequestError("unauthorized", "send the server's token as 'Authorization: Bearer TOKEN'.")

    async def _whole_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        most = self._limits.max_body
        length = headers.get(b"content-length", b"")
        too_large = length.isdigit() and int(length[:20]) > most
        body = bytearray()  # which grows in place, however small the pieces are
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        break
                    body += message.get("body", b"")
                    too_large = too_large or len(body) > most
                    if too_large:  # the rest is read: a connection that is closed before loses the answer
                        body.clear()
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            if not too_large:
                words = f"the request's body did not arrive in {_BODY_SECONDS:g} seconds."
                raise RequestError("timeout", words) from None
        if too_large:
            raise RequestError("body_too_large", f"a request's body may have {most} bytes.")
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def replay() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        return replay


def client_of(scope: Scope) -> str:
    """The address of the client."""
    client = scope.get("client")
    return client[0] if client else ""


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """``127.0.0.1:8000`` or ``[::1]:8000`` without the port."""
    return host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]


async def _send(error: RequestError, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in error.headers().items()),
    ]
    start: dict[str, Any] = {"type": "http.response.start", "status": error.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
