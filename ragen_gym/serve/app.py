"""The FastAPI application: the routes, each a call of ``Service``, and their documentation, errors included."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Match

from ragen_gym import __version__
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.serve import schemas
from ragen_gym.serve.errors import STATUS, RequestError
from ragen_gym.serve.limits import Limits, check_boards
from ragen_gym.serve.middleware import AccessMiddleware, client_of
from ragen_gym.serve.served_envs import ServedBatch, ServedEnv, ServedSingle, ServedStep, ServedTurn
from ragen_gym.serve.service import Service, encode, now

__all__ = ["create_app"]

_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 400: "bad_json"}

#: What each status of an error means on the page; its codes are added from ``STATUS``.
_MEANING = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The request was addressed to a foreign name.",
    404: "There is no such session or page.",
    408: "The body did not arrive.",
    409: "The session is not in a state, or of a grain, that takes this.",
    413: "Too much was sent.",
    422: "A value is not allowed.",
    429: "Too many requests.",
    501: "The server lacks a library.",
    503: "The server is full or busy.",
}
_EVERYWHERE = (401, 403, 429)
_WITH_BODY = (400, 408, 413, 422)

SessionId = Annotated[str, Path(description="The id of a session, as `POST /sessions` gave it.")]
_JSON = "application/json"
_OPERATIONS = ("state", "reset", "step", "turn", "batch_reset", "batch_step", "render", "close")

S = TypeVar("S", bound=ServedEnv)
Route = TypeVar("Route", bound=Callable[..., Any])
R = TypeVar("R", schemas.ResetRequest, schemas.BatchResetRequest)

router = APIRouter(generate_unique_id_function=lambda route: route.name)


def create_app(limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """The server's application, for any ASGI server that runs it in one process.

    Args:
        limits: what clients may ask for.
        token: the bearer token that requests must carry; without one only requests addressed to localhost are served.
    """
    limits = limits or Limits()
    service = Service(limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    access = Middleware(AccessMiddleware, limits=limits, token=token, clock=now)
    app = FastAPI(lifespan=lifespan, middleware=[access], redoc_url=None, **_description(limits))
    app.state.service = service
    app.router.routes.extend(router.routes)  # an included router would look for every request's route twice
    _install_error_handlers(app, token is not None)
    return app


def _responses(
    model: Any, status: int = 200, *, body: bool = False, also: tuple[int, ...] = (), then: tuple[str, ...] = ()
) -> dict[int | str, Any]:
    """What a route answers: a model, a media type or None (no body), and the statuses of errors that it ``also`` gives.

    ``body``: whether a request has one; ``then``: operations on the session that the answer names.
    """
    errors = sorted({*_EVERYWHERE, *(_WITH_BODY if body else ()), *also})
    good: dict[str, Any] = {"content": {model: {}}, "description": "The picture."} if isinstance(model, str) else {}
    good = good or {"model": model}
    if then:
        session = {"session": "$response.body#/session"}
        good["links"] = {name: {"operationId": name, "parameters": session} for name in then}
    found: dict[int | str, Any] = {status: good}
    for error in errors:
        codes = ", ".join(f"`{code}`" for code, of in STATUS.items() if of == error)
        found[error] = {"model": schemas.Error, "description": f"{_MEANING[error]} Codes: {codes}."}
    return found


def _operation(path: str, answer: Any, *errors: int) -> Callable[[Route], Route]:
    """A route that plays a session, with the statuses of its errors besides those of every such route."""
    return router.post(
        f"/sessions/{{session}}/{path}",
        responses=_responses(answer, body=True, also=(404, 409, *errors)),
        tags=["batches" if path.startswith("batch/") else "single environments"],
    )


# A request's route is found by trying them in this order, so the busiest come first.


@_operation("step", schemas.Step)
async def step(request: Request, session: SessionId, body: schemas.StepRequest) -> Response:
    """Play one move; of grain step."""
    return await _ask(request, session, ServedStep, lambda env: env.step(body.action), light=True)


@_operation("turn", schemas.Turn)
async def turn(request: Request, session: SessionId, body: schemas.TurnRequest) -> Response:
    """Take a language model's whole reply; of grain turn."""
    return await _ask(request, session, ServedTurn, lambda env: env.turn(body.reply), light=True)


@_operation("batch/step", schemas.BatchStep, 503)
async def batch_step(request: Request, session: SessionId, body: schemas.BatchStepRequest) -> Response:
    """Play one move in every environment of a batch."""
    return await _ask(request, session, ServedBatch, lambda env: env.step(body.actions))


@_operation("reset", schemas.Reset | schemas.TurnReset, 503)
async def reset(request: Request, session: SessionId, body: schemas.ResetRequest) -> Response:
    """Start an episode: of a seed, on a level, or the next one."""
    return await _ask(request, session, ServedSingle, lambda env: env.reset(_checked(body)))


@_operation("batch/reset", schemas.BatchReset, 503)
async def batch_reset(request: Request, session: SessionId, body: schemas.BatchResetRequest) -> Response:
    """Start an episode in every environment of a batch, or in some."""
    return await _ask(request, session, ServedBatch, lambda env: env.reset(_checked(body)))


@router.post(
    "/sessions",
    status_code=201,
    responses=_responses(schemas.Created, 201, body=True, also=(501, 503), then=_OPERATIONS),
    tags=["sessions"],
)
async def create(request: Request, body: schemas.CreateRequest) -> Response:
    """Make an environment of single moves, one of whole replies, or a batch."""
    made = await _service(request).create(body, client_of(request.scope))
    return Response(made, 201, media_type=_JSON)


@router.get("/sessions/{session}", responses=_responses(schemas.State, also=(404, 422, 503)), tags=["sessions"])
async def state(request: Request, session: SessionId) -> Response:
    """A session as it stands: boards, levels, conversation."""
    return Response(await _service(request).state(session), media_type=_JSON)


@router.get(
    "/sessions/{session}/render.png",
    responses=_responses("image/png", also=(404, 409, 422, 501, 503)),
    response_class=Response,
    tags=["sessions"],
)
async def render(
    request: Request,
    session: SessionId,
    index: Annotated[int, Query(ge=0, lt=2**31, description="Which environment of a batch.")] = 0,
) -> Response:
    """The board as a picture; for sessions made with ``render``."""
    return Response(await _service(request).picture(session, index), media_type="image/png")


@router.delete(
    "/sessions/{session}", status_code=204, responses=_responses(None, 204, also=(404, 422)), tags=["sessions"]
)
async def close(request: Request, session: SessionId) -> Response:
    """Close a session."""
    await _service(request).close(session)
    return Response(status_code=204)


@router.get("/envs", responses=_responses(list[schemas.Listed]), tags=["server"])
async def envs() -> Response:
    """The games, with their options, presets and vocabularies."""
    return _json([_listed(spec) for spec in TABLE.values()])


@router.get("/health", responses=_responses(schemas.Health), tags=["server"])
async def health(request: Request) -> Response:
    """Whether the server runs, and how full it is."""
    store = _service(request).store
    return _json({"status": "ok", "version": __version__, "sessions": len(store), "envs": store.envs})


@router.get("/", include_in_schema=False)
async def front() -> Response:
    """To the page that says how to use it."""
    return RedirectResponse("/docs")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _ask(
    request: Request, session: str, kind: type[S], call: Callable[[S], Any], *, light: bool = False
) -> Response:
    return Response(await _service(request).ask(session, kind, call, light=light), media_type=_JSON)


def _json(answer: Any) -> Response:
    return Response(encode(answer), media_type=_JSON)


def _checked(body: R) -> R:
    check_boards(body.level)
    return body


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


def _description(limits: Limits) -> dict[str, Any]:
    """Title and text of the page."""
    codes = "\n".join(f"| `{code}` | {status} |" for code, status in STATUS.items())
    return {
        "title": "ragen-gym",
        "version": __version__,
        "summary": "Games for language-model agents over HTTP.",
        "description": f"""
Make a session with `POST /sessions`, start an episode with `reset`, play it with `step` (a move), `turn` (a language
model's whole reply) or `batch/step` (a move of each of many environments), and close it with `DELETE`. A session is
closed when it is not used for {limits.session_ttl:g} seconds; it lives in the server's memory, so a server that is
restarted has none.

Limits: {limits.max_memory} bytes of sessions, of one client {limits.max_memory_per_client or limits.max_memory // 2},
{limits.max_connections} connections, {limits.max_batch} environments in a batch, {limits.max_body} bytes in a request,
{limits.max_reply} characters in the replies of an episode,
{f"{limits.rate:g} requests a second for each client" if limits.rate else "no limit on the rate of requests"}.

Every error is `{{"error": {{"code": …, "message": …}}}}`:

| code | status |
|---|---|
{codes}
""",
    }


def _install_error_handlers(app: FastAPI, with_token: bool) -> None:
    """Give every error the one form, and the page its token."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError)
        return JSONResponse(error.body(), error.status, error.headers())

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        kinds = {found["type"] for found in error.errors()}
        code = "bad_json" if "json_invalid" in kinds else "bad_request"
        hint = "; options of a turn go into budgets, of a game into env_options" * (request.url.path == "/sessions")
        extra = {"extra_forbidden": f"there is no such field{hint}"}
        faults = [
            f"{'.'.join(map(str, found['loc']))}: {extra.get(found['type'], found['msg'])}"
            for found in error.errors()[:5]
        ]
        if any(found["loc"] == ("body",) for found in error.errors()):
            faults.append("send a JSON object, with Content-Type: application/json")
        return await failed(request, RequestError(code, "; ".join(faults)))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _OF_STATUS.get(error.status_code, "bad_request")
        body = RequestError(code, f"{request.method} {request.url.path}: {error.detail}").body()
        headers = {"Allow": _methods(app, request)} if error.status_code == 405 else error.headers
        return JSONResponse(body, error.status_code, headers)

    for kind, handler in ((RequestError, failed), (RequestValidationError, invalid), (HTTPException, http)):
        app.add_exception_handler(kind, handler)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            names = ("title", "version", "summary", "description", "routes")
            schema = get_openapi(**{name: getattr(app, name) for name in names})
            if with_token:
                scheme = {"type": "http", "scheme": "bearer"}
                schema.setdefault("components", {})["securitySchemes"] = {"token": scheme}
                schema["security"] = [{"token": []}]
                schema["paths"]["/health"]["get"]["security"] = []
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _methods(app: FastAPI, request: Request) -> str:
    """The methods of all routes of a path; Starlette names those of the first."""
    found: set[str] = set()
    for method in ("DELETE", "GET", "POST"):
        scope = {**request.scope, "method": method}
        found |= {method for route in app.router.routes if route.matches(scope)[0] is Match.FULL}
    return ", ".join(sorted(found))
