"""The exported server in the real NeMo Gym: its routes, its agent, its checks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS, Rollout
from tests.integrations import library
from tests.integrations.library import REPLIES, export, needs, options

needs("nemo", "nemo_gym", "resources_servers")

PACKAGE = "ragen_frozen_lake"
OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(tmp_path_factory.mktemp("nemo") / "package", "nemo", *options(OPTIONS))
    sys.path.insert(0, str(folder / "resources_servers"))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Any:
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.server_utils import BaseServerConfig, ServerClient
    from omegaconf import OmegaConf

    made = import_module(f"{PACKAGE}.app").FrozenLakeServer
    config = BaseResourcesServerConfig(host="127.0.0.1", port=8000, entrypoint="app.py", name=PACKAGE)
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=8001), global_config_dict=OmegaConf.create({})
    )
    return made(config=config, server_client=client)


@pytest.fixture(scope="module")
def app(server: Any) -> Any:
    return server.setup_webserver()


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    lines = (folder / "environments" / PACKAGE / "data" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def client_of(app: Any) -> Any:
    """A client with cookies of its own, so one session."""
    import httpx

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def said(row: dict[str, Any], text: str, **others: Any) -> dict[str, Any]:
    from ragen_gym.integrations.nemo_fixture import response

    return {**row, "response": response(text).model_dump(), **others}


async def play(app: Any, row: dict[str, Any], *, close: bool = False) -> dict[str, Any]:
    """An episode as the agent plays it: what ``/reset`` said, the steps, the sum of the rewards."""
    async with client_of(app) as client:
        begun = (await client.post("/reset", json=row)).json()
        steps: list[dict[str, Any]] = []
        while not steps or not (steps[-1]["terminated"] or steps[-1]["truncated"]):
            await asyncio.sleep(0)
            identifier = {"_ng_step_request_id": str(len(steps))} if close else {}
            answer = await client.post("/step", json=said(row, REPLIES[len(steps)], **identifier))
            assert answer.status_code == 200, answer.text
            steps.append(answer.json())
        if close:
            assert (await client.post("/close", json={})).json() == {"ok": True}
    return {"begun": begun, "steps": steps, "reward": sum(step["reward"] for step in steps)}


def replay(row: dict[str, Any], noise_seed: int) -> Rollout:
    return library.played(row["seed"], noise_seed, split=row["split"], **OPTIONS)


def test_an_episode_of_a_row_is_the_games(folder: Path, app: Any, server: Any) -> None:
    row = rows_of(folder, "test")[2]
    played = asyncio.run(play(app, row, close=True))
    rollout = replay(row, played["begun"]["info"]["noise_seed"])
    assert [played["begun"]["observation"], *(step["observation"] for step in played["steps"])] == [
        message["content"] for message in rollout.messages if message["role"] == "user"
    ]
    assert row["responses_create_params"]["input"] == rollout.messages[:1]
    info = played["steps"][-1]["info"]
    assert {name: info[name] for name in METRICS} == rollout.metrics()
    assert info["game_return"] == pytest.approx(rollout.total)
    assert played["reward"] == rollout.info["success"]
    assert not server.session_state


def test_a_group_meets_one_level_with_other_noise_and_numbered_rollouts_repeat(folder: Path, app: Any) -> None:
    row = rows_of(folder, "train")[0]

    def group() -> list[dict[str, Any]]:
        numbered = [{**row, "_ng_task_index": 4, "_ng_rollout_index": i} for i in range(16)]
        return [asyncio.run(play(app, each))["begun"]["info"] for each in numbered]

    first = group()
    assert {info["level_id"] for info in first} == {row["level_id"]}
    assert len({info["noise_seed"] for info in first}) == 16
    assert group() == first
    assert len({asyncio.run(play(app, row))["begun"]["info"]["noise_seed"] for _ in range(4)}) == 4


def test_splits_share_no_level(folder: Path) -> None:
    levels = [{row["level_id"] for row in rows_of(folder, split)} for split in ("train", "validation", "test")]
    assert not levels[0] & levels[1]
    assert not levels[0] & levels[2]
    assert not levels[1] & levels[2]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": None}, "seed: Input should be a valid integer"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"split": "dev"}, "split: Input should be 'train', 'validation' or 'test'"),
        ({"seed": 9999}, "written with other options"),
    ],
)
def test_a_row_that_names_no_level_is_refused(folder: Path, app: Any, changes: dict[str, Any], problem: str) -> None:
    async def reset() -> Any:
        async with client_of(app) as client:
            return await client.post("/reset", json={**rows_of(folder, "test")[0], **changes})

    answer = asyncio.run(reset())
    assert answer.status_code == 422
    assert problem in answer.json()["detail"]


def test_a_step_is_played_once_and_none_without_an_episode(folder: Path, app: Any) -> None:
    row = {**rows_of(folder, "test")[0], "noise_seed": 0}

    async def steps() -> list[Any]:
        async with client_of(app) as client:
            answers = [await client.post("/step", json=said(row, REPLIES[0]))]
            await client.post("/reset", json=row)
            for identifier in ("a", "a", "b"):
                answers.append(await client.post("/step", json=said(row, REPLIES[1], _ng_step_request_id=identifier)))
            return answers

    lost, first, again, second = asyncio.run(steps())
    assert lost.status_code == 409
    assert "POST /reset first" in lost.json()["detail"]
    assert first.json() == again.json()
    assert [answer.json()["info"]["turns"] for answer in (first, second)] == [1, 2]


def test_the_librarys_checks_pass(folder: Path) -> None:
    from nemo_gym.verifier_fixture import exercise_verifier_fixture

    command = [str(Path(sys.executable).with_name("gym")), "env", "validate", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train: 16 rows" in done.stdout
    fixture = import_module(f"{PACKAGE}.app").VERIFIER_FIXTURE
    found = asyncio.run(exercise_verifier_fixture(fixture, reward_range=(0.0, 1.0), determinism="seeded"))
    assert {each.kind for each in found} == {"full_reward", "zero_reward", "malformed", "determinism"}
