"""The FastAPI application: the access to it, the routes, each a call of ``Service``, and the one form of errors."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragen_gym import __version__
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.render.png import encode_png
from ragen_gym.serve import schemas
from ragen_gym.serve.schemas import STATUS, RequestError
from ragen_gym.serve.service import Service, encode

#: Served without a token.
_OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})

#: Most bytes of a request's body, and seconds in which it must arrive.
_MAX_BODY, _BODY_SECONDS = 2**18, 30.0

_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 400: "bad_json"}
#: What every route may answer besides what it is for.
_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "An error.", "content": {"application/json": {"schema": {"required": ["error"]}}}}
}

_ABOUT = f"""
Make a session with `POST /sessions`, start an episode with `reset`, play it with `step` (moves) or `turn` (a language
model's whole reply), and close it with `DELETE`.

Every error is `{{"error": {{"code": …, "message": …}}}}`; the codes:
{", ".join(f"`{code}` ({status})" for code, status in STATUS.items())}.
"""

SessionId = Annotated[str, Path(description="The id of a session, as `POST /sessions` gave it.")]

router = APIRouter(responses=_ERRORS)


def create_app(token: str | None = None, *, max_sessions: int = 1024, session_ttl: float = 900.0) -> FastAPI:
    """The server's application, for any ASGI server that runs it in one process.

    Args:
        token: the bearer token that requests must carry; without one only requests addressed to localhost are served.
        max_sessions: sessions that may be open, from 1 on.
        session_ttl: seconds without a request after which a session is closed, from 1 on.

    Raises:
        ValueError: a limit out of range.
    """
    service = Service(max_sessions, session_ttl)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="ragen-gym",
        version=__version__,
        summary="Games for language-model agents over HTTP.",
        description=_ABOUT,
        lifespan=lifespan,
        middleware=[Middleware(AccessMiddleware, token=token)],
        redoc_url=None,
    )
    app.state.service = service
    # The middleware checks the token; this shows it on the page.
    app.include_router(router, dependencies=[Depends(HTTPBearer(auto_error=False))] if token else [])
    handlers = {RequestError: _failed, RequestValidationError: _invalid, HTTPException: _http, Exception: _broken}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    return app


@router.post("/sessions/{session}/step")
async def step(request: Request, session: SessionId, body: schemas.StepRequest) -> Response:
    """Play one move; of grain step."""
    return _json(await _service(request).ask(session, lambda env: env.step(body.action)))


@router.post("/sessions/{session}/turn")
async def turn(request: Request, session: SessionId, body: schemas.TurnRequest) -> Response:
    """Take a language model's whole reply; of grain turn."""
    return _json(await _service(request).ask(session, lambda env: env.turn(body.reply)))


@router.post("/sessions/{session}/reset")
async def reset(request: Request, session: SessionId, body: schemas.ResetRequest) -> Response:
    """Start an episode: of a seed, on a level, or the next one."""
    return _json(await _service(request).ask(session, lambda env: env.reset(body)))


@router.post("/sessions", status_code=201)
async def create(request: Request, body: schemas.CreateRequest) -> Response:
    """Make an environment of single moves or of whole replies."""
    return _json(await _service(request).create(body), 201)


@router.get("/sessions/{session}")
async def state(request: Request, session: SessionId) -> Response:
    """A session as it stands: board and level."""
    return _json(await _service(request).state(session))


@router.get("/sessions/{session}/render.png", responses={200: {"content": {"image/png": {}}}}, response_class=Response)
async def render(request: Request, session: SessionId) -> Response:
    """The board as a picture; for sessions made with ``render``."""
    picture = await _service(request).ask(session, lambda env: env.pixels(), write=encode_png)
    return Response(picture, media_type="image/png")


@router.delete("/sessions/{session}", status_code=204)
async def close(request: Request, session: SessionId) -> Response:
    """Close a session."""
    await _service(request).close(session)
    return Response(status_code=204)


@router.get("/envs")
async def envs() -> Response:
    """The games, with their options, presets and vocabularies."""
    return _json(encode([_listed(spec) for spec in TABLE.values()]))


@router.get("/health")
async def health(request: Request) -> Response:
    """State of the server, and how full it is."""
    return JSONResponse({"status": "ok", "version": __version__, "sessions": len(_service(request))})


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _json(answer: bytes, status: int = 200) -> Response:
    return Response(answer, status, media_type="application/json")


def _listed(spec: GameSpec) -> dict[str, Any]:
    game = spec.game_class
    return {
        "id": spec.id,
        "name": spec.name,
        "summary": spec.summary,
        "horizon": spec.horizon,
        "action_names": [action.name.capitalize() for action in game.Action],
        "env_options": {**game.options(), **spec.options},
        "presets": list(game.presets),
        "vocabularies": list(game.vocabularies),
    }


async def _failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return JSONResponse(error.body(), error.status)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    code = "bad_json" if any(each["type"] == "json_invalid" for each in found) else "bad_request"
    hint = "; options of a turn go into budgets, of a game into env_options" * (request.url.path == "/sessions")
    extra = {"extra_forbidden": f"there is no such field{hint}"}
    faults = [f"{'.'.join(map(str, each['loc']))}: {extra.get(each['type'], each['msg'])}" for each in found[:5]]
    if any(each["loc"] == ("body",) for each in found):
        faults.append("send a JSON object, with Content-Type: application/json")
    return await _failed(request, RequestError(code, "; ".join(faults)))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _OF_STATUS.get(error.status_code, "bad_request")
    body = RequestError(code, f"{request.method} {request.url.path}: {error.detail}").body()
    return JSONResponse(body, error.status_code, error.headers)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    """The answer to a mistake of the server's, which uvicorn logs."""
    return await _failed(request, RequestError("internal", "the server failed at this request; its log says how."))


class AccessMiddleware:
    """An ASGI application around the server's own.

    Requests must carry the bearer token. Without a token only requests addressed to a loopback name are served, so that
    no web page can reach the server through a name of its own.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it before its body is read."""
        answer = self._app
        if scope["type"] == "http":
            try:
                self._admit(scope["path"], dict(scope["headers"]))
                receive = await _whole_body(receive) if scope["method"] == "POST" else receive
            except RequestError as error:  # what is left of a body is not read
                headers = {"Connection": "close"} | ({"WWW-Authenticate": "Bearer"} if error.status == 401 else {})
                answer = JSONResponse(error.body(), error.status, headers)
        await answer(scope, receive, send)

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            if not is_loopback(_host_name(headers.get(b"host", b"").decode("latin-1"))):
                raise RequestError(
                    "foreign_host",
                    "this server has no token, so it answers only requests to localhost or a loopback address.",
                )
        elif path not in _OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise RequestError("unauthorized", "send the server's token as 'Authorization: Bearer TOKEN'.")


async def _whole_body(receive: Receive) -> Receive:
    """The request's body, read whole within its bounds, which uvicorn does not set."""
    body, size, more = bytearray(), 0, True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while more:
                message = await receive()
                size += len(message.get("body", b""))
                if size <= _MAX_BODY:  # the rest is read too: a connection closed before loses the answer
                    body += message.get("body", b"")
                more = message.get("more_body", False)
    except TimeoutError:
        words = f"the request's body did not arrive in {_BODY_SECONDS:g} seconds."
        raise RequestError("timeout", words) from None
    if size > _MAX_BODY:
        raise RequestError("body_too_large", f"a request's body may have {_MAX_BODY} bytes.")
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
