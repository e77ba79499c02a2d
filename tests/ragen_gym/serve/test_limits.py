"""How many sessions a server keeps, for how long, and for whom."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from ragen_gym.serve import RemoteEnv, ServerError, serving
from ragen_gym.serve.app import is_loopback
from ragen_gym.serve.schemas import CreateRequest, RequestError
from ragen_gym.serve.server import check_token
from ragen_gym.serve.service import ServedStep, Service

LAKE = {"env": "FrozenLake"}


def played(play: Callable[[Service], Coroutine[Any, Any, None]], sessions: int = 9, ttl: float = 900) -> None:
    async def run() -> None:
        service = Service(sessions, ttl)
        async with service.running():
            await play(service)

    asyncio.run(run())


async def made(service: Service, **body: Any) -> str:
    return str(json.loads(await service.create(CreateRequest.model_validate({**LAKE, **body})))["session"])


async def code_of(call: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(RequestError) as error:
        await call
    return error.value.code


def slowly(env: Any) -> str:
    time.sleep(0.2)
    return "played"


def test_sessions_expire_by_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("ragen_gym.serve.service._now", lambda: now)

    async def play(service: Service) -> None:
        nonlocal now
        first, second = await made(service), await made(service)
        now = 6
        await service.state(first)
        now = 12
        busy = asyncio.create_task(service.ask(first, slowly))
        await asyncio.sleep(0.05)
        now = 30
        third = await made(service)
        assert len(service) == 2, "one that is busy stays"
        assert await code_of(service.state(second)) == "unknown_session"
        assert await busy == b'"played"'
        await service.state(first)
        now = 41
        assert await code_of(service.state(third)) == "unknown_session"

    played(play, ttl=10)


def test_a_long_request_holds_up_no_other_session() -> None:
    async def play(service: Service) -> None:
        first, second = await made(service), await made(service)
        long = asyncio.create_task(service.ask(first, slowly))
        for _ in range(5):
            await service.state(second)
        assert not long.done()
        assert await long == b'"played"'

    played(play)


def test_a_session_that_cannot_be_made_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(ServedStep, "close", lambda env: closed.append(env.env.spec.id))

    async def play(service: Service) -> None:
        for wrong in ({"start": {"level": "?"}}, {"split": "exam"}, {"env_options": {"size": 10**9}}):
            assert await code_of(made(service, **wrong)) == "bad_value"
        assert closed == ["ragen/FrozenLake-v0"], "the only one that was made"
        both = await asyncio.gather(made(service), made(service))
        assert await code_of(made(service)) == "full"
        await service.close(both[0])
        await made(service)

    played(play, sessions=2)
    assert len(closed) == 4, "a server that stops closes its sessions"


def test_a_session_is_closed_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while one is being carried out; those that wait behind find no session. So when the server stops."""
    held: list[bool] = []
    closed: list[ServedStep] = []
    monkeypatch.setattr(ServedStep, "close", lambda env: closed.append(env))  # noqa: PLW0108  # a bound method is none of a class

    def slow(env: Any) -> str:
        time.sleep(0.1)
        held.append(env not in closed)
        return "played"

    async def play(service: Service) -> None:
        first, second = await made(service), await made(service)
        asked = [asyncio.create_task(service.ask(first, slow)) for _ in range(2)]
        await asyncio.sleep(0.02)
        behind = [asyncio.create_task(each) for each in (service.close(first), code_of(service.state(first)))]
        assert await asyncio.gather(*asked, *behind) == [b'"played"', b'"played"', None, "unknown_session"]
        assert len(closed) == 1
        cancelled = asyncio.create_task(service.ask(second, slow))
        await asyncio.sleep(0.02)
        cancelled.cancel()

    played(play)
    assert (held, len(closed)) == ([True, True, True], 2)


def test_ids_cannot_be_guessed_from_others(http: httpx.Client) -> None:
    ids = {http.post("/sessions", json=LAKE).json()["session"] for _ in range(50)}
    assert len(ids) == 50
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a-long-enough-token"
    with serving(token=token) as url, httpx.Client(base_url=url) as http:
        for header in ({}, {"Authorization": f"Bearer {token}x"}, {"Authorization": f"Basic {token}"}):
            answer = http.get("/envs", headers=header)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert http.post("/sessions", json=LAKE, headers=header).status_code == 401
        assert http.get("/envs", headers={"Authorization": f"bearer {token}"}).status_code == 200
        for path in ("/health", "/docs", "/openapi.json"):
            assert http.get(path).status_code == 200
        assert "HTTPBearer" in http.get("/openapi.json").json()["components"]["securitySchemes"]
        with pytest.raises(ServerError, match="Authorization: Bearer TOKEN"):
            RemoteEnv(url, "FrozenLake")
        RemoteEnv(url, "FrozenLake", token=token).close()
        monkeypatch.setenv("RAGEN_GYM_TOKEN", token)
        RemoteEnv(url, "FrozenLake").close()


def test_web_pages_cannot_reach_a_server_without_a_token(http: httpx.Client) -> None:
    for host, status in (("evil.example:80", 403), ("", 403), ("localhost:1", 200), ("[::1]:8000", 200)):
        assert http.get("/health", headers={"Host": host}).status_code == status


def test_who_needs_a_token() -> None:
    assert check_token("127.0.0.1", None) is None
    assert check_token("localhost", "") is None
    assert check_token("0.0.0.0", "x" * 16) == "x" * 16
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="RAGEN_GYM_TOKEN"):
            check_token(host, None)
    for token in ("short", "a b" * 10, "é" * 20):
        with pytest.raises(ValueError, match="16 or more"):
            check_token("127.0.0.1", token)
