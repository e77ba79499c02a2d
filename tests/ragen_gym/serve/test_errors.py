"""Bad input is refused with the library's own words, and never with a 500."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import httpx
import numpy as np
import pytest

from ragen_gym.serve import RemoteEnv, RemoteTurnEnv, SessionLost
from ragen_gym.serve.service import ServedStep

NO_RATES: list[Any] = [2, "1", True, float("nan")]

#: What is wrong with the options of a FrozenLake.
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"sucess_rate": 1}, "Did you mean success_rate?"),
    *(({"success_rate": value}, "must be a number") for value in NO_RATES),
    ({"render_mode": "human"}, "has no option 'render_mode'"),
    ({"size": 10**9}, "size"),
]
#: What is wrong with the other fields of a FrozenLake.
VALUES: list[tuple[dict[str, Any], str]] = [
    ({"levels": ["/etc/passwd"]}, "unknown symbol"),
    ({"levels": ["P__\n___\n__G"], "env_options": {"size": 4}}, "plays 4x4"),
    ({"split": "exam"}, "choose one of train, validation, test"),
    ({"preset": "hardest"}, "it has easy, medium, hard, expert"),
    ({"vocabulary": "runes"}, "choose one of ragen"),
    ({"budgets": {}}, "budgets does not go with grain='step': give grain='turn'."),
    ({"grain": "turn", "observation": "grid"}, ": give the observation among budgets"),
    ({"start": {"level": "####"}}, "unknown symbol '#'"),
]
#: What is not of the documented form.
FORMS: list[tuple[Any, str]] = [
    ({"levels": []}, "at least 1 item"),
    ({"max_turns": 3}, "body.max_turns: there is no such field; options of a turn"),
    ({"grain": "token"}, "'step' or 'turn'"),
    ({"max_episode_steps": 0}, "greater than or equal to 1"),
    ({"start": {"seed": True}}, "valid integer"),
]
LAKE = {"env": "FrozenLake"}
CREATE = [
    ({"env": "FrozenLak"}, "bad_value", "Did you mean FrozenLake?"),
    ({"env": "my_game:Maze"}, "bad_value", "`ragen-gym serve` does with --game my_game:Maze)"),
    ({"env": "Sokoban", "env_options": {"boxes": "x"}}, "bad_value", "boxes"),
    ({"env": "Sokoban", "levels": ["/etc/passwd"]}, "bad_value", "is written in the symbols of"),
    ({"env": "Bandit", "env_options": {"names": [1, 2]}}, "bad_value", "names"),
    ({"env": "Bandit", "text_format": "coord"}, "bad_value", "does not fit arms"),
    ({"env": "Bandit", "env_options": {"names": [["A", "\ud800"]]}}, "bad_value", "use printable characters"),
    *(({**LAKE, "env_options": options}, "bad_value", words) for options, words in OPTIONS),
    *(({**LAKE, **body}, "bad_value", words) for body, words in VALUES),
    *(({**LAKE, **body}, "bad_request", words) for body, words in FORMS),
    ({"env": "\ud800"}, "bad_request", "unicode"),
    ({}, "bad_request", "body.env: Field required"),
    ([], "bad_request", "Content-Type: application/json"),
]


@pytest.mark.parametrize(("body", "code", "words"), CREATE, ids=[str(body)[:70] for body, *_ in CREATE])
def test_what_cannot_be_made(http: httpx.Client, body: Any, code: str, words: str) -> None:
    answer = http.post("/sessions", content=json.dumps(body), headers={"Content-Type": "application/json"})
    status, *problem = refused(answer)
    assert (status, problem[0]) == (422, code)
    assert words in problem[1]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"", 422),
        (b'{"env": "FrozenLake", "env_options": {"success_rate": NaN}}', 422),
        (b'{"env": "FrozenLake", "env_options": ' + b'{"a":' * 500 + b"1" + b"}" * 501, 422),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_are_no_requests(http: httpx.Client, content: bytes, status: int) -> None:
    answer = http.post("/sessions", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_after_our_own_mistake_the_connection_can_be_used(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = session(http, env="FrozenLake", start={})
    monkeypatch.setattr(ServedStep, "step", lambda env, action: vars(env)["a mistake"])
    for _ in range(3):
        assert refused(http.post(f"{path}/step", json={"action": 0}))[:2] == (500, "internal")
        assert http.get("/health").status_code == 200
    assert "KeyError: 'a mistake'" in caplog.text  # with its place in the code


def session(http: httpx.Client, **body: Any) -> str:
    answer = http.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    return f"/sessions/{answer.json()['session']}"


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def test_steps_out_of_order(http: httpx.Client) -> None:
    path = session(http, env="Bandit")
    for _ in range(2):
        status, code, message = refused(http.post(f"{path}/step", json={"action": 0}))
        assert (status, code) == (409, "no_episode")
        assert "reset" in message
        assert http.get(path).json()["board"] is None
        http.post(f"{path}/reset", json={})
        status, code, message = refused(http.post(f"{path}/step", json={"action": 2}))
        assert (status, code) == (422, "bad_value")
        assert message == "action 2 is not one of Bandit's: 0 FIRST, 1 SECOND."
        assert refused(http.post(f"{path}/step", json={"action": 10**30}))[0] == 422
        assert refused(http.post(f"{path}/step", json={"action": True}))[1] == "bad_request"
        assert http.post(f"{path}/step", json={"action": 0}).json()["terminated"]
        http.delete(path)
        path = session(http, env="Bandit")


def test_turns_out_of_order(http: httpx.Client) -> None:
    path = session(http, env="Bandit", grain="turn")
    assert refused(http.post(f"{path}/turn", json={"reply": "x"}))[1] == "no_episode"
    http.post(f"{path}/reset", json={})
    answer = http.post(f"{path}/turn", json={"reply": "x"}).json()
    assert answer["info"]["reply"]["problem"] == "no_answer"
    assert answer["terminated"]
    assert refused(http.post(f"{path}/turn", json={"reply": "x"}))[1] == "no_episode"


def test_another_grain(http: httpx.Client) -> None:
    requests: dict[str, dict[str, Any]] = {"reset": {}, "step": {"action": 0}, "turn": {"reply": ""}}
    for body, takes in (({}, "step"), ({"grain": "turn"}, "turn")):
        path = session(http, env="FrozenLake", **body)
        for name, request in requests.items():
            answer = http.post(f"{path}/{name}", json=request)
            assert (answer.status_code == 200) == (name in ("reset", takes)), answer.text
            if name not in ("reset", takes):
                assert refused(answer)[:2] == (422, "bad_value")


def test_pictures_that_were_not_asked_for(http: httpx.Client) -> None:
    path = session(http, env="FrozenLake", start={})
    assert refused(http.get(f"{path}/render.png"))[:2] == (422, "bad_value")
    path = session(http, env="FrozenLake", render=True)
    assert refused(http.get(f"{path}/render.png"))[:2] == (409, "no_episode")
    http.post(f"{path}/reset", json={})
    assert http.get(f"{path}/render.png").content.startswith(b"\x89PNG")


def test_unknown_sessions_and_pages(http: httpx.Client) -> None:
    path = session(http, env="FrozenLake")
    assert http.delete(path).status_code == 204
    for method, url in (("GET", path), ("DELETE", path), ("GET", "/sessions/x"), ("GET", "/sessions/../../etc")):
        assert http.request(method, url).status_code == 404
    assert refused(http.post(f"{path}/step", json={"action": 0}))[1] == "unknown_session"
    assert refused(http.get("/nothing"))[:2] == (404, "not_found")
    answer = http.put(path)
    assert refused(answer)[:2] == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET"


def test_clients_raise_what_the_library_raises(server: str) -> None:
    env = RemoteEnv(server, "FrozenLake")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.board  # noqa: B018
    env.reset(seed=0)
    for action in (4, -1, "0", 0.5, True, np.array([1])):
        with pytest.raises(ValueError, match="action"):
            env.step(action)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        env.reset(options={"noise_seed": -1})
    with pytest.raises(ValueError, match="not a dict"):
        env.reset(options=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="colour"):
        env.reset(options={"colour": "red"})
    other = RemoteEnv(server, "FrozenLake")
    assert httpx.delete(f"{server}/sessions/{other.session}").status_code == 204
    with pytest.raises(SessionLost, match="create another one"):
        other.step(0)
    turns = RemoteTurnEnv(server, "FrozenLake")
    with pytest.raises(gymnasium.error.ResetNeeded):
        turns.step("x")
    with pytest.raises(ValueError, match="not int"):
        turns.step(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean FrozenLake"):
        RemoteEnv(server, "FrozenLakes")
    for closing in (env, other, turns):
        closing.close()
        closing.close()
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="make a new one"):
            closing.reset(seed=0)
