"""What one client may take of a server: places, time, bytes, and requests."""

from __future__ import annotations

import asyncio
import math
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest

from ragen_gym.games.registry import TABLE, GameSpec, find
from ragen_gym.games.sokoban import Sokoban
from ragen_gym.serve import Limits, RemoteEnv, ServerError, level_cost, serving
from ragen_gym.serve.errors import RequestError
from ragen_gym.serve.level_cost import LevelCosts
from ragen_gym.serve.limits import session_bytes
from ragen_gym.serve.middleware import RateLimiter, is_loopback
from ragen_gym.serve.schemas import BatchResetRequest, Budgets, CreateRequest, ResetRequest
from ragen_gym.serve.served_envs import ServedBatch, ServedSingle, ServedStep, ServedTurn, make_env
from ragen_gym.serve.server import check_token
from ragen_gym.serve.service import Service
from ragen_gym.serve.sessions import Session, SessionStore

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


def opened(store: SessionStore, owner: str = "a", size: int = 1, num_envs: int | None = None) -> Session:
    store.take(owner, size)
    session = Session("ragen/FrozenLake-v0", Quiet(), num_envs, owner, size)
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
            await service.ask(session.id, Quiet, lambda env: time.sleep(0.6))
            return await service.ask(session.id, Quiet, lambda env: "played")

    assert asyncio.run(played()) == b'"played"'


def test_memory_is_shared() -> None:
    """One client could take all places, and with pictures the machine's memory."""
    clock = Clock()
    store = SessionStore(Limits(max_memory=30, session_ttl=10), clock)
    mine = [opened(store, "a", 4), opened(store, "a", 10, 6)]
    with pytest.raises(RequestError, match="15 bytes for the sessions of one client; 14 are taken") as full:
        store.take("a", 2)
    assert full.value.code == "full"
    with pytest.raises(RequestError, match="may come to hold 16 bytes, and this server keeps 15") as large:
        store.take("c", 16)
    assert large.value.code == "too_large", "waiting does not help"
    opened(store, "b", 15)
    with pytest.raises(RequestError, match="30 bytes for the sessions of all clients; 29 are taken"):
        store.take("c", 2)
    assert store.envs == 6
    store.close(mine[1].id)
    assert store.envs == 0
    opened(store, "a", 11)
    clock.now = 11  # memory is free as soon as its session has expired, without anybody sweeping
    opened(store, "c", 15)
    assert len(store) == 1


@pytest.mark.parametrize("spec", TABLE.values(), ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"num_envs": 64},
        {"regret": True},
        {"grain": "turn", "budgets": Budgets(max_turns=5)},
        {"grain": "turn", "budgets": Budgets(max_turns=5, observation="image", image_tile_size=32)},
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
        served.reset((BatchResetRequest if request.num_envs else ResetRequest).model_validate({"seed": 1}))
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
    counted = session_bytes(served.env, asked.get("num_envs"), asked.get("levels"), 2000)
    assert held <= counted


def test_a_client_with_pictures_leaves_half_of_the_memory_to_others() -> None:
    body = {"env": "FrozenLake", "grain": "turn", "budgets": {"observation": "image", "max_turns": 10}}
    with serving(Limits(rate=0, max_memory=2**24, max_reply=1000)) as url, httpx.Client(base_url=url) as http:
        answers = [http.post("/sessions", json=body) for _ in range(30)]
        codes = [answer.status_code for answer in answers]
        assert codes == sorted(codes), "once full, it stays full"
        assert answers[-1].json()["error"]["code"] == "full"
        pictures = 11 * math.prod(answers[0].json()["observation_space"]["spaces"]["image"]["shape"])
        assert 3 < codes.count(201) <= 2**23 / pictures


def test_a_session_is_closed_between_requests() -> None:
    """Not while one is being carried out; those that wait behind find no session. So when the server stops."""
    held: list[bool] = []

    def slow(env: Quiet) -> str:
        time.sleep(0.1)
        held.append(not env.closed)
        return "played"

    async def played() -> None:
        service = Service(Limits())
        async with service.running():
            first, second = opened(service.store), opened(service.store)
            asked = [asyncio.create_task(service.ask(first.id, Quiet, slow)) for _ in range(2)]
            await asyncio.sleep(0.02)
            behind = [asyncio.create_task(each) for each in (service.close(first.id), service.picture(first.id, 0))]
            answers = await asyncio.gather(*asked, *behind, return_exceptions=True)
            assert answers[:3] == [b'"played"', b'"played"', None]
            assert isinstance(answers[3], RequestError)
            assert answers[3].code == "unknown_session"
            assert first.env.closed  # type: ignore[attr-defined]
            cancelled = asyncio.create_task(service.ask(second.id, Quiet, slow))
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


def test_rate() -> None:
    clock = Clock()
    rate = RateLimiter(5, clock)
    for _ in range(10):
        rate.take("a")
    with pytest.raises(RequestError, match="5 requests a second") as error:
        rate.take("a")
    assert error.value.retry_after == pytest.approx(0.2)
    rate.take("b")
    clock.now += 1
    for _ in range(5):
        rate.take("a")
    with pytest.raises(RequestError):
        rate.take("a")
    for client in range(30_000):  # as many addresses as an attacker has
        rate.take(str(client))
    assert len(rate._buckets) <= 10_001


def test_requests_over_the_rate_wait(server: str) -> None:
    with serving(Limits(rate=20)) as url:
        with httpx.Client(base_url=url) as http:
            answers = [http.get("/health") for _ in range(60)]
            assert {answer.status_code for answer in answers} == {200, 429}
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert refused.json()["error"]["code"] == "too_many_requests"
            assert int(refused.headers["Retry-After"]) >= 1
        env = RemoteEnv(url, "FrozenLake")  # waits, and is served
        env.reset(seed=0)
        env.close()


def test_full_servers_and_expired_sessions() -> None:
    with serving(Limits(rate=0, max_memory=400_000, session_ttl=0.6)) as url, httpx.Client(base_url=url) as http:
        envs = [RemoteEnv(url, "FrozenLake") for _ in range(2)]
        with pytest.raises(ServerError, match="keeps 200000 bytes for the sessions of one client"):
            RemoteEnv(url, "FrozenLake")
        answer = http.post("/sessions", json={"env": "FrozenLak"})
        assert answer.status_code == 422
        answer = http.post("/sessions", json=LAKE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "full")
        assert "Retry-After" in answer.headers
        deadline = time.monotonic() + 10
        while http.get("/health").json()["sessions"] and time.monotonic() < deadline:  # swept without being asked
            time.sleep(0.1)
        assert http.get("/health").json()["sessions"] == 0
        assert http.post("/sessions", json=LAKE).status_code == 201
        for env in envs:
            env.close()


def test_a_session_that_cannot_be_made_takes_no_place() -> None:
    with serving(Limits(rate=0, max_memory=200_000)) as url, httpx.Client(base_url=url, timeout=60) as http:
        for body in (
            {"env": "FrozenLake", "env_options": {"success_rate": 2}},
            {"env": "FrozenLake", "start": {"level": "?"}},
            {"env": "FrozenLake", "env_options": {"size": 2, "frozen_prob": 0, "min_path": 3}},
            {"env": "FrozenLake", "num_envs": 2000},
        ):
            assert http.post("/sessions", json=body).status_code == 422
        assert http.post("/sessions", json=LAKE).status_code == 201


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"env": "FrozenLake", "env_options": {"size": 64}}, "too_large"),
        ({"env": "Sokoban", "env_options": {"search_depth": 10_000}}, "too_large"),
        ({"env": "Sokoban", "env_options": {"walk_steps": 100_000}}, "too_large"),
        ({"env": "Bandit", "env_options": {"pulls": 10**9}}, "too_large"),
        ({"env": "Bandit", "env_options": {"low": 1e308}}, "too_large"),
        ({"env": "Bandit", "env_options": {"names": [["A" * 1000, "B"]]}}, "too_large"),
        ({"env": "FrozenLake", "levels": ["_" * 200]}, "too_large"),
        ({"env": "FrozenLake", "start": {"level": "_\n" * 100}}, "too_large"),
        ({"env": "FrozenLake", "tile_size": 128}, "bad_request"),
        ({"env": "FrozenLake", "max_episode_steps": 10**6}, "bad_request"),
        ({"env": "FrozenLake", "grain": "turn", "budgets": {"max_turns": 10**6}}, "bad_request"),
        ({"env": "FrozenLake", "num_envs": 10**6}, "too_large"),
        # Hardly any level meets these: one would keep a thread for minutes.
        ({"env": "Sokoban", "env_options": {"size": 12, "boxes": 4, "min_moves": 60}}, "too_expensive"),
        # A level of these takes a few milliseconds, and a large batch makes thousands at once.
        ({"env": "Sokoban", "env_options": {"size": 10, "boxes": 3}, "num_envs": 1024}, "too_expensive"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_what_would_hang_a_server(http: httpx.Client, body: dict[str, Any], code: str) -> None:
    began = time.monotonic()
    answer = http.post("/sessions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code), answer.text
    assert time.monotonic() - began < 30
    assert http.post("/sessions", json={**LAKE, "start": {"seed": 0}}).status_code == 201


def test_large_levels_may_be_sent(http: httpx.Client) -> None:
    text = Sokoban().own_text(Sokoban().board("######\n#O___#\n#_X__#\n#__P_#\n#____#\n######"))
    body = {"env": "Sokoban", "levels": [text], "env_options": {"min_moves": 60}, "start": {}}
    answer = http.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["start"]["observation"] == text


@pytest.mark.parametrize(
    ("grain", "limits"),
    [
        ("step", {"max_episode_steps": 1000}),
        ("turn", {"budgets": Budgets(max_turns=100, max_actions_per_turn=100, max_actions=1000)}),
    ],
)
def test_a_session_keeps_no_large_tables_of_regret(grain: str, limits: dict[str, Any]) -> None:
    for size in (4, 32):
        options = {"size": size, "frozen_prob": 1.0}
        request = CreateRequest(**LAKE, grain=grain, regret=True, env_options=options, **limits)  # type: ignore[arg-type]
        served = make_env(find("FrozenLake"), request, 1000)
        served.reset(ResetRequest.model_validate({"seed": 0}))
        assert served.env.unwrapped._regret._values.nbytes < 2**23
        assert isinstance(served, ServedStep | ServedTurn)
        answer = served.step(1) if isinstance(served, ServedStep) else served.turn("Down")
        assert (answer["info"]["regret"] is None) == (size == 32)


def test_bodies_and_replies_that_are_too_long() -> None:
    with serving(Limits(rate=0, max_body=2000, max_reply=1000)) as url, httpx.Client(base_url=url) as http:
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
        assert http.get("/openapi.json").json()["security"] == [{"token": []}]
        with pytest.raises(ServerError, match="Authorization: Bearer TOKEN"):
            RemoteEnv(url, "FrozenLake")
        env = RemoteEnv(url, "FrozenLake", token=token)
        env.reset(seed=0)
        assert env.spec is not None
        assert token not in env.spec.to_json()
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
    [{"max_memory": 0}, {"max_memory_per_client": 0}, {"session_ttl": 0}, {"rate": -1}, {"max_seconds": float("nan")}],
)
def test_limits_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


def start_instead_of_python(script: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


async def cost_of(costs: LevelCosts, name: str = "FrozenLake", **options: Any) -> float:
    return await costs.of(find(name), None, options or {"size": 5}, None)


def measured(seconds: float, ask: Callable[[LevelCosts], Awaitable[float]]) -> float:
    """What ``ask`` finds with trials that allow so many seconds a level."""

    async def measure() -> float:
        costs = LevelCosts(seconds)
        try:
            return await ask(costs)
        finally:
            await costs.close()

    return asyncio.run(measure())


def test_a_process_that_starts_too_slowly_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says late must not be read as the answer to the next trial."""
    slow = "sleep 0.5\necho ready\nwhile read line; do echo 0.25; done"
    start_instead_of_python(slow, tmp_path / "slow", monkeypatch)

    async def twice(costs: LevelCosts) -> float:
        monkeypatch.setattr(level_cost, "_STARTS_WITHIN", 0.05)
        with pytest.raises(RuntimeError, match="did not start"):
            await cost_of(costs)
        monkeypatch.setattr(level_cost, "_STARTS_WITHIN", 60)
        return await cost_of(costs)

    assert measured(1.0, twice) == 0.25


def test_a_machine_without_time_says_nothing_of_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed refused as too expensive until the server ended."""
    tried = tmp_path / "tried"
    busy = f"echo ready\nread line\n[ -e {tried} ] && echo 0.25 && exit\n: > {tried}\nexec sleep 30"
    start_instead_of_python(busy, tmp_path / "busy", monkeypatch)
    monkeypatch.setattr(level_cost, "_WALL", 0.5)

    async def twice(costs: LevelCosts) -> float:
        with pytest.raises(RequestError, match="try again") as refused:
            await cost_of(costs)
        assert refused.value.code == "busy"
        with monkeypatch.context() as patch:
            patch.setattr(level_cost, "_WALL", 60)
            return await cost_of(costs)

    assert measured(1.0, twice) == 0.25
    tried.unlink()
    monkeypatch.setattr(level_cost, "_TIMED", False)
    assert measured(1.0, cost_of) == inf, "timed by the clock"


def test_options_whose_trial_spends_its_cpu_time_are_too_expensive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = "from ragen_gym.serve import level_cost as c; c._CPU = 1; c._serve()"
    start_instead_of_python(f"exec {sys.executable} -c '{serve}'", tmp_path / "python", monkeypatch)
    # Sixty seconds a level, so that the trial's own look at its time does not end it.
    assert measured(60, lambda costs: cost_of(costs, "Sokoban", size=12, boxes=4, min_moves=60)) == inf


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
