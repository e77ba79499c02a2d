"""Bytes that sessions may take of a server; tokens."""

from __future__ import annotations

import asyncio
import math
import time
import tracemalloc
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest

from ragen_gym.core.turn_config import turn_config
from ragen_gym.games.registry import TABLE, GameSpec, build_game
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.serve import Limits, RemoteEnv, ServerError, serving
from ragen_gym.serve.app import is_loopback
from ragen_gym.serve.limits import session_bytes
from ragen_gym.serve.schemas import CreateRequest, RequestError, ResetRequest
from ragen_gym.serve.served_envs import ServedBatch, ServedSingle, ServedStep, ServedTurn, make_env
from ragen_gym.serve.server import check_token
from ragen_gym.serve.service import Service, Session, SessionStore

LAKE = {"env": "FrozenLake"}


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Quiet(ServedSingle):
    """An environment that is only closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def opened(store: SessionStore, size: int = 1) -> Session:
    store.take(size)
    session = Session("ragen/FrozenLake-v0", Quiet(), size)
    store.put(session)
    return session


def test_sessions_expire_by_their_last_use() -> None:
    clock = Clock()
    store = SessionStore(Limits(session_ttl=10), clock)
    first, second = opened(store), opened(store)
    clock.now = 6
    store.get(first.id)
    clock.now = 12
    store.expire()
    assert [session.env.closed for session in (first, second)] == [False, True]  # type: ignore[attr-defined]
    assert len(store) == 1
    with pytest.raises(RequestError, match="not used for 10 seconds"):
        store.get(second.id)
    clock.now = 16.5
    with pytest.raises(RequestError, match="no such session"):
        store.get(first.id)


def test_a_busy_session_keeps_no_other_from_expiring() -> None:
    async def swept() -> list[bool]:
        clock = Clock()
        store = SessionStore(Limits(session_ttl=10), clock)
        sessions = [opened(store), opened(store)]
        clock.now = 8
        sessions.append(opened(store))
        async with sessions[0].lock:
            clock.now = 12
            store.expire()
        return [session.env.closed for session in sessions]  # type: ignore[attr-defined]

    assert asyncio.run(swept()) == [False, True, False]


def test_a_session_is_in_use_until_its_request_is_answered() -> None:
    async def played() -> bytes:
        service = Service(Limits(session_ttl=0.5))
        async with service.running():
            session = opened(service.store)
            await service.ask(session.id, lambda _: time.sleep(0.6))
            return await service.ask(session.id, lambda _: "played")

    assert asyncio.run(played()) == b'"played"'


def test_memory_is_bounded() -> None:
    clock = Clock()
    store = SessionStore(Limits(max_memory=30, session_ttl=10), clock)
    held = [opened(store, 4), opened(store, 20)]
    with pytest.raises(RequestError, match="30 bytes for all sessions; 24 are taken") as full:
        store.take(7)
    assert full.value.code == "full"
    with pytest.raises(RequestError, match="may come to hold 31 bytes, and this server keeps 30") as large:
        store.take(31)
    assert large.value.code == "too_large", "waiting does not help"
    store.close(held[1])
    opened(store, 26)
    clock.now = 11  # memory is free as soon as its session has expired, without anybody sweeping
    opened(store, 30)
    assert len(store) == 1


@pytest.mark.parametrize("spec", TABLE.values(), ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"num_envs": 64},
        {"grain": "turn", "budgets": {"max_turns": 5}},
        {"grain": "turn", "budgets": {"max_turns": 5, "observation": "image", "image_tile_size": 32}},
        {"levels": 300},
    ],
    ids=str,
)
def test_a_session_holds_no_more_than_it_is_counted_with(spec: GameSpec, asked: dict[str, Any]) -> None:
    if "levels" in asked:
        boards = {gymnasium.make(spec.id).reset(seed=seed)[0] for seed in range(40)}
        asked = {"levels": (sorted(boards) * 300)[:300]}

    def made() -> Any:
        request = CreateRequest(env=spec.name, **asked)
        served = make_env(spec, request, 2000)
        served.reset(ResetRequest.model_validate({"seed": 1}))
        if isinstance(served, ServedTurn):
            for _ in range(5):
                if served.playing:
                    served.turn("\U0001f600" * 400)
        return served

    made()  # what all sessions share
    tracemalloc.start()
    served = made()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    served.close()
    request = CreateRequest(env=spec.name, **asked)
    turns = turn_config(None, request.budgets or {})
    counted = session_bytes(build_game(spec, {}), request, turns, 2000)
    assert held <= counted


def test_pictures_count_with_their_memory() -> None:
    body = {"env": "FrozenLake", "grain": "turn", "budgets": {"observation": "image", "max_turns": 10}}
    with serving(Limits(max_memory=2**23, max_reply=1000)) as url, httpx.Client(base_url=url) as http:
        answers = [http.post("/sessions", json=body) for _ in range(30)]
        codes = [answer.status_code for answer in answers]
        assert codes == sorted(codes), "once full, it stays full"
        assert answers[-1].json()["error"]["code"] == "full"
        pictures = 11 * math.prod(answers[0].json()["observation_space"]["spaces"]["image"]["shape"])
        assert 3 < codes.count(201) <= 2**23 / pictures


def test_a_session_is_closed_between_requests() -> None:
    """Not while one is being carried out; those that wait behind find no session. So when the server stops."""
    held: list[bool] = []

    def slow(env: Any) -> str:
        time.sleep(0.1)
        held.append(not env.closed)
        return "played"

    async def played() -> None:
        service = Service(Limits())
        async with service.running():
            first, second = opened(service.store), opened(service.store)
            asked = [asyncio.create_task(service.ask(first.id, slow)) for _ in range(2)]
            await asyncio.sleep(0.02)
            behind = [asyncio.create_task(each) for each in (service.close(first.id), service.state(first.id))]
            answers = await asyncio.gather(*asked, *behind, return_exceptions=True)
            assert answers[:3] == [b'"played"', b'"played"', None]
            assert isinstance(answers[3], RequestError)
            assert answers[3].code == "unknown_session"
            assert first.env.closed  # type: ignore[attr-defined]
            cancelled = asyncio.create_task(service.ask(second.id, slow))
            await asyncio.sleep(0.02)
            cancelled.cancel()
        assert second.env.closed  # type: ignore[attr-defined]

    asyncio.run(played())
    assert held == [True, True, True]


def test_ids_cannot_be_guessed_from_others() -> None:
    store = SessionStore(Limits(), Clock())
    ids = {opened(store).id for _ in range(200)}
    assert len(ids) == 200
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)


def test_full_servers_and_expired_sessions() -> None:
    with serving(Limits(max_memory=200_000, session_ttl=0.6)) as url, httpx.Client(base_url=url) as http:
        envs = [RemoteEnv(url, "FrozenLake") for _ in range(2)]
        with pytest.raises(ServerError, match="keeps 200000 bytes for all sessions"):
            RemoteEnv(url, "FrozenLake")
        answer = http.post("/sessions", json={"env": "FrozenLak"})
        assert answer.status_code == 422
        answer = http.post("/sessions", json=LAKE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "full")
        time.sleep(0.7)
        assert http.post("/sessions", json=LAKE).status_code == 201
        for env in envs:
            env.close()


@pytest.mark.slow
def test_a_session_that_cannot_be_made_takes_no_place() -> None:
    with serving(Limits(max_memory=100_000)) as url, httpx.Client(base_url=url, timeout=60) as http:
        for body in (
            {"env": "FrozenLake", "env_options": {"success_rate": 2}},
            {"env": "FrozenLake", "start": {"level": "?"}},
            {"env": "FrozenLake", "env_options": {"size": 2, "frozen_prob": 0, "min_path": 3}, "start": {}},
            {"env": "FrozenLake", "num_envs": 2_000_000},
            {"env": "FrozenLake", "env_options": {"size": 10**9}},
        ):
            assert http.post("/sessions", json=body).status_code == 422
        assert http.post("/sessions", json=LAKE).status_code == 201


def test_a_refused_session_is_not_made_and_a_failed_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is taken before anything is allocated, and given back."""
    made: list[ServedStep] = []

    class Noted(ServedStep):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.closed = False
            made.append(self)

        def close(self) -> None:
            self.closed = True
            super().close()

    monkeypatch.setattr("ragen_gym.serve.served_envs.ServedStep", Noted)

    async def refused(**body: Any) -> str:
        with pytest.raises(RequestError) as error:
            await service.create(CreateRequest.model_validate({**LAKE, **body}))
        return error.value.code

    service = Service(Limits(max_memory=100_000))
    assert asyncio.run(refused(env_options={"size": 32})) == "too_large"
    assert made == []
    assert asyncio.run(refused(start={"level": "?"})) == "bad_value"
    assert [env.closed for env in made] == [True]  # type: ignore[attr-defined]
    asyncio.run(service.create(CreateRequest.model_validate(LAKE)))
    assert asyncio.run(refused()) == "full"
    assert len(made) == 2, "one that is open"


def test_large_levels_may_be_sent(http: httpx.Client) -> None:
    text = Sokoban().own_text(Sokoban().board("######\n#O___#\n#_X__#\n#__P_#\n#____#\n######"))
    body = {"env": "Sokoban", "levels": [text], "env_options": {"min_moves": 60}, "start": {}}
    answer = http.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["start"]["observation"] == text


def test_bodies_and_replies_that_are_too_long() -> None:
    with serving(Limits(max_body=2000, max_reply=1000)) as url, httpx.Client(base_url=url) as http:
        answer = http.post("/sessions", json={**LAKE, "grain": "turn", "start": {}})
        path = f"/sessions/{answer.json()['session']}"
        for chunked in (False, True):
            content: Any = iter([b"x" * 1500, b"x" * 1500]) if chunked else b"x" * 3000
            answer = http.post(f"{path}/turn", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert http.post(f"{path}/turn", json={"reply": "x" * 600}).status_code == 200
        answer = http.post(f"{path}/turn", json={"reply": "x" * 600})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "conversation_full")
        assert http.post(f"{path}/turn", json={"reply": "x" * 400}).status_code == 200
        http.post(f"{path}/reset", json={})
        assert http.post(f"{path}/turn", json={"reply": "x" * 600}).status_code == 200


def test_tokens() -> None:
    token = "a long enough token".replace(" ", "-")
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
        env = RemoteEnv(url, "FrozenLake", token=token)
        env.reset(seed=0)
        env.close()


def test_the_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_GYM_TOKEN", "another-long-token")
    with serving(token="another-long-token") as url:
        RemoteEnv(url, "FrozenLake").close()


def test_web_pages_cannot_reach_a_server_without_a_token(http: httpx.Client) -> None:
    for host, status in (("evil.example:80", 403), ("", 403), ("localhost:1", 200), ("[::1]:8000", 200)):
        assert http.get("/health", headers={"Host": host}).status_code == status


def test_who_needs_a_token() -> None:
    assert check_token("127.0.0.1", None, "T") is None
    assert check_token("localhost", "", "T") is None
    assert check_token("0.0.0.0", "x" * 16, "T") == "x" * 16
    for host in ("0.0.0.0", "::", "10.0.0.7", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="environment variable T"):
            check_token(host, None, "T")
    for token in ("short", "a b" * 10, "é" * 20):
        with pytest.raises(ValueError, match="16 or more"):
            check_token("127.0.0.1", token, "T")


@pytest.mark.parametrize(
    "wrong",
    [{"max_memory": 0}, {"session_ttl": 0}],
)
def test_limits_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


def test_a_picture_of_a_batch_takes_the_memory_of_one() -> None:
    env = gymnasium.make_vec("ragen/FrozenLake-v0", 64, render_mode="rgb_array")
    env.reset(seed=0)
    served = ServedBatch(env)
    np.testing.assert_array_equal(served.pixels(63), env.render()[63])  # type: ignore[index]
    tracemalloc.start()
    try:
        size = served.pixels(63).nbytes
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()
