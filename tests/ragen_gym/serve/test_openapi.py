"""The server against its own OpenAPI page: every answer is one that the page documents, whatever is sent."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from ragen_gym.games.registry import TABLE
from ragen_gym.serve.schemas import STATUS

TIMEOUT = 120  # seconds for an answer, where other work holds the cores
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

# What fits the schema may still be no game, level or action; what does not may be too long to be looked at at all.
BEYOND_A_SCHEMA = [positive_data_acceptance, negative_data_rejection]

OPERATIONS = (
    "GET /health",
    "GET /envs",
    "POST /sessions",
    "GET /sessions/{session}",
    "DELETE /sessions/{session}",
    "POST /sessions/{session}/reset",
    "POST /sessions/{session}/step",
    "POST /sessions/{session}/turn",
    "GET /sessions/{session}/render.png",
)


@pytest.fixture(scope="module")
def api(server: str) -> Any:
    return schemathesis.openapi.from_url(f"{server}/openapi.json")


def test_the_page_has_these_operations(api: Any) -> None:
    assert {operation.ok().label for operation in api.get_all_operations()} == set(OPERATIONS)


CASES = [
    pytest.param(label, mode, id=f"{label}-{mode.value}")
    for label in OPERATIONS
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if mode is GenerationMode.POSITIVE or label.startswith("POST")  # what takes anything
]


@pytest.mark.slow
@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_answer_is_documented(api: Any, http: httpx.Client, label: str, mode: GenerationMode) -> None:
    operation = next(found for each in api.get_all_operations() if (found := each.ok()).label == label)
    body: dict[str, Any] = {"env": "FrozenLake", "grain": "turn" if "turn" in label else "step", "render": True}
    real = http.post("/sessions", json={**body, "start": {}}).json()["session"]
    turn = iter(range(10**6))

    @QUICK
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if "session" in case.path_parameters and next(turn) % 3:
            case.path_parameters["session"] = real
        case.call_and_validate(excluded_checks=BEYOND_A_SCHEMA, timeout=TIMEOUT)

    check()


def test_the_page(http: httpx.Client) -> None:
    assert "swagger" in http.get("/docs").text.lower()
    page = http.get("/openapi.json").json()
    assert all(f"`{code}`" in page["info"]["description"] for code in STATUS)
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"]["default"]["content"]["application/json"]
            assert content["schema"]["required"] == ["error"], (method, path)


def test_the_list(http: httpx.Client) -> None:
    listed = {row["name"]: row for row in http.get("/envs").json()}
    assert list(listed) == list(TABLE)
    lake = listed["FrozenLake"]
    assert (lake["id"], lake["horizon"]) == ("ragen/FrozenLake-v0", 10)
    assert lake["env_options"]["success_rate"] == 1 / 3
    assert listed["LargeSokoban"]["env_options"]["boxes"] == 2
    assert lake["presets"] == ["easy", "medium", "hard", "expert"]
