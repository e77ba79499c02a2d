"""The exported server in the real openreward: started as a process, played by its own client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ragen_gym.integrations import METRICS
from tests.integrations.library import REPLIES, export, needs, options, played, serving

needs("ors", "openreward")

OPTIONS: dict[str, Any] = {"max_turns": 3, "success_rate": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("ors") / "package", "ors", *options(OPTIONS))


@pytest.fixture(scope="module")
def environment(folder: Path) -> Iterator[Any]:
    from openreward import EnvironmentsAPI

    with serving(folder, "server:app") as url, EnvironmentsAPI(url, api_key="") as api:
        yield api.get("FrozenLake", base_url=url)


def play(session: Any) -> list[Any]:
    """What the tool said to each of the replies."""
    outputs: list[Any] = []
    while not outputs or not outputs[-1].finished:
        outputs.append(session.call_tool("reply", {"text": REPLIES[len(outputs)]}))
    return outputs


def test_an_episode_of_a_task_is_the_games(environment: Any) -> None:
    with environment.session(environment.get_task("test", 2)) as session:
        begun, prompt = session.get_messages(format="openai"), session.get_prompt()
        outputs = play(session)
        assert session.get_messages(format="openai") == begun
    said = outputs[-1].metadata
    rollout = played(2, said["noise_seed"], split="test", **OPTIONS)
    assert begun == rollout.messages[:2]
    assert [block.text for block in prompt] == [message["content"] for message in begun]
    users = [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert [output.blocks[0].text for output in outputs[:-1]] == users[1 : len(outputs)]
    assert [output.reward for output in outputs] == rollout.rewards
    assert {name: said[name] for name in METRICS} == rollout.metrics()
    assert said["level_id"] == rollout.level_id


def test_the_tool_and_the_tasks_are_listed(environment: Any) -> None:
    (tool,) = environment.list_tools(format="openai")
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("reply", ["text"])
    assert environment.list_splits() == ["train", "validation", "test"]
    assert environment.num_tasks("validation") == 10_000
    (task,) = environment.get_task_range("train", 7, 8)
    assert task.task_spec == {"id": "train-7", "seed": 7, "split": "train"}


def test_sessions_of_a_task_share_the_level_and_no_noise(environment: Any) -> None:
    def session(_: int) -> Any:
        with environment.session(split="train", index=5) as session:
            return play(session)[-1].metadata

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(session, range(16)))
    assert len({each["level_id"] for each in found}) == 1
    assert len({each["noise_seed"] for each in found}) == 16


def test_a_noise_seed_of_the_task_repeats_the_episode(environment: Any) -> None:
    task = environment.get_task("test", 4)
    task.task_spec = {**task.task_spec, "noise_seed": 11}
    found = []
    for _ in range(2):
        with environment.session(task) as session:
            found.append([(output.blocks[0].text, output.reward) for output in play(session)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": -1}, "greater than or equal to 0"),
        ({"split": "dev"}, "'train', 'validation' or 'test'"),
        ({"level": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_task_that_names_no_level_is_refused(environment: Any, changes: dict[str, Any], problem: str) -> None:
    task = environment.get_task("test", 0)
    task.task_spec = {**task.task_spec, **changes}
    with pytest.raises(Exception, match=problem), environment.session(task) as session:
        session.get_prompt()


def test_a_reply_after_the_end_is_refused(environment: Any) -> None:
    with environment.session(environment.get_task("test", 0)) as session:
        play(session)
        with pytest.raises(Exception, match="finished"):
            session.call_tool("reply", {"text": REPLIES[0]})
