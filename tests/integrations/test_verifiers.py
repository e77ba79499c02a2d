"""The exported taskset in the real verifiers: its commands, its rewards, many rollouts at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS, Rollout
from tests.integrations.library import export, install, needs, played, serving_replies

needs("verifiers", "verifiers")

PACKAGE = "ragen_frozen_lake"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which the installed package is found."""
    folder = tmp_path_factory.mktemp("verifiers")
    options = ["--option", "max_turns=3", "--option", "success_rate=0.8"]
    return install(export(folder / "package", "verifiers", *options), folder / "site")


@pytest.fixture(scope="module")
def vf(package: dict[str, str]) -> Any:
    sys.path.insert(0, package["PYTHONPATH"].partition(os.pathsep)[0])
    import verifiers.v1

    return verifiers.v1


def run(package: dict[str, str], command: str, *arguments: str, cwd: Path) -> str:
    code = f"from verifiers.v1.cli.{command} import main; main()"
    call = [sys.executable, "-c", code, PACKAGE, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=cwd, env={**package, "KEY": "none"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_exports_one_taskset_and_one_environment(vf: Any) -> None:
    from verifiers.v1.utils.loaders import environment_class, taskset_class

    assert issubclass(taskset_class(PACKAGE), vf.Taskset)
    assert environment_class(PACKAGE) is not vf.SingleAgentEnv
    assert vf.env_config_type(PACKAGE)(taskset={"id": PACKAGE}).taskset.options == {"max_turns": 3, "success_rate": 0.8}


def test_tasks_are_levels_of_one_split(vf: Any) -> None:
    def tasks(split: str, count: int = 40) -> list[Any]:
        config = vf.env_config_type(PACKAGE)(taskset={"id": PACKAGE, "split": split}).taskset
        taskset = vf.load_taskset(config)
        assert not taskset.bounded
        return list(taskset.take(count))

    train, test = tasks("train"), tasks("test")
    assert [task.data.model_dump() for task in tasks("train")] == [task.data.model_dump() for task in train]
    assert not {task.data.id for task in train} & {task.data.id for task in test}
    rollout = Rollout("FrozenLake", split="test", max_turns=3, success_rate=0.8)
    assert test[7].data.prompt == rollout.begin(test[7].data.seed)
    assert test[7].data.system_prompt == rollout.instructions
    assert "at most 5 a turn" in test[7].data.system_prompt


def test_validate_finds_every_level_winnable_and_an_untouched_one_unpaid(
    package: dict[str, str], tmp_path: Path
) -> None:
    out = run(package, "validate", "-n", "6", "--no-rich", "--runtime.type", "subprocess", cwd=tmp_path)
    summary = json.loads(out[out.index("{") :])
    assert summary["outcomes"] == {"valid": 6, "invalid": 0, "unchecked": 0, "error": 0, "timeout": 0, "missing": 0}


def test_eval_plays_rollouts_of_a_task_on_one_level_with_other_noise(package: dict[str, str], tmp_path: Path) -> None:
    with serving_replies() as url:
        client = ["--client.base-url", url, "--client.api-key-var", "KEY", "-m", "stand-in"]
        sizes = ["--env.taskset.split", "test", "--select.limit", "2", "-r", "2"]
        run(package, "eval.main", *sizes, *client, "--no-push", "--no-rich", cwd=tmp_path)
    (found,) = tmp_path.rglob("traces.jsonl")
    traces = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    traces = [trace for record in traces for trace in record.get("traces", [record])]
    assert len(traces) == 4
    for trace in traces:
        data, info = trace["task"]["data"], trace["info"]
        rollout = played(data["seed"], info["noise_seed"], split="test", max_turns=3, success_rate=0.8)
        assert not trace["errors"]
        assert trace["rewards"]["game_return"]["score"] == pytest.approx(rollout.total)
        assert trace["metrics"] == pytest.approx(rollout.metrics())
        assert set(trace["metrics"]) == set(METRICS)
    assert len({trace["info"]["noise_seed"] for trace in traces}) == 4
    assert len({trace["task"]["data"]["seed"] for trace in traces}) == 2


def test_load_environment_takes_the_fields_of_the_taskset(vf: Any) -> None:
    from importlib import import_module

    env = import_module(PACKAGE).load_environment(split="test", first_seed=5)
    assert isinstance(env, vf.Env)
    (task,) = env.taskset.take(1)
    assert (task.data.seed, task.data.split) == (5, "test")


def test_a_rollout_that_the_hub_stops_is_unfinished(vf: Any) -> None:
    async def play(url: str) -> Any:
        from importlib import import_module

        # Without slip: a rollout's noise is of its random id, and two slips could end the episode in a hole.
        env = import_module(PACKAGE).load_environment(split="test", options={"max_turns": 3, "success_rate": 1})
        env.config.agent.max_turns = 1
        context = vf.ModelContext("stand-in", vf.EvalClientConfig(base_url=url, api_key_var="KEY"))
        async with env.serving():
            (task,) = env.taskset.take(1)
            return await env.run_episode(task, context)

    os.environ["KEY"] = "none"
    with serving_replies() as url:
        (trace,) = asyncio.run(play(url)).traces
    assert trace.metrics["unfinished"] == 1.0
    assert trace.metrics["turns"] == 1.0
