"""Access to the server: the token, the host, and the size of a request's body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragen_gym.serve.errors import RequestError

__all__ = ["OPEN_PATHS", "AccessMiddleware", "is_loopback"]

#: Served without a token.
OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})

_log = logging.getLogger("ragen_gym.serve")

_BODY_SECONDS = 30.0


class AccessMiddleware:
    """An ASGI application around the server's own.

    Requests must carry the bearer token. Without a token only requests addressed to a loopback name are served, so that
    no web page can reach the server through a name of its own.
    """

    def __init__(self, app: ASGIApp, *, max_body: int, token: str | None) -> None:
        self._app, self._max_body = app, max_body
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or answer with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._admit(scope["path"], headers)
            if scope["method"] in ("POST", "PUT", "PATCH"):
                receive = await self._whole_body(receive)
        except RequestError as error:
            headers_of_error = {"Connection": "close"}  # what is left of a body is not read
            if error.status == 401:
                headers_of_error["WWW-Authenticate"] = "Bearer"
            await JSONResponse(error.body(), error.status, headers_of_error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:  # a mistake of the server's: no response was begun, since each is sent whole
            _log.exception("%s %s failed", scope["method"], scope["path"])
            failed = RequestError("internal", "the server failed at this request; its log says how.")
            await JSONResponse(failed.body(), failed.status)(scope, receive, send)

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

    async def _whole_body(self, receive: Receive) -> Receive:
        body, size, more = bytearray(), 0, True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while more:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if size <= self._max_body:  # the rest is read too: a connection closed before loses the answer
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            words = f"the request's body did not arrive in {_BODY_SECONDS:g} seconds."
            raise RequestError("timeout", words) from None
        if size > self._max_body:
            raise RequestError("body_too_large", f"a request's body may have {self._max_body} bytes.")
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay


def is_loopback(host: str) -> bool:
    """True if a name or address can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """``127.0.0.1:8000`` or ``[::1]:8000`` without the port."""
    return host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
