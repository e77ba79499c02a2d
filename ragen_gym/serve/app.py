"""The FastAPI application: the routes, each a call of `Service`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware import Middleware

from ragen_gym import __version__
from ragen_gym.games.registry import TABLE, GameSpec
from ragen_gym.serve import schemas
from ragen_gym.serve.limits import Limits, check_boards
from ragen_gym.serve.middleware import AccessMiddleware, client_of
from ragen_gym.serve.openapi import description, install_error_handlers, responses
from ragen_gym.serve.served_envs import ServedBatch, ServedEnv, ServedSingle, ServedStep, ServedTurn
from ragen_gym.serve.service import Service, encode, now

__all__ = ["create_app"]

SessionId = Annotated[str, Path(description="The id of a session, as `POST /sessions` gave it.")]
_JSON = "application/json"
_OPERATIONS = ("state", "reset", "step", "turn", "batch_reset", "batch_step", "render", "close")

S = TypeVar("S", bound=ServedEnv)
Route = TypeVar("Route", bound=Callable[..., Any])
R = TypeVar("R", schemas.ResetRequest, schemas.BatchResetRequest)

router = APIRouter(generate_unique_id_function=lambda route: route.name)


def _operation(path: str, answer: Any, *errors: int) -> Callable[[Route], Route]:
    """A route that plays a session, with the statuses of its errors besides those of every such route."""
    return router.post(
        f"/sessions/{{session}}/{path}",
        responses=responses(answer, body=True, also=(404, 409, *errors)),
        tags=["batches" if path.startswith("batch/") else "single environments"],
    )


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
    app = FastAPI(lifespan=lifespan, middleware=[access], redoc_url=None, **description(limits))
    app.state.service = service
    app.router.routes.extend(router.routes)  # an included router would look for every request's route twice
    install_error_handlers(app, token is not None)
    return app


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
    responses=responses(schemas.Created, 201, body=True, also=(501, 503), then=_OPERATIONS),
    tags=["sessions"],
)
async def create(request: Request, body: schemas.CreateRequest) -> Response:
    """Make an environment of single moves, one of whole replies, or a batch."""
    made = await _service(request).create(body, client_of(request.scope))
    return Response(made, 201, media_type=_JSON)


@router.get("/sessions/{session}", responses=responses(schemas.State, also=(404, 422, 503)), tags=["sessions"])
async def state(request: Request, session: SessionId) -> Response:
    """A session as it stands: boards, levels, conversation."""
    return Response(await _service(request).state(session), media_type=_JSON)


@router.get(
    "/sessions/{session}/render.png",
    responses=responses("image/png", also=(404, 409, 422, 501, 503)),
    response_class=Response,
    tags=["sessions"],
)
async def render(
    request: Request,
    session: SessionId,
    index: Annotated[int, Query(ge=0, lt=2**31, description="Which environment of a batch.")] = 0,
) -> Response:
    """The board as a picture; for sessions made with `render`."""
    return Response(await _service(request).picture(session, index), media_type="image/png")


@router.delete(
    "/sessions/{session}", status_code=204, responses=responses(None, 204, also=(404, 422)), tags=["sessions"]
)
async def close(request: Request, session: SessionId) -> Response:
    """Close a session."""
    _service(request).close(session)
    return Response(status_code=204)


@router.get("/envs", responses=responses(list[schemas.Listed]), tags=["server"])
async def envs() -> Response:
    """The games, with their options (`knobs`), presets and vocabularies."""
    return _json([_listed(spec) for spec in TABLE.values()])


@router.get("/health", responses=responses(schemas.Health), tags=["server"])
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
        "knobs": {**game.options(), **spec.options},
        "presets": list(game.presets),
        "vocabularies": list(game.vocabularies),
    }
