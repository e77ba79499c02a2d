"""The OpenAPI page: what every route answers, errors included, and the one form of all errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from ragen_gym import __version__
from ragen_gym.serve.errors import STATUS, RequestError
from ragen_gym.serve.limits import Limits
from ragen_gym.serve.schemas import Error

__all__ = ["description", "install_error_handlers", "responses"]

_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 400: "bad_json"}

#: What each status of an error means on the page; its codes are added from `STATUS`.
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


def responses(
    model: Any, status: int = 200, *, body: bool = False, also: tuple[int, ...] = (), then: tuple[str, ...] = ()
) -> dict[int | str, Any]:
    """What a route answers.

    Args:
        model: of a good answer; a media type where that is no JSON, None where it has no body.
        status: of a good answer.
        body: whether a request has a body, whose errors are documented too.
        also: statuses of errors other than those that every route may give.
        then: operations on the session that the answer names.
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
        found[error] = {"model": Error, "description": f"{_MEANING[error]} Codes: {codes}."}
    return found


def description(limits: Limits) -> dict[str, Any]:
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

Limits: {limits.max_sessions} sessions, {limits.max_batch} environments in a batch and {limits.max_envs} in all batches,
{limits.max_body} bytes in a request, {limits.max_reply} characters in the replies of an episode,
{f"{limits.rate:g} requests a second for each client" if limits.rate else "no limit on the rate of requests"}.

Every error is `{{"error": {{"code": …, "message": …}}}}`:

| code | status |
|---|---|
{codes}
""",
    }


def install_error_handlers(app: FastAPI, with_token: bool) -> None:
    """Give every error the one form, and the page its token."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestError)
        return JSONResponse(error.body(), error.status, error.headers())

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        kinds = {found["type"] for found in error.errors()}
        code = "bad_json" if "json_invalid" in kinds else "bad_request"
        faults = [f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()[:5]]
        if any(found["loc"] == ("body",) for found in error.errors()):
            faults.append("send a JSON object, with Content-Type: application/json")
        return await failed(request, RequestError(code, "; ".join(faults)))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _OF_STATUS.get(error.status_code, "bad_request")
        body = RequestError(code, f"{request.method} {request.url.path}: {error.detail}").body()
        headers = {"Allow": _methods(app, request)} if error.status_code == 405 else error.headers
        return JSONResponse(body, error.status_code, headers)

    async def broken(request: Request, error: Exception) -> JSONResponse:
        failure = RequestError("internal", "the server failed at this request; its log says how.")
        return JSONResponse(failure.body(), failure.status)

    for kind, handler in (
        (RequestError, failed),
        (RequestValidationError, invalid),
        (HTTPException, http),
        (Exception, broken),
    ):
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
