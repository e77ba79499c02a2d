"""The exported package in the real OpenEnv: its validation, its server and client, many sessions at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS, Rollout
from tests.integrations import library
from tests.integrations.library import REPLIES, export, install, needs, options, serving

needs("openenv", "openenv")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}
PACKAGE = "ragen_frozen_lake"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("openenv") / "package", "openenv", *options(OPTIONS))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder) as url:
        yield url


@pytest.fixture(scope="module")
def package(folder: Path) -> Any:
    variables = install(folder, folder.parent / "site")
    sys.path.insert(0, variables["PYTHONPATH"].partition(os.pathsep)[0])
    return import_module(PACKAGE)


def openenv(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "openenv.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_manifest_is_valid_and_names_an_oracle(folder: Path) -> None:
    code, said = openenv("validate", str(folder), "--level", "static", "--json")
    report = json.loads(said)
    assert (code, report["verdict"]) == (0, "pass"), said
    capabilities = report["manifest"]["capabilities"]
    assert capabilities["oracle"] == {"form": "injected_state", "location": "validation/oracle.json"}
    assert capabilities["set_state"]
    assert capabilities["task_api"]
    assert (folder / capabilities["canaries"]).is_file()


def test_the_runtime_checks_pass_on_the_server(folder: Path) -> None:
    """What ``openenv validate`` measures in a container, with the server as a process of this machine."""
    from openenv.validation import Level, run_validation
    from openenv.validation.types import ProviderCapability

    class Running:
        def __init__(self) -> None:
            self._serving = serving(folder)
            self.base_url = self._serving.__enter__()

        def inspect(self) -> dict[str, Any]:
            return {}

        def stop(self) -> None:
            self._serving.__exit__(None, None, None)

    class Provider:
        name = "process"
        capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
        supported_network_modes = frozenset({"public"})

        def build(self, root: Path, execution: Any) -> str:
            assert (root / execution.dockerfile).is_file()
            return "sha256:" + "0" * 64

        def start(self, spec: Any) -> Running:
            return Running()

    report = run_validation(folder, max_level=Level.RUNTIME, provider=Provider())
    found = {result.check_id: result.status.value for result in report.results}
    for check in ("startup", "reward_well_formed", "observation_schema", "state_contract"):
        assert found[f"runtime.{check}"] == "pass", report.results
    assert not {"fail", "error"} & set(found.values()), report.results


def test_the_oracle_earns_the_most_and_the_canaries_nothing(folder: Path, url: str, package: Any) -> None:
    oracle = json.loads((folder / "validation" / "oracle.json").read_text(encoding="utf-8"))
    canaries = json.loads((folder / "validation" / "canaries.json").read_text(encoding="utf-8"))
    assert (oracle["reward"], [each["reward"] for each in canaries]) == (1.0, [0.0] * len(canaries))
    with package.FrozenLakeEnv(base_url=url).sync() as env:
        for plan in (oracle, *canaries):
            result, total = env.reset(**plan["reset"]), 0.0
            for action in plan["actions"]:
                result = env.step(package.FrozenLakeAction(**action))
                total += result.reward
            assert total == plan["reward"]
            assert result.done
            assert result.observation.success == bool(plan["reward"])
            assert set(result.observation.metrics) == set(METRICS)


def test_sessions_play_what_their_seeds_say(url: str, package: Any) -> None:
    def play(noise_seed: int) -> tuple[str, float, dict[str, float]]:
        with package.FrozenLakeEnv(base_url=url).sync() as env:
            result = env.reset(seed=5, split="validation", noise_seed=noise_seed)
            first, earned = result.observation.text, 0.0
            for reply in REPLIES:
                if not result.done:
                    result = env.step(package.FrozenLakeAction(text=reply))
                    earned += result.observation.game_reward
            return first, earned, result.observation.metrics

    with ThreadPoolExecutor(16) as pool:
        played = list(pool.map(play, range(16)))
    for noise_seed, (first, earned, metrics) in enumerate(played):
        rollout = library.played(5, noise_seed, split="validation", **OPTIONS)
        assert first == f"{rollout.instructions}\n\n{rollout.messages[1]['content']}"
        assert earned == pytest.approx(rollout.total)
        assert metrics == rollout.metrics()


def test_the_task_api_names_levels(url: str, package: Any) -> None:
    import requests

    splits = requests.get(f"{url}/{PACKAGE}/splits", timeout=30).json()
    assert [each["name"] for each in splits] == ["train", "validation", "test"]
    count = requests.post(f"{url}/{PACKAGE}/num_tasks", json={"split": "test"}, timeout=30).json()["num_tasks"]
    assert count == 10_000
    with package.FrozenLakeEnv(base_url=url).sync() as env:
        text = env.reset(split="test", index=12, seed=3).observation.text
        state = env.state()
    assert (state.seed, state.split, state.noise_seed) == (12, "test", 3)
    assert text == f"{(rollout := Rollout('FrozenLake', split='test', **OPTIONS)).instructions}\n\n{rollout.begin(12)}"
    missing = requests.post(f"{url}/{PACKAGE}/task", json={"split": "test", "index": count}, timeout=30)
    assert missing.status_code == 400


def test_a_session_without_a_seed_tells_the_one_it_drew(url: str, package: Any) -> None:
    with package.FrozenLakeEnv(base_url=url).sync() as env:
        texts = {env.reset().observation.text for _ in range(8)}
        seed, text = env.state().seed, env.reset(seed=env.state().seed).observation.text
    assert len(texts) > 1
    assert text == f"{(rollout := Rollout('FrozenLake', **OPTIONS)).instructions}\n\n{rollout.begin(seed)}"
